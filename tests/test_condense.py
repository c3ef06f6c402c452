from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from ccmcl import engine as engine_module
from ccmcl import naive, optimisers
from ccmcl.condense import Condensation, Condenser
from ccmcl.data import load
from ccmcl.engine import Classify, Engine, even, gradient_of, match
from ccmcl.kinds import Composite, Learned, Pixels
from ccmcl.learn import Trainer
from ccmcl.loop import State, drive, generator_for, section
from ccmcl.nets import ConvNet, Params
from ccmcl.objectives import gradient_distance, matched, row_distance
from ccmcl.sources import Replay
from ccmcl.tensor_files import read_tensors, write_tensors

DOUBLE = torch.float64
SHAPES = [(1, 28, 28), (3, 32, 32)]


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def memory_of(kind: str, shape: tuple[int, int, int], count: int = 2) -> Learned:
    if kind == "pixels":
        return Pixels.draw(seeded(1), count, shape, DOUBLE)
    return Composite.draw(seeded(1), count, shape, DOUBLE, images=2 * count)


def twins(shape: tuple[int, int, int], width: int, outputs: int, seed: int = 0) -> tuple[ConvNet, Params, naive.Net]:
    """The library's network and the naive one, with the same weights."""
    net = ConvNet(shape, width)
    reference = naive.Net(*shape, filters=width, blocks=net.blocks, outputs=outputs)
    reference.reinitialise(seeded(seed))
    return net, net.init(seeded(seed), outputs, DOUBLE), reference


def real_gradients(net: ConvNet, params: Params, reference: naive.Net, label: int) -> tuple[Params, list[Tensor]]:
    images = torch.rand(5, *net.shape, generator=seeded(2), dtype=DOUBLE)
    labels = torch.full((5,), label)
    ours, _ = gradient_of(Classify(net), params, params, (images, labels, even(5, images)))
    theirs = torch.autograd.grad(naive.loss_on(reference, images, labels), reference.matched())
    return ours, list(theirs)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("shape", SHAPES, ids=["grey", "colour"])
@pytest.mark.parametrize("kind", ["composite", "pixels"])
def test_objective_and_gradient_equal_the_naive_transcription(kind: str, shape: tuple[int, int, int]) -> None:
    net, params, reference = twins(shape, 16, 10)
    ours, theirs = real_gradients(net, params, reference, label=3)
    memory = memory_of(kind, shape)
    gradients, value = match(net, params, ours, memory.form, memory.tensors(), torch.tensor(3))

    leaves = [tensor.clone().requires_grad_() for tensor in memory.tensors().values()]
    expected = naive.memory_distance(reference, leaves, 3, theirs)
    expected_gradients = torch.autograd.grad(expected, leaves)
    assert value.item() == pytest.approx(expected.item(), rel=1e-10)
    for gradient, wanted in zip(gradients.values(), expected_gradients, strict=True):
        assert relative(gradient, wanted) < 1e-10


@pytest.mark.parametrize("shape", SHAPES, ids=["grey", "colour"])
@pytest.mark.parametrize("kind", ["composite", "pixels"])
def test_gradient_equals_central_finite_differences(kind: str, shape: tuple[int, int, int]) -> None:
    net, params, reference = twins(shape, 8, 10)
    ours, _ = real_gradients(net, params, reference, label=3)
    memory = memory_of(kind, shape)
    tensors = memory.tensors()
    gradients, _ = match(net, params, ours, memory.form, tensors, torch.tensor(3))

    def value(moved: dict[str, Tensor]) -> float:
        return match(net, params, ours, memory.form, moved, torch.tensor(3))[1].item()

    step = 1e-6
    for trial in range(6):
        direction = {
            name: torch.randn(tensor.shape, generator=seeded(10 + trial), dtype=DOUBLE)
            for name, tensor in tensors.items()
        }
        along = sum((gradients[name] * direction[name]).sum().item() for name in tensors)
        ahead = value({name: tensor + step * direction[name] for name, tensor in tensors.items()})
        behind = value({name: tensor - step * direction[name] for name, tensor in tensors.items()})
        assert (ahead - behind) / (2 * step) == pytest.approx(along, rel=1e-5, abs=1e-7)


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    optimiser: str
    rate: float
    training: int
    buffered: bool


@pytest.mark.parametrize(
    "case",
    [
        Case("composite", "rmsprop", 0.01, 1, True),
        Case("composite", "rmsprop", 0.1, 1, False),
        Case("pixels", "rmsprop", 0.01, 1, True),
        Case("composite", "sgd", 0.1, 2, True),
        Case("pixels", "adam", 0.02, 1, True),
    ],
    ids=lambda case: f"{case.kind}-{case.optimiser}-J{case.training}{'-buffer' if case.buffered else ''}",
)
def test_memory_after_three_outer_iterations_equals_the_naive_transcription(case: Case) -> None:
    digits = load("digits").train
    pixels = digits.pixels[digits.labels == 4][:60]
    shape = (1, 8, 8)
    net, _, reference = twins(shape, 8, 10)
    memory = memory_of(case.kind, shape)
    buffer = torch.rand(12, *shape, generator=seeded(5), dtype=DOUBLE)
    buffer_labels = torch.arange(12) % 4
    settings = Condensation(3, 3, 3, case.training, 32, case.optimiser, case.rate, 0.01)
    job = Condenser(
        net,
        10,
        4,
        pixels,
        memory,
        buffer if case.buffered else buffer[:0],
        buffer_labels if case.buffered else buffer_labels[:0],
        settings,
        seeded(7),
        DOUBLE,
    )
    ours = job.finish(drive({"condense": job})["condense"])
    theirs = naive.algorithm_1(
        reference,
        pixels,
        4,
        list(memory.tensors().values()),
        (buffer, buffer_labels) if case.buffered else None,
        seeded(7),
        outer=3,
        inner=3,
        matching=3,
        training=case.training,
        batch=32,
        rate=case.rate,
        network_rate=0.01,
        optimiser=case.optimiser,
    )
    for tensor, wanted, start in zip(ours.tensors().values(), theirs, memory.tensors().values(), strict=True):
        assert (tensor - wanted).abs().max() < 1e-9
        assert (tensor - start).abs().max() > 1e-3, "the memory was not learned at all"


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("weighting", [True, False])
@pytest.mark.parametrize("training", [0, 1, 2])
def test_every_saving_can_be_switched_off_and_none_changes_the_memory(
    once: bool, reuse: bool, weighting: bool, training: int
) -> None:
    shape = (1, 8, 8)
    net, _, reference = twins(shape, 6, 10)
    pixels = torch.randint(256, (30, *shape), generator=seeded(1), dtype=torch.uint8)
    memory = memory_of("composite", shape)
    buffer, labels = torch.rand(9, *shape, generator=seeded(5), dtype=DOUBLE), torch.arange(9) % 3
    settings = Condensation(2, 2, 2, training, 24, "rmsprop", 0.02, 0.01)
    engine = Engine(once=once, reuse=reuse, weighting=weighting)
    job = Condenser(net, 10, 4, pixels, memory, buffer, labels, settings, seeded(7), DOUBLE, engine)
    ours = job.finish(drive({"condense": job})["condense"])
    theirs = naive.algorithm_1(
        reference, pixels, 4, list(memory.tensors().values()), (buffer, labels), seeded(7),
        outer=2, inner=2, matching=2, training=training, batch=24, rate=0.02, network_rate=0.01, optimiser="rmsprop",
    )  # fmt: skip
    for tensor, wanted in zip(ours.tensors().values(), theirs, strict=True):
        assert (tensor - wanted).abs().max() < 1e-9


def test_a_batch_computed_in_blocks_has_the_gradient_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ConvNet((1, 8, 8), 6)
    params = net.init(seeded(0), 4, DOUBLE)
    images = torch.rand(11, 1, 8, 8, generator=seeded(1), dtype=DOUBLE)
    batch = (images, torch.arange(11) % 4, torch.rand(11, generator=seeded(2), dtype=DOUBLE))
    whole, loss = gradient_of(Classify(net), params, params, batch)
    monkeypatch.setattr(engine_module, "block_size", lambda _: 4)
    parts, same_loss = Engine().gradient(Classify(net), params, batch)
    assert abs(loss - same_loss) < 1e-12
    assert all((parts[name] - whole[name]).abs().max() < 1e-12 for name in whole)


def test_a_network_learned_from_the_buffer_equals_the_naive_transcription() -> None:
    shape = (1, 8, 8)
    net, _, reference = twins(shape, 8, 4)
    images = torch.rand(12, *shape, generator=seeded(5), dtype=DOUBLE)
    labels = torch.arange(12) % 4
    job = Trainer(
        lambda generator: net.init(generator, 4, DOUBLE),
        Replay(images, labels, 32),
        partial(Engine().gradient, Classify(net)),
        20,
        0.05,
        seeded(3),
    )
    ours = section(drive({"learn": job})["learn"], "params")
    theirs = naive.algorithm_2(reference, images, labels, seeded(3), steps=20, batch=32, rate=0.05)
    for a, b in zip(ours.values(), in_library_order(theirs, net.blocks), strict=True):
        assert (a - b).abs().max() < 1e-9


def in_library_order(state: dict[str, Tensor], blocks: int) -> list[Tensor]:
    """The naive network's tensors; a bias before a norm has no effect, and none of ours to go with it."""
    layers = [f"{part}.{block}" for block in range(blocks) for part in ("convolutions", "norms")]
    names = [f"{layer}.{leaf}" for layer in [*layers, "head"] for leaf in ("weight", "bias")]
    for block in range(blocks):
        assert state[f"convolutions.{block}.bias"].abs().max() < 1e-12
        names.remove(f"convolutions.{block}.bias")
    return [state[name] for name in names]


def condenser(label: int = 4, seed: int = 7) -> Condenser:
    digits = load("digits").train
    settings = Condensation(2, 3, 2, 1, 32, "rmsprop", 0.05, 0.01)
    net = ConvNet((1, 8, 8), 8)
    return Condenser(
        net,
        10,
        label,
        digits.pixels[digits.labels == label],
        Composite.draw(seeded(seed), 2, (1, 8, 8), torch.float32, 4),
        torch.rand(6, 1, 8, 8, generator=seeded(1)),
        torch.arange(6) % 2,
        settings,
        seeded(seed),
    )


@pytest.mark.parametrize("stop", range(7))
def test_resumed_from_a_file_equals_uninterrupted(stop: int, tmp_path: Path) -> None:
    whole = drive({"condense": condenser()})["condense"]
    job = condenser()
    state: State = job.init()
    for _ in range(stop):
        state, _ = job.step(state)
    write_tensors(tmp_path / "state.safetensors", state, {})
    state, _ = read_tensors(tmp_path / "state.safetensors")
    job = condenser()
    while int(state["step"]) < job.total:
        state, _ = job.step(state)
    assert state.keys() == whole.keys()
    assert all(torch.equal(state[name], whole[name]) for name in whole)


def test_the_step_leaves_its_state_alone() -> None:
    job = condenser()
    state = job.init()
    before = {name: tensor.clone() for name, tensor in state.items()}
    first, loss = job.step(state)
    second, again = job.step(state)
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert loss == again
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_matching_brings_the_gradients_closer() -> None:
    net, params, reference = twins((1, 8, 8), 16, 10)
    real, _ = real_gradients(net, params, reference, label=3)
    memory = memory_of("composite", (1, 8, 8))
    tensors = memory.tensors()
    slots = optimisers.start("rmsprop", tensors)
    distances = []
    for _ in range(60):
        gradients, value = match(net, params, real, memory.form, tensors, torch.tensor(3))
        tensors, slots = optimisers.update("rmsprop", 0.02, tensors, gradients, slots)
        distances.append(value.item())
    assert distances[-1] < 0.7 * distances[0]


def test_distance_is_zero_between_parallel_gradients_and_two_between_opposite_ones() -> None:
    a = torch.randn(4, 3, 3, 3, generator=seeded(0), dtype=DOUBLE)
    assert row_distance(a, 7 * a).item() == pytest.approx(0, abs=1e-12)
    assert row_distance(a, -a).item() == pytest.approx(8)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e-15, 1e-12, 1e-9, 1e-6, 1e6])
def test_gradients_of_any_size_have_a_distance_and_a_derivative(size: float) -> None:
    a = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    b = (size * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))).requires_grad_()
    value = row_distance(size * a, b)
    value.backward()  # type: ignore[no-untyped-call]
    assert b.grad is not None
    assert b.grad.isfinite().all()
    if size > 1e-12:
        assert value.item() == pytest.approx(row_distance(a, b.detach() / size).item(), abs=1e-4)


def test_a_dead_filter_counts_as_unrelated_and_pulls_at_nothing() -> None:
    a = torch.ones(2, 3, dtype=DOUBLE)
    b = torch.stack([torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)]).requires_grad_()
    value = row_distance(a, b)
    (gradient,) = torch.autograd.grad(value, b)
    assert value.item() == pytest.approx(1)
    assert torch.isfinite(gradient).all()
    assert (gradient[0] == 0).all()


def test_biases_and_norms_are_left_out_of_the_distance() -> None:
    params = ConvNet((1, 8, 8), 4).init(seeded(0), 3)
    assert matched(params) == ["conv0.weight", "conv1.weight", "head.weight"]
    same = {name: params[name] for name in matched(params)}
    assert gradient_distance(params, same).item() == pytest.approx(0, abs=1e-5)


def test_each_class_has_its_own_random_stream() -> None:
    draws = {
        tuple(torch.rand(3, generator=generator_for(seed, "condense", 0, label)).tolist())
        for seed in range(3)
        for label in range(5)
    }
    assert len(draws) == 15
