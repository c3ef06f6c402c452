"""How a run is computed: on what device, with how many processes and threads, compiled or not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ccmcl import work
from ccmcl.budget import images_of
from ccmcl.catalogue import COMPILE, CONTINUED, DEVICES
from ccmcl.compiling import Graphs, has_compiler, has_tiles
from ccmcl.engine import Engine
from ccmcl.errors import InputError, nearest
from ccmcl.learn import MEASURED
from ccmcl.methods import begins_anew
from ccmcl.plan import COUNTS, Plan
from ccmcl.training import moments

log = logging.getLogger("ccmcl")
WORTH_COMPILING = 3e13
"""Operations from which compiling earns back its time: four or five minutes of two cores."""
WORTH_TILES = 2e12
"""Operations from which it is worth a few seconds of a compiler, once on a machine, to have convolutions by tiles."""
CODES = {"none": "off", "tiles": "auto", "graphs": "on"}
"""What may be compiled, and what to ask for to have it."""
WORTH_WORKERS = 1e11
"""Operations of condensing from which it is worth starting processes."""


@dataclass(frozen=True)
class Compute:
    """What is asked for. None of it decides what an experiment means, only how its numbers are rounded."""

    compile: str = "auto"
    device: str = "auto"
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("compile", COMPILE), ("device", DEVICES)):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"There is no {name} {value!r}: {nearest(str(value), known)}.")
        if self.workers is not None and not 1 <= self.workers <= 1024:
            raise InputError(f"The number of workers must be from 1 to 1024, not {self.workers}.")


@dataclass(frozen=True)
class Settled:
    """What a run does."""

    code: str
    """what is computed by compiled code: none of it, convolutions by tiles, or whole graphs"""
    device: str
    workers: int

    @property
    def compiled(self) -> bool:
        """The heavy steps are compiled as a whole."""
        return self.code == "graphs"

    def equip(self, plan: Plan) -> Plan:
        """Hand a plan its engine and its device."""
        engine = Engine(graphs=Graphs() if self.compiled else None, tiles=self.code == "tiles" and has_tiles())
        return replace(plan, engine=engine, device=torch.device(self.device))


def settle(
    asked: Compute, plan: Plan, method: str, groups: Sequence[Sequence[int]], begun: str | None = None
) -> Settled:
    """Settle how a run is computed, from what it is and what there is; ``begun`` says how a run was begun.

    A run goes on as it was begun, so that it ends as if it had never been interrupted.
    """
    device = device_of(asked.device)
    learned, condensed = operations(plan, method, groups)
    code = code_for(asked.compile, learned + condensed, device)
    if begun in CODES and code != begun:
        code = begun
        if asked.compile != "auto":
            log.warning("This run was begun with --compile %s and goes on so.", CODES[begun])
    if code == "graphs" and device == "cpu" and not has_compiler():
        log.warning("There is no C++ compiler, so nothing is compiled; the result is the same, later.")
        code = "none"
    side_by_side = max(map(len, groups), default=1)
    if plan.own_course and plan.networks > 1:  # which are trained side by side as well
        side_by_side, condensed = max(side_by_side, plan.networks), condensed + learned
    if asked.workers is not None:
        workers = min(asked.workers, side_by_side)
    elif device != "cpu" or condensed < WORTH_WORKERS:
        workers = 1
    else:
        workers = min(side_by_side, torch.get_num_threads())
    return Settled(code, device, workers)


def code_for(asked: str, work: int, device: str) -> str:
    """Choose what is compiled for so many operations.

    >>> [code_for("auto", work, "cpu") for work in (10**9, 10**13, 10**15)]
    ['none', 'tiles', 'graphs']
    """
    if asked != "auto":
        return "graphs" if asked == "on" else "none"
    if work >= WORTH_COMPILING:
        return "graphs"
    return "tiles" if work >= WORTH_TILES and device == "cpu" else "none"


def device_of(name: str) -> str:
    """Find the device that is meant, or say that it is not here."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    if (name == "cuda" and not cuda) or (name == "mps" and not mps):
        raise InputError(f"There is no {name} device here; --device cpu always works.")
    return name


def operations(plan: Plan, method: str, groups: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Count the operations that a stream takes by a method: learning, and condensing."""
    classes = sum(map(len, groups))
    outputs, batch = plan.outputs(classes), plan.recipe.batch
    limit, seen = COUNTS.get(method), [sum(map(len, groups[: i + 1])) for i in range(len(groups))]
    steps = [plan.steps(known) if begins_anew(plan, method) else plan.recipe.steps for known in seen]

    def learning(images: Sequence[int]) -> int:
        recipes = [replace(plan.recipe, steps=count) for count in steps]
        learned = (work.learning(plan.net, outputs, one, [some]) for one, some in zip(recipes, images, strict=True))
        measured = len(groups) * moments(plan) * MEASURED if plan.net.mixes else 0
        return plan.networks * (sum(learned) + work.looking(plan.net, outputs, plan.recipe, measured))

    taught = plan.continued and method in CONTINUED and method != "joint"
    steps_taught = plan.networks * (len(groups) - 1) * plan.recipe.steps if taught else 0
    teaching = work.looking(plan.net, outputs, plan.recipe, steps_taught)
    if method not in ("composite", "condensation") or limit is None:
        return learning([batch] * len(groups)) + teaching, 0
    counts = [limit(plan, plan.sharing(known)) for known in seen]
    images = [images_of(count, plan.ratio) if method == "composite" else count for count in counts]
    whole = plan.recipe.style.varied or plan.continued
    shown = [batch if whole else min(batch, some * known) for some, known in zip(images, seen, strict=True)]
    learned = learning(shown) + teaching
    trained = replace(plan.recipe, steps=plan.experts * plan.distribution.expert_steps)
    experts = work.learning(plan.expert, outputs, trained, [batch] * len(groups))
    if plan.objective == "distribution":
        return learned, experts + work.matching(plan.expert, outputs, plan.distribution, images, groups)
    return learned, experts + work.condensing(plan.condensing, outputs, plan.condensation, images, groups)
