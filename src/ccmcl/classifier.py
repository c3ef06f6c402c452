"""The everyday interface: give it new classes as they come, and a budget; get a classifier that has not forgotten."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from ccmcl.arrays import (
    in_order,
    label_array,
    label_from_json,
    label_to_json,
    labels_of,
    pixels_of,
    plain_colour,
)
from ccmcl.compute import Compute, device_of, settle
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.files import first_line
from ccmcl.kinds import PLAIN, Encoded
from ccmcl.learn import logits_of
from ccmcl.loop import Job, State, prefixed, section, worth_telling
from ccmcl.memory import Memory
from ccmcl.memory_file import pack, picture_shape, stored_shape, unpack
from ccmcl.methods import METHODS, check, plan_steps
from ccmcl.nets import Params, together
from ccmcl.plan import Learner, Plan
from ccmcl.planning import edge_of, plan_of
from ccmcl.progress import Reporter, reporter
from ccmcl.stream import Experience
from ccmcl.tensor_files import read_tensors, write_tensors

FORMAT = "ccmcl classifier 1"
OF_STREAMS = ("dataset", "order", "per_experience", "holdout")
"""Settings that are of an experiment on a whole data set."""

DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Experiment)
    if field.name not in OF_STREAMS and field.default is not dataclasses.MISSING
}
"""What settings were before they existed."""


class ContinualClassifier:
    """A classifier that learns new classes call by call, and keeps only a small memory of the old ones.

    ``budget`` limits the memory: "100" counts examples as the paper does, "300KiB" bytes, "10/class" or
    "30KiB/class" what each class may have. A budget for all classes is shared by those met so far: what is
    remembered is made smaller whenever new ones come. Say in ``classes`` how many will come, if it is known: a
    budget too small for them is refused at once (and with ``filled="no"`` it is shared out for all of them from
    the start). All settings of ``Experiment`` can be given too. ``device`` and ``compile`` say
    how to compute ("auto" takes a GPU if there is one, and compiles for long work).

    Labels that are all numbers or single letters are taken for characters, whose pictures are not mirrored: where
    numbers stand for things, give ``mirrored="yes"``.

    >>> from ccmcl.data import load
    >>> digits = load("digits")
    >>> classifier = ContinualClassifier("2/class", updates=20, steps=20, width=16)
    >>> for pair in [(0, 1), (2, 3)]:
    ...     chosen = torch.isin(digits.train.labels, torch.tensor(pair))
    ...     _ = classifier.partial_fit(digits.train.pixels[chosen], digits.train.labels[chosen])
    >>> classifier.classes_, classifier.nbytes
    ((0, 1, 2, 3), 2064)
    >>> classifier.predict(digits.test.pixels[:3]).shape
    (3,)
    """

    def __init__(
        self,
        budget: str | int = "10/class",
        *,
        method: str | None = None,
        preset: str = "fast",
        seed: int = 0,
        classes: SupportsIndex | None = None,
        verbose: bool = False,
        device: str = "auto",
        compile: str = "auto",
        **settings: Any,
    ) -> None:
        given = {"budget": str(budget), "preset": preset, "seed": seed, **settings}
        if method is not None:
            given["method"] = method
        for name in OF_STREAMS:
            if name in settings:
                raise InputError(f"{name} is a setting of experiments on a whole data set, not of a classifier.")
        self._given = {**given, "method": Experiment.of(shape=(1, 8, 8), **given).method}
        self._classes = None if classes is None else _whole(classes)
        self._verbose = verbose
        self._compute = Compute(compile, device, workers=1)
        self._labels: tuple[Hashable, ...] = ()
        self._shape: tuple[int, int, int] | None = None
        self._learner = Learner(Memory())
        self._calls = 0

    @property
    def classes_(self) -> tuple[Hashable, ...]:
        """The labels seen so far, in the order in which they came."""
        return self._labels

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        return self._learner.memory

    @property
    def nbytes(self) -> int:
        """The exact size of what is remembered."""
        return self.memory.nbytes

    def partial_fit(self, x: object, y: object) -> ContinualClassifier:
        """Learn from the pictures of one experience; nothing but the memory of them is kept.

        A class that was met before is remembered anew, from its new pictures joined with what is remembered
        of it. If anything fails or is interrupted, the classifier stays as it was.
        """
        pixels, labels = pixels_of(x), labels_of(y)
        if len(pixels) != len(labels):
            raise InputError(f"There are {len(pixels)} pictures but {len(labels)} labels.")
        shape = self._checked_shape(pixels)
        known = list(self._labels)
        numbers = {label: k for k, label in enumerate(known)}
        for label in in_order(labels):
            numbers.setdefault(label, len(numbers))
        if self._classes is not None and len(numbers) > self._classes:
            raise InputError(f"There are {len(numbers)} classes now, but only {self._classes} were to come.")
        numbered = torch.tensor([numbers[label] for label in labels])
        for label in in_order(labels):
            if plain_colour(pixels[numbered == numbers[label]]).all():
                raise InputError(f"Every picture of class {label!r} is of one colour: there is nothing to learn.")
        experience = Experience(self._calls, tuple(sorted(set(numbered.tolist()))), pixels, numbered)
        plan, method = self._plan(shape, numbers, None if self._calls else pixels), str(self._given["method"])
        check(plan, method, self._classes or len(numbers))
        plan = settle(self._compute, plan, method, (experience.classes,)).equip(plan)
        teller = _Teller(reporter(not self._verbose))
        ahead = plan_steps(method, plan, (experience.classes,), self._learner.seen)
        teller.reporter.begin(f"call {self._calls + 1}", ahead)
        try:
            learner = METHODS[method].meet(plan, self._learner, experience, teller)
        finally:
            teller.reporter.end()
        self._learner, self._labels, self._shape = learner, tuple(numbers), shape
        # The first pictures have decided them.
        self._given |= {"margin": str(plan.shape.margin), "frequencies": plan.shape.frequencies}
        self._calls += 1
        return self

    def predict_proba(self, x: object) -> Float32[np.ndarray, "n k"]:
        """Return the probability of each class in ``classes_`` for each picture."""
        probabilities: NDArray[np.float32] = torch.softmax(self._logits(x), 1).numpy()
        return probabilities

    def predict(self, x: object) -> NDArray[Any]:
        """Return the most probable label of each picture."""
        return label_array(self._labels, self._logits(x).argmax(1))

    def score(self, x: object, y: object) -> float:
        """Return the share of the pictures that are labelled rightly."""
        predicted, labels = self._logits(x).argmax(1).tolist(), labels_of(y)
        if len(predicted) != len(labels):
            raise InputError(f"There are {len(predicted)} pictures but {len(labels)} labels.")
        right = [bool(self._labels[k] == label) for k, label in zip(predicted, labels, strict=True)]
        return sum(right) / len(right)

    def save(self, path: Path | str) -> None:
        """Write all of it, memory and network and settings, into one safetensors file."""
        tensors, about = pack(self.memory)
        write_tensors(
            Path(path),
            {**prefixed("memory", tensors), **prefixed("params", self._learner.params or {})},
            {
                "format": FORMAT,
                "memory": about,
                "labels": [label_to_json(label) for label in self._labels],
                "settings": self._settings(),
                "classes": self._classes,
                "shape": self._shape,
                "calls": self._calls,
            },
        )

    @staticmethod
    def load(path: Path | str) -> ContinualClassifier:
        """Read a classifier, ready to predict and to learn on. The file is not trusted and cannot run code.

        How it computes and what it shows (``device``, ``compile``, ``verbose``) is not in the file.
        """
        tensors, about = read_tensors(Path(path))
        if about.get("format") != FORMAT:
            raise InputError(f"{path} does not hold a classifier of this program (expected {FORMAT!r}).")
        try:
            settings = dict(about["settings"])
            if about["shape"] is not None:  # whatever is not there did not exist then, and had no part in it
                settings = DEFAULTS | settings
            classifier = ContinualClassifier(**settings, classes=about["classes"])
            memory, _ = unpack(section(tensors, "memory"), dict(about["memory"]), str(path))
            classifier._labels = labels = tuple(label_from_json(label) for label in about["labels"])
            classifier._calls = calls = int(about["calls"])
            if len(set(labels)) < len(labels) or calls < 0 or len(labels) > (about["classes"] or len(labels)):
                raise InputError("its labels and calls do not fit together")
            if about["shape"] is not None:
                channels, height, width = map(int, about["shape"])
                if min(channels, height, width) < 1:
                    raise InputError("its pictures have no pixels")
                classifier._shape = (channels, height, width)
                params = section(tensors, "params")
                plan = classifier._plan(classifier._shape)
                _check_params(plan, params, len(labels))
                _check_memory(plan, str(classifier._given["method"]), memory, len(labels))
                classifier._learner = Learner(memory, params)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {first_line(error)}.") from error
        return classifier

    def _settings(self) -> dict[str, Any]:
        """Lay out every setting, once it is known what the preset makes of the pictures: presets may change."""
        if self._shape is None:
            return self._given
        filled = Experiment.of(shape=self._shape, **self._given).as_dict()
        return {name: value for name, value in filled.items() if name not in OF_STREAMS}

    def _plan(self, shape: tuple[int, int, int], labels: Iterable[Hashable] = (), first: Tensor | None = None) -> Plan:
        experiment, names = Experiment.of(shape=shape, **self._given), [str(one) for one in labels]
        edge = 0 if first is None else edge_of(experiment, first)
        return plan_of(experiment, shape, self._classes, names, edge)

    def _checked_shape(self, pixels: Tensor) -> tuple[int, int, int]:
        _, channels, height, width = pixels.shape
        shape = (channels, height, width)
        if self._shape is not None and shape != self._shape:
            raise InputError(
                f"These pictures have shape {shape} (channels, height, width), but {self._shape} was learned before."
            )
        return shape

    def _logits(self, x: object) -> Tensor:
        if self._learner.params is None:
            raise InputError("This classifier has not learned anything yet: call partial_fit first.")
        pixels = pixels_of(x)
        plan = self._plan(self._checked_shape(pixels), self._labels)
        device, views = torch.device(device_of(self._compute.device)), plan.recipe.style.views
        return logits_of(plan.net, self._learner.params, pixels, device=device, views=views)


def _whole(classes: object) -> int:
    """Take a number of classes, Python's or numpy's."""
    if isinstance(classes, SupportsIndex) and not isinstance(classes, bool) and operator.index(classes) >= 1:
        return operator.index(classes)
    raise InputError(f"The number of classes to come must be a whole number of at least 1, not {classes!r}.")


class _Teller:
    """Runs jobs in one go and tells how far they are."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def __call__(self, jobs: Mapping[str, Job]) -> dict[str, State]:
        states = {}
        for name, job in jobs.items():
            state, told = job.init(), time.monotonic()
            while (done := int(state["step"]) + 1) <= job.total:
                state, loss = job.step(state)
                if worth_telling(job, done, told):
                    self.reporter.step(name, name, done, job.total, float(loss))
                    told = time.monotonic()
            states[name] = state
        return states


def _check_memory(plan: Plan, name: str, memory: Memory, classes: int) -> None:
    """Compare the memory in a file with what the settings would keep: only of that a budget knows what it takes."""
    method, shape = METHODS[name], plan.net.shape
    if any(picture_shape(kept) != shape for kept in memory.values()) or any(label >= classes for label in memory):
        raise InputError("the memory is of other pictures or classes")
    form = plan.learned(name) if method.condenses else PLAIN if method.keeps_all else plan.form()
    small = shape if method.keeps_all or form.frequencies else plan.small()
    encoded = plan.shape.codec != "raw" and not method.condenses and not method.keeps_all
    for kept in memory.values():
        beside = {part: tensor for part, tensor in kept.tensors().items() if part in ("logits", "targets")}
        wanted = {"logits"} if method.logits else {"targets"} if plan.shape.soft and method.condenses else set()
        wide = any(tensor.shape[1] > classes for tensor in beside.values())
        if kept.kind not in method.kinds or set(beside) != wanted or wide:
            raise InputError("its memory is not what its method stores")
        if kept.form != form or isinstance(kept, Encoded) != encoded or stored_shape(kept) != small:
            raise InputError("its memory is not stored as its settings say")


def _check_params(plan: Plan, params: Params, classes: int) -> None:
    """Compare the parameters in a file with what the network expects."""
    expected = together([plan.net.kept(classes)] * plan.networks)
    expected |= {"correction": (2, classes)} if "correction" in params else {}
    if {name: tuple(tensor.shape) for name, tensor in params.items()} != expected:
        raise InputError("the network does not fit the settings")
    if any(tensor.dtype != torch.float32 for tensor in params.values()):
        raise InputError("the network is not in float32")
    if not all(tensor.isfinite().all() for tensor in params.values()):
        raise InputError("the network holds values that are not numbers")
