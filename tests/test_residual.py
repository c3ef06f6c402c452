"""The residual network against torch.nn, in training and as measured; what it computes on; and how it is trained."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ccmcl import work
from ccmcl.compiling import Graphs
from ccmcl.engine import Classify, Engine, even, gradient_of
from ccmcl.frequencies import Frequencies
from ccmcl.learn import Style, Trainer
from ccmcl.loop import drive
from ccmcl.nets import Params
from ccmcl.residual import ResNet
from ccmcl.sources import Pictures
from drawn import Shape, pictures, seeded, shaken


class Layer(nn.Sequential):
    """A convolution, its norm and what cuts off the negative, around given weights."""

    def __init__(self, params: Params, number: int) -> None:
        weight = params[f"conv{number}.weight"]
        convolution = nn.Conv2d(weight.shape[1], len(weight), 3, padding=1, bias=False).double()
        norm = nn.BatchNorm2d(len(weight), momentum=None).double()  # a plain mean over batches
        with torch.no_grad():
            convolution.weight.copy_(weight)
            norm.weight.copy_(params[f"norm{number}.scale"])
            norm.bias.copy_(params[f"norm{number}.shift"])
        super().__init__(convolution, norm, nn.ReLU())


class Reference(nn.Module):
    """The same network of torch.nn layers; ``pools`` says which stages pool."""

    def __init__(self, params: Params, pools: tuple[bool, ...]) -> None:
        super().__init__()
        self.pools, self.levels = pools, list[Tensor]()
        self.layers = nn.ModuleList([Layer(params, number) for number in range(1 + 2 * len(pools))])
        self.head = nn.Linear(params["head.weight"].shape[1], len(params["head.weight"])).double()
        self.head.load_state_dict({"weight": params["head.weight"], "bias": params["head.bias"]})

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers[0](images - 0.5)
        for stage, pools in enumerate(self.pools):
            if pools:
                x = F.avg_pool2d(x, 2)
            x = self.layers[2 * stage + 1](x)
            x = x + self.layers[2 * stage + 2](x)
            self.levels.append(F.adaptive_avg_pool2d(x, 1).flatten(1))
        found: Tensor = self.head(self.levels[-1])
        return found


CASES = [
    ((3, 32, 32), 8, 2, (True, True, True)),
    ((1, 28, 28), 6, 1, (True, True, True)),
    ((3, 16, 16), 4, 2, (False, True, True)),
    ((1, 8, 8), 5, 3, (False, True, False)),
    ((2, 4, 9), 1, 1, (False, False, False)),
]


@pytest.mark.parametrize(("shape", "width", "widening", "pools"), CASES)
def test_it_is_the_same_network_built_of_torch_layers(
    shape: Shape, width: int, widening: int, pools: tuple[bool, ...]
) -> None:
    net = ResNet(shape, width, widening=widening)
    params = shaken(net.init(seeded(), 7, torch.float64))
    reference, images = Reference(params, pools).train(), pictures(6, shape)
    torch.testing.assert_close(net(params, images), reference(images).detach(), rtol=1e-10, atol=1e-10)
    levels = torch.cat(reference.levels, 1).detach()
    torch.testing.assert_close(net.levels(params, images), levels, rtol=1e-10, atol=1e-10)
    assert [level.shape[1] for level in reference.levels] == [net.filters(stage) for stage in range(net.blocks)]


@pytest.mark.parametrize(("shape", "width", "widening", "pools"), CASES)
def test_its_gradient_is_that_of_the_torch_layers(
    shape: Shape, width: int, widening: int, pools: tuple[bool, ...]
) -> None:
    net = ResNet(shape, width, widening=widening)
    params = shaken(net.init(seeded(), 3, torch.float64))
    reference, images, labels = Reference(params, pools).train(), pictures(5, shape), torch.arange(5) % 3
    found, value = gradient_of(Classify(net), params, params, (images, labels, even(5, images)))
    loss = F.cross_entropy(reference(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(value, loss.detach())
    for number, layer in enumerate(reference.layers):
        assert isinstance(layer, Layer)
        for name, leaf in zip(("conv{}.weight", "norm{}.scale", "norm{}.shift"), layer.parameters(), strict=True):
            torch.testing.assert_close(found[name.format(number)], leaf.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found["head.weight"], reference.head.weight.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("shape", "width", "widening", "pools"), CASES)
def test_measured_it_judges_as_the_torch_layers_do_in_use(
    shape: Shape, width: int, widening: int, pools: tuple[bool, ...]
) -> None:
    """PyTorch's variance over batches is of a sample, one pixel fewer in the denominator."""
    net = ResNet(shape, width, widening=widening)
    params = shaken(net.init(seeded(), 4, torch.float64))
    batches = [pictures(40, shape, seed) for seed in range(3)]
    measured = net.measured(params, batches)
    assert {name: tuple(tensor.shape) for name, tensor in measured.items()} == net.kept(4)
    reference = Reference(params, pools).train()
    for batch in batches:
        reference(batch)
    reference.eval()
    for number, (_, _, pixels) in enumerate(net.convolutions()):
        norm = reference.layers[number][1]  # type: ignore[index]
        norm.running_var *= (40 * pixels - 1) / (40 * pixels)
    images = pictures(5, shape, 9)
    torch.testing.assert_close(net(measured, images), reference(images).detach(), rtol=1e-9, atol=1e-9)


def test_measured_it_judges_an_image_by_itself_and_in_training_it_does_not() -> None:
    net = ResNet((1, 8, 8), 4)
    params = shaken(net.init(seeded(), 3, torch.float64))
    images = pictures(6, (1, 8, 8))
    assert not torch.allclose(net(params, images)[:2], net(params, images[:2]), atol=1e-3)
    measured = net.measured(params, [images])
    torch.testing.assert_close(net(measured, images)[:2], net(measured, images[:2]))
    torch.testing.assert_close(net(measured, images), net(params, images))  # on what it was measured on


def test_a_network_that_goes_on_forgets_what_was_measured_and_keeps_the_rest() -> None:
    net = ResNet((1, 8, 8), 4)
    params = net.init(seeded(), 3)
    measured = net.measured(params, [torch.rand(6, 1, 8, 8)])
    for outputs in (3, 5):
        grown = net.grow(measured, outputs, seeded(1))
        assert {name: tuple(tensor.shape) for name, tensor in grown.items()} == net.shapes(outputs)
        assert all(torch.equal(grown[name][: len(tensor)], tensor) for name, tensor in params.items())


@pytest.mark.parametrize(
    ("shape", "count", "size"),
    [
        ((3, 32, 32), 170, (16, 16)),
        ((1, 28, 28), 130, (14, 14)),
        ((1, 8, 8), 32, (8, 8)),
        ((3, 32, 32), 600, (32, 32)),
        ((1, 9, 9), 9, (5, 5)),
        ((1, 6, 6), 3, (6, 6)),
    ],
)
def test_it_computes_on_half_the_pixels_a_side_where_these_have_all_it_sees(
    shape: Shape, count: int, size: tuple[int, int]
) -> None:
    net = ResNet(shape, 4, frequencies=Frequencies(shape, count))
    assert net.size == size
    assert net.convolutions()[0] == (shape[0], 2, size[0] * size[1])
    params, images = net.init(seeded(), 2, torch.float64), pictures(3, shape)
    assert net.frequencies is not None
    torch.testing.assert_close(net(params, images), net(params, net.frequencies.through(images)))


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 12), st.integers(4, 12), st.integers(1, 3), st.data())
def test_resized_pictures_are_the_same_cosines_on_fewer_pixels(
    height: int, width: int, channels: int, data: st.DataObject
) -> None:
    """Enlarged again by their own cosine transform, they are what was left of the picture."""
    few = Frequencies((channels, height, width), data.draw(st.integers(1, height * width)))
    size = (data.draw(st.integers(1, height)), data.draw(st.integers(1, width)))
    if not few.fits(size):
        return
    images = pictures(2, (channels, height, width))
    small = few.resized(images, size)
    rows, columns = (transform(side) for side in size)
    padded = torch.zeros(2, channels, height, width, dtype=torch.float64)
    padded[:, :, : size[0], : size[1]] = rows @ small @ columns.T * (height * width / (size[0] * size[1])) ** 0.5
    again = transform(height).T @ padded @ transform(width)
    torch.testing.assert_close(again, few.through(images), rtol=1e-9, atol=1e-9)


def transform(side: int) -> Tensor:
    """SciPy's cosine transform as a matrix."""
    from scipy.fft import dct

    return torch.from_numpy(dct(torch.eye(side, dtype=torch.float64).numpy(), axis=0, norm="ortho"))


def test_its_kernels_start_as_those_of_torch_do() -> None:
    net = ResNet((3, 32, 32), 64)
    kernel = net.init(seeded(), 10)["conv2.weight"]
    limit = (9 * 64) ** -0.5
    assert kernel.shape == (64, 64, 3, 3)
    assert limit * 0.99 < kernel.abs().max() <= limit
    assert abs(kernel.mean()) < 0.02 * limit
    other = nn.Conv2d(64, 64, 3).weight.detach()
    assert abs(float(kernel.std() / other.std()) - 1) < 0.02


@pytest.mark.parametrize(("shape", "width", "widening", "pools"), CASES[:4])
def test_the_operations_counted_are_those_computed(
    shape: Shape, width: int, widening: int, pools: tuple[bool, ...]
) -> None:
    net = ResNet(shape, width, widening=widening)
    params, images = net.init(seeded(), 5), torch.rand(3, *shape)
    with FlopCounterMode(display=False) as counter:
        gradient_of(Classify(net), params, params, (images, torch.zeros(3, dtype=torch.int64), even(3, images)))
    assert counter.get_total_flops() == 3 * work.per_image(net, 5, work.GRADIENT)
    assert len(pools) == net.blocks


@pytest.mark.parametrize("count", [1, 20, 100, 128, 130])
def test_a_batch_is_dealt_out_evenly_and_nothing_is_added(count: int) -> None:
    """The gradient is the sum of those of the parts, each normalised over itself; each part has some of every place."""
    net = ResNet((1, 8, 8), 4)
    params = shaken(net.init(seeded(), 3, torch.float64))
    images, labels = pictures(count, (1, 8, 8)), torch.arange(count) % 3
    weights = even(count, images)
    found, value = Engine().gradient(Classify(net), params, (images, labels, weights))
    parts = max(1, round(count / 64))
    total = 0.0
    expected = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for first in range(parts):
        part = slice(first, None, parts)
        leaves, loss = gradient_of(Classify(net), params, params, (images[part], labels[part], weights[part]))
        expected = {name: tensor + leaves[name] for name, tensor in expected.items()}
        total += float(loss)
    assert float(value) == pytest.approx(total)
    assert all(torch.allclose(found[name], tensor) for name, tensor in expected.items())


def test_behind_a_margin_it_computes_on_what_is_inside() -> None:
    whole = ResNet((3, 22, 30), 4, frequencies=Frequencies((3, 22, 30), 40, margin=3))
    cut = ResNet((3, 16, 24), 4, frequencies=Frequencies((3, 16, 24), 40))
    assert whole.size == cut.size == (8, 12)
    params = whole.init(torch.Generator().manual_seed(0), 4)
    images = torch.rand(5, 3, 22, 30)
    torch.testing.assert_close(whole(params, images), cut(params, images[:, :, 3:-3, 3:-3]))


def test_compiled_it_computes_the_same() -> None:
    net = ResNet((3, 16, 16), 32, 2, widening=2, frequencies=Frequencies((3, 16, 16), 40))
    params = {name: tensor.float() for name, tensor in shaken(net.init(seeded(), 3)).items()}
    images, labels = pictures(96, (3, 16, 16)).float(), torch.arange(96) % 3
    batch = (images, labels, even(96, images))
    graphs = Graphs()
    exact = {name: tensor.double() for name, tensor in params.items()}
    plain, value = Engine().gradient(Classify(net), exact, (images.double(), labels, even(96, images.double())))
    compiled, same = Engine(graphs=graphs).gradient(Classify(net), params, batch)
    assert not graphs.failed
    assert float(same) == pytest.approx(float(value), rel=1e-4)
    for name, tensor in plain.items():
        assert (compiled[name] - tensor).norm() < 1e-4 * tensor.norm(), name
    measured = net.measured(params, [images])
    torch.testing.assert_close(
        Engine(graphs=graphs).logits(net, measured, images[:70]), net(measured, images[:70]), rtol=1e-3, atol=1e-3
    )


def test_trained_it_comes_out_measured_on_pictures_it_was_trained_on() -> None:
    """And whoever measures it again, from the same last state, finds the same."""
    net = ResNet((1, 8, 8), 8)
    pixels = torch.randint(0, 100, (60, 1, 8, 8), generator=seeded(), dtype=torch.uint8)
    pixels[30:] += 100
    labels = torch.arange(60) // 30
    engine, shown = Engine(), Pictures(pixels, labels, 32)
    job = Trainer(
        lambda generator: net.init(generator, 2),
        shown,
        lambda params, batch: engine.gradient(Classify(net), params, batch),
        20,
        0.05,
        seeded(1),
        style=Style(momentum=0.9, average=0.9, cosine=True, warm=0.1),
        settle=lambda params, draws: net.measured(params, (shown.take(drawn)[0] for drawn in draws)),
    )
    state = drive({"job": job})["job"]
    params = job.finish(state)
    assert {name: tuple(tensor.shape) for name, tensor in params.items()} == net.kept(2)
    again = job.finish(state)
    assert all(torch.equal(again[name], tensor) for name, tensor in params.items())
    images = pixels.float() / 255
    one_by_one = torch.cat([net(params, image[None]) for image in images]).argmax(1)
    assert (one_by_one == labels).float().mean() > 0.95


def test_in_sixteen_bits_it_computes_nearly_the_same() -> None:
    images = pictures(8, (3, 16, 16)).float()
    nets = [ResNet((3, 16, 16), 16, precision=precision) for precision in ("float32", "bfloat16")]
    params = nets[0].init(seeded(), 4)
    exact, rounded = (net(params, images) for net in nets)
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).norm() < 0.05 * exact.norm()
