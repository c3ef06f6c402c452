"""The settings of an experiment, handed on to its method as plain values."""

from __future__ import annotations

from ccmcl.budget import Budget
from ccmcl.condense import Condensation
from ccmcl.experiment import Experiment
from ccmcl.learn import Recipe
from ccmcl.methods import Plan
from ccmcl.nets import ConvNet


def plan_of(experiment: Experiment, shape: tuple[int, int, int], classes: int | None) -> Plan:
    """Lay out what a method needs for pictures of this shape; ``classes`` is None where the stream is open-ended.

    >>> plan_of(Experiment.of(dataset="mnist", preset="paper"), (1, 28, 28), 10).condensation.outer
    50
    """
    return Plan(
        ConvNet(shape, experiment.width, experiment.blocks, experiment.precision),
        Budget.parse(experiment.budget),
        experiment.ratio,
        Condensation(
            experiment.outer,
            experiment.inner,
            experiment.matching,
            experiment.training,
            experiment.condense_batch,
            experiment.condense_optimiser,
            experiment.condense_rate,
            experiment.rate,
        ),
        Recipe(experiment.steps, experiment.batch, experiment.rate),
        experiment.seed,
        classes,
    )
