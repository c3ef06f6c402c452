"""How many operations the mathematics takes: the multiplications and additions of convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from ccmcl.condense import Condensation
from ccmcl.distribution import Distribution
from ccmcl.learn import Recipe
from ccmcl.nets import ConvNet

GRADIENT = (2, 3)
"""Passes over a layer for a gradient by the parameters, in the first layer and in the others: forward, by the kernel,
and by the images where there is a layer before."""
MATCHING = (5, 7)
"""The same for a matching update, which differentiates a gradient by the images: beside the gradient, kernels meet
images and images meet gradients once more in each direction."""

FORWARD = (1, 1)
DRAWING = (2, 2)
"""The same for an update by features, which differentiates them by the images alone."""


def layers(net: ConvNet, outputs: int) -> list[int]:
    """Count the operations of each layer for one image, forward; a multiplication and an addition are two.

    >>> [operations // 1_000_000 for operations in layers(ConvNet((1, 28, 28)), 10)]
    [1, 57, 14, 0]
    """
    counts = [2 * 9 * channels * filters * pixels for channels, filters, pixels in net.convolutions()]
    return [*counts, 2 * net.features * outputs]


def per_image(net: ConvNet, outputs: int, passes: tuple[int, int]) -> int:
    """Count the operations on one image of a gradient or of a matching update."""
    first, *others = layers(net, outputs)
    return passes[0] * first + passes[1] * sum(others)


def inner_iteration(net: ConvNet, outputs: int, settings: Condensation, images: int, buffer: int) -> int:
    """Count an inner iteration of Algorithm 1 with ``images`` remembered of the class and ``buffer`` of others."""
    trained = min(buffer, settings.batch) if settings.training else 0
    again = max(0, settings.training - 1) * (settings.batch + trained)
    gradient, matching = (per_image(net, outputs, passes) for passes in (GRADIENT, MATCHING))
    return (settings.batch + trained + again) * gradient + settings.matching * images * matching


def condensing(
    net: ConvNet, outputs: int, settings: Condensation, images: Sequence[int], groups: Sequence[Sequence[int]]
) -> int:
    """Count the condensation of a whole stream; in each experience so many ``images`` are remembered of every class."""
    total, seen = 0, 0
    for group, some in zip(groups, images, strict=True):
        each = inner_iteration(net, outputs, settings, some, seen * some)
        total += len(group) * settings.outer * settings.inner * each
        seen += len(group)
    return total


def matching(
    net: ConvNet, outputs: int, settings: Distribution, images: Sequence[int], groups: Sequence[Sequence[int]]
) -> int:
    """Count the updates by features of a whole stream, so many ``images`` being remembered of every class."""
    networks = 2 if settings.judged else 1
    forward, drawing = (per_image(net, outputs, passes) for passes in (FORWARD, DRAWING))
    each = [settings.batch * forward + networks * min(some, settings.batch) * drawing for some in images]
    return settings.updates * sum(len(group) * one for group, one in zip(groups, each, strict=True))


def learning(net: ConvNet, outputs: int, recipe: Recipe, distinct: Sequence[int]) -> int:
    """Count the training of a network in each experience, with so many distinct images in a batch."""
    return sum(recipe.steps * count * per_image(net, outputs, GRADIENT) for count in distinct)


def looking(net: ConvNet, outputs: int, recipe: Recipe, batches: int) -> int:
    """Count so many batches that go through a network, to be judged by a teacher or to be measured."""
    return batches * recipe.batch * per_image(net, outputs, FORWARD)
