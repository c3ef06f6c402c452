"""How long experiments will take, from how long others took."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from ccmcl.catalogue import CLASSES, SHAPES
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment

ASSUMED, COMPILED = 4e10, 1.1e11
"""Operations a second and core, of short runs and of those that are compiled, until a run has shown a better figure."""
START = 4.0
"""Seconds that any run takes to begin and to end."""


@dataclass
class Estimate:
    """Expects of an experiment what others took that differ in the seed alone; else by counting its operations.

    Times are those of one core.
    """

    seen: dict[Experiment, list[float]] = field(default_factory=dict)

    def learn(self, experiment: Experiment, cost: dict[str, Any]) -> None:
        """Take note of what a finished run took."""
        seconds, machine = cost.get("seconds"), cost.get("machine")
        threads = machine.get("threads") if isinstance(machine, dict) else None
        if isinstance(seconds, float) and isinstance(threads, int) and seconds > 0:
            self.seen.setdefault(kind(experiment), []).append(seconds * threads)

    def seconds(self, experiment: Experiment) -> float | None:
        """Expect a time, or None where nothing is known: of data that would have to be read first."""
        if times := self.seen.get(kind(experiment)):
            return mean(times)
        count = operations(experiment)
        if count is None:
            return None
        rates = [(other, known / mean(times)) for other, times in self.seen.items() if (known := operations(other))]
        alike = [rate for other, rate in rates if other.method == experiment.method]
        return START + count / mean(alike or [rate for _, rate in rates] or [assumed(count)])

    def each(self, experiments: Iterable[Experiment]) -> list[float | None]:
        """Expect a time of each experiment, looked up once for all that differ in the seed alone."""
        kinds = [kind(one) for one in experiments]
        times = {one: self.seconds(one) for one in dict.fromkeys(kinds)}
        return [times[one] for one in kinds]


def kind(experiment: Experiment) -> Experiment:
    """Leave out what does not change the time."""
    return dataclasses.replace(experiment, seed=0)


def assumed(count: int) -> float:
    """Assume the pace of a run of so many operations."""
    from ccmcl.compute import WORTH_COMPILING

    return COMPILED if count >= WORTH_COMPILING else ASSUMED


@functools.cache
def operations(experiment: Experiment) -> int | None:
    """Count the operations of an experiment on a known data set."""
    if experiment.dataset not in SHAPES:
        return None
    from ccmcl.compute import operations
    from ccmcl.planning import plan_of
    from ccmcl.stream import class_order, experience_sizes

    try:
        order = class_order(experiment.order, len(CLASSES[experiment.dataset]), experiment.seed)
        groups, start = [], 0
        for size in experience_sizes(experiment.sizes(), len(order)):
            groups.append(tuple(range(start, start + size)))
            start += size
        plan = plan_of(experiment, SHAPES[experiment.dataset], len(order), CLASSES[experiment.dataset])
        return sum(operations(plan, experiment.method, groups))
    except InputError:
        return 0  # it will fail at once
