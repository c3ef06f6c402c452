"""The job that trains the network which learns: what it starts from, what it sees, and what it is told of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from jaxtyping import Bool
from torch import Generator, Tensor

from ccmcl.engine import Classify, Judge
from ccmcl.kinds import count_of
from ccmcl.learn import Distil, Shared, Trainer, at_once
from ccmcl.loop import generator_for, placed
from ccmcl.memory import Memory
from ccmcl.nets import Params, members_of, together
from ccmcl.plan import Learner, Plan, set_apart
from ccmcl.residual import ResNet
from ccmcl.sources import Beside, Evenly, Pictures, Replay, Source, Taught, Varied
from ccmcl.stream import Experience
from ccmcl.threads import limited

MOST_SHIFT, BISECTIONS = 20.0, 40
"""How far a bias may be moved, and how often the way there is halved."""
MOMENTS = 4
"""Moments of its course at which a network that shows the way itself is kept, the last one among them."""


def learning(index: int, member: int = 0) -> str:
    """Name the job of an experience that trains the network, or one of several.

    >>> learning(3), learning(3, 1)
    ('learn 3', 'learn 3-1')
    """
    return f"learn {index}-{member}" if member else f"learn {index}"


def trainer(
    plan: Plan,
    start: Callable[[Generator], Params],
    source: Source,
    judge: Judge,
    index: int,
    outputs: int,
    taught: Callable[[Source], tuple[Source, Judge]] | None = None,
    member: int = 0,
) -> Trainer:
    """Lay out how a network learns from a start to tell so many classes apart, in the experience of this index.

    ``taught`` adds what a teacher says of the images, and how that is judged. Of several networks, each ``member``
    sees batches of its own.
    """
    style = plan.recipe.style
    if style.varied:
        source = Varied(source, outputs, style.mirrored, style.together)
        judge = Shared(plan.net) if isinstance(judge, Classify) else judge
    shown, net = source, plan.net  # a network is measured on what it sees, whatever it is told of that

    def settle(params: Params, draws: Iterable[Tensor]) -> Params:
        assert isinstance(net, ResNet)
        return net.measured(params, (shown.take(drawn)[0] for drawn in draws))

    if taught is not None:
        source, judge = taught(source)
    return Trainer(
        start,
        source,
        partial(plan.engine.gradient, judge),
        plan.recipe.steps,
        plan.recipe.rate,
        generator_for(plan.seed, "learn", index, *([member] if member else [])),
        plan.device,
        style,
        settle if isinstance(net, ResNet) else None,
        moments(plan),
    )


def moments(plan: Plan) -> int:
    """Say at how many moments of its course the network is kept."""
    return MOMENTS if plan.own_course else 1


def all_going_on(plan: Plan, learner: Learner, experience: Experience) -> dict[str, Trainer]:
    """Lay out how every network goes on."""
    return {
        learning(experience.index, member): going_on(plan, learner, experience, member)
        for member in range(plan.networks)
    }


def going_on(plan: Plan, learner: Learner, experience: Experience, member: int = 0) -> Trainer:
    """Lay out how a network goes on, on new pictures beside what is remembered, and keeps to what it was.

    That counts for as much as what is remembered.
    """
    old, outputs = learner.network(member), outputs_after(learner, experience)
    weight = 1 - share_of_new(learner.memory, experience)

    def taught(source: Source) -> tuple[Source, Judge]:
        judge, answers = Distil(plan.net), partial(plan.engine.logits, plan.net, placed(old or {}, plan.device))
        return Taught(source, outputs, answers, weight, judge.temperature), judge

    source, judge = balanced(plan, learner.memory, experience), Classify(plan.net)
    start = grown(plan, old, outputs)
    return trainer(plan, start, source, judge, experience.index, outputs, taught if old else None, member)


def outputs_after(learner: Learner, experience: Experience) -> int:
    """Count the outputs of a network that knows the classes of an experience beside those it knew."""
    return max([learner.seen - 1, *experience.classes]) + 1


def grown(plan: Plan, old: Params | None, outputs: int) -> Callable[[Generator], Params]:
    """Start where a network is, with so many outputs; or with a new one, if there is none."""

    def start(generator: Generator) -> Params:
        return plan.net.init(generator, outputs) if old is None else plan.net.grow(old, outputs, generator)

    return start


def share_of_new(memory: Memory, experience: Experience) -> float:
    """Say how much the pictures at hand count beside what is remembered: as much as their classes are of all.

    Where they are of all the classes there are, it is half: there may be few of them.
    """
    known = set(memory) | set(experience.classes)
    share = len(experience.classes) / len(known)
    return share if share < 1 or not memory else 0.5


def balanced(plan: Plan, memory: Memory, experience: Experience) -> Source:
    """Make batches of the pictures at hand beside what is remembered, as much of every class."""
    share = share_of_new(memory, experience)
    new = max(1, min(round(plan.recipe.batch * share), plan.recipe.batch - bool(memory)))  # one is left for the memory
    pictures = Evenly(Pictures(experience.pixels.to(plan.device), experience.labels.to(plan.device), new))
    if not memory:
        return pictures
    shown = ~apart(plan, memory)
    images, labels = memory.images()[shown].to(plan.device), memory.labels()[shown].to(plan.device)
    return Beside(pictures, Evenly(Replay(images, labels, max(1, plan.recipe.batch - new), weighting=False)), share)


def apart(plan: Plan, memory: Memory) -> Bool[Tensor, "n"]:
    """Say which of all remembered images are set apart."""
    return torch.cat([torch.arange(count_of(kept)) < set_apart(plan, kept) for kept in memory.values()])


def all_impartial(plan: Plan, params: Params, memory: Memory, newest: Sequence[int]) -> Params:
    """Make every network impartial by itself."""
    return together([impartial(plan, one, memory, newest) for one in members_of(params)])


@limited(1)  # with more, the network's answers would have other last bits
@torch.no_grad()
def impartial(plan: Plan, params: Params, memory: Memory, newest: Sequence[int]) -> Params:
    """Make a network that went on expect the newest classes as often as they come among the images set apart.

    It has seen thousands of pictures of these classes, and of the others a few images, over and over: what it does
    not know by heart it takes for new. The biases of the newest classes are moved until that is made up for.
    """
    among = apart(plan, memory)
    images, labels = memory.images()[among], memory.labels()[among]
    counts = labels.bincount(minlength=max(memory) + 1)
    there = set(labels.tolist())
    if not there - set(newest) or not there & set(newest):
        return params
    logits = torch.cat([plan.net(params, part) for part in torch.split(images, at_once(images))]).double()
    new = torch.zeros(logits.shape[1], dtype=torch.float64)
    new[list(newest)] = 1
    weights = 1 / counts[labels].double()  # as much for every class
    wanted, low, high = float(weights @ new[labels]), -MOST_SHIFT, MOST_SHIFT
    for _ in range(BISECTIONS):
        shift = (low + high) / 2
        expected = float(weights @ torch.softmax(logits - shift * new, 1) @ new)
        low, high = (shift, high) if expected > wanted else (low, shift)
    return params | {"head.bias": params["head.bias"] - (shift * new).to(params["head.bias"])}
