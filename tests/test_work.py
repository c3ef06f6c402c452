"""Operations counted by formula are those that PyTorch counts while it computes."""

from __future__ import annotations

import pytest
import torch
from torch import Generator
from torch.utils.flop_counter import FlopCounterMode

from ccmcl import work
from ccmcl.condense import Condensation
from ccmcl.engine import Classify, even, gradient_of, match
from ccmcl.forms import Form
from ccmcl.learn import Recipe
from ccmcl.nets import ConvNet

OUTPUTS = 7


def counted(net: ConvNet, images: int, matching: bool) -> int:
    """Count by watching; of four channels even the first block is an ordinary convolution."""
    generator = Generator().manual_seed(0)
    params = net.init(generator, OUTPUTS)
    batch = torch.rand(images, *net.shape, generator=generator)
    labels = torch.zeros(images, dtype=torch.int64)
    real, _ = gradient_of(Classify(net), params, params, (batch, labels, even(images, batch)))
    with FlopCounterMode(display=False) as counter:
        if matching:
            match(net, params, real, Form(), {"pixels": batch}, torch.tensor(0))
        else:
            gradient_of(Classify(net), params, params, (batch, labels, even(images, batch)))
    return int(counter.get_total_flops())


@pytest.mark.parametrize("shape", [(4, 16, 16), (5, 9, 12)])
@pytest.mark.parametrize("widening", [1, 2])
@pytest.mark.parametrize("matching", [False, True])
def test_the_count_of_an_image_is_what_is_computed(shape: tuple[int, int, int], widening: int, matching: bool) -> None:
    net = ConvNet(shape, 8, widening=widening)
    passes = work.MATCHING if matching else work.GRADIENT
    expected = 3 * work.per_image(net, OUTPUTS, passes)
    convolutions = expected - 3 * passes[1] * work.layers(net, OUTPUTS)[-1]
    assert convolutions <= counted(net, 3, matching) <= expected


def test_an_inner_iteration_is_the_sum_of_its_parts() -> None:
    net = ConvNet((1, 28, 28))
    settings = Condensation(50, 10, 10, 1, 256, "rmsprop", 0.01, 0.01)
    gradient, matching = (work.per_image(net, 10, passes) for passes in (work.GRADIENT, work.MATCHING))
    assert work.inner_iteration(net, 10, settings, 4, 20) == 276 * gradient + 40 * matching
    assert work.inner_iteration(net, 10, settings, 4, 9999) == 512 * gradient + 40 * matching
    groups = ((0, 1), (2, 3))
    both = work.inner_iteration(net, 10, settings, 4, 0) + work.inner_iteration(net, 10, settings, 4, 8)
    assert work.condensing(net, 10, settings, [4] * len(groups), groups) == 2 * 500 * both
    assert work.learning(net, 10, Recipe(500, 128, 0.01), [8, 16]) == 500 * 24 * gradient
    assert work.looking(net, 10, Recipe(500, 128, 0.01), 3 * 500) == 3 * 500 * 128 * sum(work.layers(net, 10))
