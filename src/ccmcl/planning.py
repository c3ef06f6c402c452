"""The settings of an experiment, handed on to its method as plain values."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ccmcl.budget import TARGET_BYTES, Budget, Layout
from ccmcl.condense import Condensation
from ccmcl.distribution import Distribution
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.frequencies import Frequencies, quiet_edge
from ccmcl.learn import RECIPES, Recipe, Style
from ccmcl.nets import ConvNet
from ccmcl.plan import SPARE_OUTPUTS, Plan, Shape
from ccmcl.presets import CODED_BITS, FEW_IMAGES, FEWEST_FREQUENCIES, MOST_CODED, frequencies
from ccmcl.residual import ResNet

WARM = 0.1
"""The share of its steps over which the learning rate of a residual network rises."""
PLAIN = 0.4
"""Plain networks, which show the way beside a residual one, learn at so much of its rate."""
NETWORKS: dict[str, type[ConvNet]] = {"plain": ConvNet, "residual": ResNet}


def plan_of(
    experiment: Experiment, shape: tuple[int, int, int], classes: int | None, names: Sequence[str] = (), edge: int = 0
) -> Plan:
    """Lay out what a method needs for pictures of this shape; ``classes`` is None where the stream is open-ended.

    ``names`` are those of the classes; the first pictures have a quiet ``edge``, so wide. Where it is not said whether
    pictures mean the same in a mirror, those in colour do unless they show characters; grey ones (scans, glyphs,
    clothes that all lie the same way) do not. Characters are what they are if a little larger or smaller, of other
    things that says less.

    >>> plan_of(Experiment.of(dataset="mnist", preset="paper"), (1, 28, 28), 10).condensation.outer
    50
    """
    margin = margin_of(experiment, shape, edge)
    count = frequencies_of(experiment, shape, margin, classes or SPARE_OUTPUTS)
    few = Frequencies(shape, count, margin) if count else None
    read = characters(names)
    mirrored = experiment.mirrored == "yes" or (experiment.mirrored == "auto" and shape[0] > 1 and not read)
    looks = experiment.looks == "several" or (experiment.looks == "auto" and read)
    return Plan(
        NETWORKS[experiment.network](
            shape,
            experiment.width,
            experiment.blocks,
            experiment.precision,
            centred=experiment.recipe == "strong",
            frequencies=few if experiment.lens == "yes" else None,
            widening=experiment.widening,
        ),
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
            experiment.rate * (PLAIN if experiment.network == "residual" else 1.0),
        ),
        Recipe(
            experiment.steps,
            experiment.batch,
            experiment.rate,
            _style(experiment, mirrored, looks),
        ),
        experiment.seed,
        classes,
        shape=Shape(
            experiment.reduction,
            experiment.bits,
            experiment.squash == "yes",
            experiment.start,
            experiment.labels == "soft",
            count,
            experiment.codec,
            experiment.quality,
            margin,
            experiment.step,
        ),
        objective=experiment.objective,
        distribution=Distribution(
            experiment.experts,
            experiment.expert_steps,
            experiment.updates,
            experiment.condense_batch,
            experiment.condense_optimiser,
            experiment.condense_rate,
            experiment.turned == "yes",
            experiment.judged,
            experiment.distance,
            experiment.expert_width,
        ),
        continued=experiment.continued == "yes",
        networks=experiment.networks,
        filled=experiment.filled == "yes",
    )


def edge_of(experiment: Experiment, pixels: Tensor) -> int:
    """Find the quiet edge of the first pictures, if anybody asks for it."""
    return quiet_edge(pixels) if experiment.margin == "auto" else 0


def margin_of(experiment: Experiment, shape: tuple[int, int, int], edge: int) -> int:
    """Find the margin that is meant: the one given, or an edge, unless less of it is needed for the frequencies.

    >>> margin_of(Experiment.of(dataset="mnist"), (1, 28, 28), edge=3)
    3
    """
    if experiment.margin != "auto":
        return int(experiment.margin)
    least = FEWEST_FREQUENCIES if isinstance(experiment.frequencies, str) else experiment.frequencies
    fitting = (one for one in range(edge, 0, -1) if (shape[1] - 2 * one) * (shape[2] - 2 * one) >= least)
    return next(fitting, 0)


def frequencies_of(experiment: Experiment, shape: tuple[int, int, int], margin: int, classes: int) -> int:
    """Find how many frequencies are meant: the number given, or what suits pictures as they are inside the margin.

    >>> experiment = Experiment.of(dataset="mnist", budget="100")
    >>> [frequencies_of(experiment, (1, 28, 28), margin, classes=10) for margin in (0, 3)]
    [130, 80]
    """
    if not isinstance(experiment.frequencies, str):
        return experiment.frequencies
    (channels, height, width), budget, coded = shape, Budget.parse(experiment.budget), bool(experiment.step)

    def needed(count: int) -> int:
        targets = classes if experiment.labels == "soft" else 0
        layout = Layout(bits=experiment.bits, frequencies=count, targets=targets)
        if coded and budget.in_bytes:
            return FEW_IMAGES * (CODED_BITS * layout.small(shape) // 8 + TARGET_BYTES * targets)
        measure = layout.size if budget.in_bytes else layout.numbers
        return measure(FEW_IMAGES, layout.small(shape), FEW_IMAGES, 1)

    affordable = bisect_right(range(1, MOST_CODED + 1), budget.room(shape, classes), key=needed)
    inside = max(1, height - 2 * margin), max(1, width - 2 * margin)
    suitable = frequencies((channels, *inside), affordable, coded)
    if not suitable:
        raise InputError(
            f"Pictures of {height}×{width} pixels are too large for frequencies auto: give a number, or a reduction."
        )
    return suitable


def _style(experiment: Experiment, mirrored: bool, looks: bool) -> Style:
    """Choose a style; a network that normalises over batches, which starts out at a high rate, needs time to settle."""
    style = RECIPES[experiment.recipe]
    warm = WARM if style.cosine and experiment.network == "residual" else 0.0
    return replace(style, warm=warm, mirrored=mirrored, together=experiment.changes == "several", looks=looks)


def characters(names: Sequence[str]) -> bool:
    """Tell whether classes are characters, which are others in a mirror: their names are letters or numbers.

    >>> characters(["0", "1", "2"]), characters(["3.0", "a"]), characters(["cat", "dog"])
    (True, True, False)
    """
    return bool(names) and all(re.fullmatch(r"-?\d+(\.0+)?|[^\W\d_]", name) for name in names)
