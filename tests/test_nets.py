"""The ConvNet against torch.nn, its sizes, its head that grows, and the layers it is made of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ccmcl.errors import InputError
from ccmcl.nets import ConvNet, Params, instance_norm, outputs_of
from ccmcl.tiles import channels_last
from drawn import Shape, pictures, seeded, shaken


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def sequential(params: Params, blocks: int) -> nn.Sequential:
    """Build the paper's network of torch.nn layers around the same weights."""
    layers: list[nn.Module] = []
    for block in range(blocks):
        weight = params[f"conv{block}.weight"]
        convolution = nn.Conv2d(weight.shape[1], len(weight), 3, padding=1).double()
        norm = nn.InstanceNorm2d(len(weight), affine=True).double()
        with torch.no_grad():
            convolution.weight.copy_(weight)  # its bias stays as it was drawn: the norm takes it away
        norm.load_state_dict({"weight": params[f"norm{block}.scale"], "bias": params[f"norm{block}.shift"]})
        layers += [convolution, norm, nn.ReLU(), nn.AvgPool2d(2)]
    head = nn.Linear(params["head.weight"].shape[1], len(params["head.weight"])).double()
    head.load_state_dict({"weight": params["head.weight"], "bias": params["head.bias"]})
    return nn.Sequential(*layers, nn.Flatten(), head)


@pytest.mark.parametrize(
    ("shape", "width", "widening", "blocks", "features"),
    [
        ((1, 28, 28), 128, 1, 3, 128 * 3 * 3),
        ((3, 32, 32), 128, 1, 3, 128 * 4 * 4),
        ((3, 32, 32), 8, 2, 3, 32 * 4 * 4),
        ((1, 8, 8), 16, 1, 2, 16 * 2 * 2),
        ((1, 8, 8), 5, 3, 2, 15 * 2 * 2),
        ((1, 4, 4), 5, 1, 1, 5 * 2 * 2),
        ((3, 64, 64), 8, 1, 3, 8 * 8 * 8),
        ((2, 9, 17), 6, 1, 2, 6 * 2 * 4),
        ((4, 64, 5), 3, 1, 1, 3 * 32 * 2),
        ((1, 7, 7), 4, 2, 1, 4 * 3 * 3),
    ],
)
def test_the_convnet_is_the_same_network_built_of_torch_layers(
    shape: Shape, width: int, widening: int, blocks: int, features: int
) -> None:
    net = ConvNet(shape, width, widening=widening)
    params = shaken(net.init(seeded(), 7, torch.float64))
    images = pictures(4, shape)
    assert (net.blocks, net.features) == (blocks, features)
    same(net(params, images), sequential(params, blocks)(images).detach())


def test_its_levels_are_the_means_after_each_block_of_the_torch_layers() -> None:
    net = ConvNet((3, 32, 32), 4, widening=2)
    params, images = shaken(net.init(seeded(), 7, torch.float64)), pictures(5, (3, 32, 32))
    reference = sequential(params, 3)
    means = [F.adaptive_avg_pool2d(reference[:end](images), 1).flatten(1).detach() for end in (4, 8, 12)]
    assert [mean.shape[1] for mean in means] == [net.filters(block) for block in range(3)]
    same(net.levels(params, images), torch.cat(means, 1))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_its_gradient_is_that_of_the_torch_layers(shape: Shape) -> None:
    net = ConvNet(shape, width=16)
    params = shaken(net.init(seeded(), 5, torch.float64))
    images, labels = pictures(6, shape), torch.arange(6) % 5
    reference = sequential(params, net.blocks)
    F.cross_entropy(reference(images), labels).backward()  # type: ignore[no-untyped-call]
    gradient = torch.func.grad(lambda p: F.cross_entropy(net(p, images), labels))(params)
    expected = []
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        if name.endswith("bias") and isinstance(reference[int(name.split(".")[0])], nn.Conv2d):
            same(parameter.grad, torch.zeros_like(parameter))
        else:
            expected.append(parameter.grad)
    for name, wanted in zip(params, expected, strict=True):
        same(gradient[name], wanted)


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(4, 64), st.integers(4, 64), st.integers(1, 4), st.integers(1, 5))
def test_the_features_are_as_many_as_reach_the_linear_layer(
    channels: int, height: int, width: int, filters: int, most: int
) -> None:
    net = ConvNet((channels, height, width), filters, most)
    params = net.init(seeded(), 3)
    images = torch.rand(2, channels, height, width)
    assert net.embed(params, images).shape == (2, net.features)
    assert net(params, images).shape == (2, 3)
    assert 1 <= net.blocks <= most
    assert net.blocks == most or min(height, width) >> net.blocks < 4
    assert min(height, width) >> (net.blocks - 1) >= 4


@pytest.mark.parametrize(("height", "width"), [(3, 3), (3, 32), (32, 3), (1, 1), (0, 8)])
def test_pictures_smaller_than_four_by_four_are_refused(height: int, width: int) -> None:
    with pytest.raises(InputError) as caught:
        ConvNet((1, height, width))
    assert str(caught.value) == (
        f"Pictures of {height}×{width} pixels are too small for the network: it needs at least 4×4. Enlarge them first."
    )


@pytest.mark.parametrize(("width", "blocks", "widening"), [(0, 3, 1), (-1, 3, 1), (8, 0, 1), (8, 3, 0)])
def test_a_network_of_nothing_is_refused(width: int, blocks: int, widening: int) -> None:
    with pytest.raises(InputError, match=f"at least 1, not {width}, {blocks}, {widening}"):
        ConvNet((1, 8, 8), width, blocks, widening=widening)


@given(st.integers(0, 1000), st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(2, 9), st.integers(1, 9)))
def test_instance_norm_is_that_of_torch(seed: int, shape: tuple[int, int, int, int]) -> None:
    generator = seeded(seed)
    x = 5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    scale, shift = torch.randn(2, shape[1], generator=generator, dtype=torch.float64)
    same(instance_norm(x, scale, shift), F.instance_norm(x, weight=scale, bias=shift, eps=1e-5))


def test_instance_norm_of_a_plain_picture_is_its_shift() -> None:
    shift = torch.tensor([0.25, -3.0])
    plain = torch.full((1, 2, 4, 4), 0.75)
    assert torch.equal(instance_norm(plain, torch.ones(2), shift), shift[None, :, None, None].expand_as(plain))


def test_the_second_derivative_of_instance_norm_is_right() -> None:
    x = pictures(2, (2, 3, 3)).requires_grad_()
    scale, shift = (torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(instance_norm, (x, scale, shift))


def test_pictures_are_judged_by_themselves_whatever_is_beside_them() -> None:
    net = ConvNet((3, 12, 12), width=8)
    params = shaken(net.init(seeded(), 4, torch.float64))
    images = pictures(5, (3, 12, 12))
    alone = torch.cat([net(params, image[None]) for image in images])
    same(net(params, images), alone)
    same(net(params, images[[3, 0]]), alone[[3, 0]])


@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_of_the_images_does_not_matter(channels: int) -> None:
    net = ConvNet((channels, 12, 12), width=8)
    params = net.init(seeded(), 4, torch.float64)
    images = pictures(5, (channels, 12, 12))
    assert channels_last(images).is_contiguous(memory_format=torch.channels_last)
    same(net(params, channels_last(images)), net(params, images))


def test_parameters_follow_from_the_generator_alone() -> None:
    net = ConvNet((1, 8, 8), width=6)
    torch.manual_seed(1)
    one = net.init(seeded(3), 4)
    torch.manual_seed(2)
    twin, other = net.init(seeded(3), 4), net.init(seeded(4), 4)
    assert list(one) == list(twin)
    for name in one:
        assert torch.equal(one[name], twin[name])
    assert not torch.equal(one["conv0.weight"], other["conv0.weight"])
    assert not torch.equal(one["conv1.weight"][:, :1], one["conv0.weight"])


def test_weights_start_glorot_uniform_and_the_rest_plain() -> None:
    net = ConvNet((3, 32, 32), width=64)
    params = net.init(seeded(), 10)
    for name, tensor in params.items():
        if name.endswith("weight"):
            reference = nn.init.xavier_uniform_(torch.empty(tensor.shape), generator=seeded())
            limit = reference.abs().max()
            assert tensor.abs().max().item() == pytest.approx(limit.item(), rel=0.01)
            assert tensor.std().item() == pytest.approx(reference.std().item(), rel=0.05)
            assert tensor.mean().abs() < 0.1 * limit
        else:
            assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("scale"))))


def test_growing_keeps_what_the_old_outputs_say() -> None:
    net = ConvNet((1, 8, 8), width=6)
    params = shaken(net.init(seeded(), 2, torch.float64))
    images = pictures(9, (1, 8, 8))
    grown = net.grow(params, 5, seeded(1))
    assert (outputs_of(params), outputs_of(grown)) == (2, 5)
    assert torch.equal(grown["head.weight"][:2], params["head.weight"])
    assert torch.equal(grown["head.bias"], torch.cat([params["head.bias"], torch.zeros(3, dtype=torch.float64)]))
    torch.testing.assert_close(net(grown, images)[:, :2], net(params, images), rtol=0, atol=1e-14)
    assert all(grown[name] is params[name] for name in params if not name.startswith("head"))


def test_new_outputs_start_glorot_uniform_from_the_generator() -> None:
    net = ConvNet((1, 16, 16), width=32)
    params = net.init(seeded(), 2)
    rows = net.grow(params, 100, seeded(1))["head.weight"][2:]
    limit = (6 / (100 + net.features)) ** 0.5
    assert rows.shape == (98, net.features)
    assert 0.99 * limit < rows.abs().max() <= limit
    assert torch.equal(rows, net.grow(params, 100, seeded(1))["head.weight"][2:])
    assert not torch.equal(rows, net.grow(params, 100, seeded(2))["head.weight"][2:])


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_head_never_loses_outputs(outputs: int) -> None:
    net = ConvNet((1, 8, 8), width=6)
    params = net.init(seeded(), 2)
    assert net.grow(params, outputs, seeded()) is params


def test_a_correction_scales_and_shifts_each_output() -> None:
    net = ConvNet((1, 8, 8), width=6)
    params = net.init(seeded(), 3, torch.float64)
    images = pictures(4, (1, 8, 8))
    correction = torch.tensor([[1.0, 2.0, -0.5], [0.0, 1.0, 3.0]], dtype=torch.float64)
    a, b, c = net(params, images).T
    same(net(params | {"correction": correction}, images), torch.stack([a, 2 * b + 1, 3 - c / 2], dim=1))
