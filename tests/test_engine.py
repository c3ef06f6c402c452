"""The heavy steps: a batch as a weighting of distinct images, and plain gradient steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccmcl.engine import Classify, descend, even, gradient_of, weighed
from ccmcl.nets import ConvNet, Params


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_gradient(net: ConvNet, params: Params, images: Tensor, labels: Tensor) -> Params:
    """Differentiate the mean cross-entropy by autograd."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    gradients = torch.autograd.grad(F.cross_entropy(net(leaves, images), labels), list(leaves.values()))
    return dict(zip(leaves, gradients, strict=True))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 40), st.sampled_from([1, 3]))
def test_weighted_distinct_images_have_the_gradient_of_the_batch_drawn_image_by_image(
    seed: int, count: int, batch: int, channels: int
) -> None:
    net = ConvNet((channels, 8, 8), width=4)
    params = net.init(seeded(seed), 3, torch.float64)
    images = torch.rand(count, channels, 8, 8, generator=seeded(seed), dtype=torch.float64)
    labels = torch.randint(3, (count,), generator=seeded(seed))
    drawn = [int(torch.randint(count, (batch,), generator=seeded(seed))[i]) for i in range(batch)]
    expected = plain_gradient(
        net, params, torch.stack([images[i] for i in drawn]), torch.stack([labels[i] for i in drawn])
    )
    batch_of = weighed(images, labels, torch.tensor(drawn))
    gradient, _ = gradient_of(Classify(net), params, params, batch_of)
    assert list(gradient) == list(params)
    for name in params:
        same(gradient[name], expected[name])


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 60))
def test_a_draw_is_a_batch_with_replacement(seed: int, count: int, batch: int) -> None:
    images = torch.arange(count, dtype=torch.float64)[:, None, None, None].expand(count, 1, 2, 2)
    labels = torch.arange(count) * 7
    drawn = torch.randint(count, (batch,), generator=seeded(seed))
    chosen, names, weights = weighed(images, labels, drawn)
    assert len(chosen) <= max(batch, count)
    assert (names == 7 * chosen[:, 0, 0, 0]).all()
    times = weights * batch
    same(times, times.round())
    assert int(times.round().sum()) == batch
    if count <= batch:
        assert len(set(names.tolist())) == count


def test_every_image_is_drawn_as_often_as_any_other() -> None:
    images, labels = torch.zeros(5, 1, 1, 1), torch.arange(5)
    generator, total = seeded(), torch.zeros(5)
    for _ in range(400):
        total += weighed(images, labels, torch.randint(5, (25,), generator=generator))[2]
    torch.testing.assert_close(total / 400, torch.full((5,), 0.2), rtol=0, atol=0.01)


def test_the_loss_is_the_weighted_mean_of_the_cross_entropies() -> None:
    net = ConvNet((1, 6, 6), width=3)
    params = net.init(seeded(), 2, torch.float64)
    images = torch.rand(3, 1, 6, 6, generator=seeded(), dtype=torch.float64)
    labels, weights = torch.tensor([0, 1, 1]), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    probabilities = net(params, images).softmax(1)
    expected = -sum(w * probabilities[i, k].log() for i, (k, w) in enumerate(zip(labels, weights, strict=True)))
    assert Classify(net)(params, images, labels, weights).item() == pytest.approx(float(expected), abs=1e-12)


def test_only_the_layers_named_are_differentiated() -> None:
    net = ConvNet((1, 6, 6), width=3)
    params = net.init(seeded(), 2, torch.float64)
    images, labels = torch.rand(3, 1, 6, 6, generator=seeded(), dtype=torch.float64), torch.tensor([0, 1, 1])
    expected = plain_gradient(net, params, images, labels)
    chosen = {"head.weight": params["head.weight"]}
    gradient, _ = gradient_of(Classify(net), params, chosen, (images, labels, even(3, images)))
    assert list(gradient) == ["head.weight"]
    same(gradient["head.weight"], expected["head.weight"])


def test_a_step_goes_against_the_gradient_and_leaves_the_rest() -> None:
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    stepped = descend(params, {"a": torch.tensor([10.0, -10.0])}, 0.1)
    assert stepped["a"].tolist() == [0.0, 3.0]
    assert stepped["b"] is params["b"]
    assert params["a"].tolist() == [1.0, 2.0]
