"""What each saving is worth on this machine: all in one run, on the same inputs, as ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.profiler import ProfilerActivity, profile

from ccmcl import naive, work
from ccmcl.compiling import Graphs
from ccmcl.condense import Condensation, Condenser
from ccmcl.engine import Classify, Engine, Update, even
from ccmcl.errors import InputError, nearest
from ccmcl.kinds import SQUASHED, Composite
from ccmcl.learn import Recipe, Trainer
from ccmcl.loop import State, section
from ccmcl.nets import ConvNet
from ccmcl.optimisers import start
from ccmcl.sources import Replay
from ccmcl.system import keep_freed_memory

OUTPUTS, BUFFERED, LABEL, PICTURES = 10, 5, 5, 1000
SGEMM = 2048
LEARNED_IMAGES, LEARNED_STEPS = 40, 10


@dataclass(frozen=True)
class Case:
    """A place in a run where time is taken: in the middle of the stream, five classes being remembered."""

    shape: tuple[int, int, int]
    components: int
    settings: Condensation
    recipe: Recipe

    @property
    def images(self) -> int:
        """The images remembered of each class."""
        return 2 * self.components


def paper_case(shape: tuple[int, int, int], components: int, outer: int, steps: int) -> Case:
    """The paper's settings at one size of the buffer."""
    return Case(shape, components, Condensation(outer, 10, 10, 1, 256, "rmsprop", 0.01, 0.01), Recipe(steps, 128, 0.01))


CASES = {
    "mnist-20": paper_case((1, 28, 28), 2, 50, 500),
    "cifar10-100": paper_case((3, 32, 32), 10, 100, 1000),
    "digits-20": paper_case((1, 8, 8), 2, 50, 500),
}
ENGINES: dict[str, Callable[[], Engine]] = {
    "+ blocks and kernels": lambda: Engine(once=False, reuse=False, weighting=False),
    "+ real gradient once": lambda: Engine(reuse=False, weighting=False),
    "+ step reuses it": lambda: Engine(weighting=False),
    "+ draws as weights": lambda: Engine(),
    "+ compiled": lambda: Engine(graphs=Graphs(tiles=False)),
    "+ fewer products": lambda: Engine(graphs=Graphs()),
}
"""The savings, each added to those before it."""


@dataclass(frozen=True)
class Row:
    """One way of computing the same thing."""

    name: str
    seconds: float
    ratio: float
    """how many times faster than the naive transcription: the median over the rounds"""
    gflops: float
    """operations that the mathematics needs with all savings, over the time that was taken"""
    share: float
    """the same over what the machine's matrix product achieves just before"""


@dataclass(frozen=True)
class Result:
    """What was measured of one case."""

    case: str
    threads: int
    rounds: int
    sgemm_gflops: float
    operations: int
    condense: list[Row]
    learn: list[Row]
    seconds_per_class: float
    compile_seconds: float
    update_bytes: int
    activation_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Lay it out for JSON."""
        return asdict(self)


def bench(name: str, rounds: int = 5, heard: Callable[[str], None] = lambda _: None) -> Result:
    """Measure one case; ``heard`` is told what is being done."""
    if name not in CASES:
        raise InputError(f"There is nothing called {name!r} to measure: {nearest(name, CASES)}.")
    if rounds < 1:
        raise InputError(f"At least one round is needed, not {rounds}.")
    keep_freed_memory()
    case = CASES[name]
    net = ConvNet(case.shape)
    ways: dict[str, Callable[[], object]] = {
        "naive": as_it_comes(naive_iteration(case)),
        "+ freed memory kept": naive_iteration(case),
    }
    lessons: dict[str, Callable[[], object]] = {
        "naive": as_it_comes(naive_steps(case)),
        "+ freed memory kept": naive_steps(case),
    }
    for label, make in ENGINES.items():
        ways[label] = iteration(case, make())
    lessons["+ blocks, draws as weights"] = steps(case, Engine())
    lessons |= {label: steps(case, ENGINES[label]()) for label in ("+ compiled", "+ fewer products")}
    heard(f"{name}: compiling")
    for label in ("+ compiled", "+ fewer products"):
        begun = time.perf_counter()
        ways[label]()
        lessons[label]()
        compiled = time.perf_counter() - begun
    rates: list[float] = []
    operations = work.inner_iteration(net, OUTPUTS, case.settings, case.images, BUFFERED * case.images)
    learned = work.learning(net, OUTPUTS, Recipe(LEARNED_STEPS, 1, 1.0), [LEARNED_IMAGES])
    condense = measured(ways, operations, rounds, rates, lambda text: heard(f"{name}: condensing, {text}"))
    learn = measured(lessons, learned, rounds, rates, lambda text: heard(f"{name}: learning, {text}"))
    return Result(
        name,
        torch.get_num_threads(),
        rounds,
        statistics.median(rates) / 1e9,
        operations,
        condense,
        learn,
        case.settings.outer * case.settings.inner * condense[-1].seconds,
        compiled,
        update_bytes(case, Graphs()),
        activation_bytes(case),
    )


def measured(
    ways: dict[str, Callable[[], object]],
    operations: int,
    rounds: int,
    rates: list[float],
    heard: Callable[[str], None],
) -> list[Row]:
    """Take the time of every way in every round, the machine's own rate just before each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            heard(f"round {number + 1} of {rounds}: {name}")
            if number == 0:
                way()
            rates.append(sgemm_rate())
            seconds[name].append(timed(way))
            shares[name].append(operations / seconds[name][-1] / rates[-1])
    baseline = seconds["naive"]
    return [
        Row(
            name,
            statistics.median(seconds[name]),
            statistics.median(a / b for a, b in zip(baseline, seconds[name], strict=True)),
            operations / statistics.median(seconds[name]) / 1e9,
            statistics.median(shares[name]),
        )
        for name in ways
    ]


def as_it_comes(way: Callable[[], object]) -> Callable[[], object]:
    """Compute something with the memory handled as the C library does it unasked."""

    def plain() -> object:
        keep_freed_memory(False)
        try:
            return way()
        finally:
            keep_freed_memory()

    return plain


def timed(way: Callable[[], object]) -> float:
    """Take the time of one call."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def sgemm_rate() -> float:
    """Measure the operations a second of the machine's single-precision matrix product."""
    a, b = (torch.rand(SGEMM, SGEMM, generator=seeded(place)) for place in (0, 1))
    return 2 * SGEMM**3 / statistics.median(timed(lambda: a @ b) for _ in range(5))


def seeded(seed: int) -> Generator:
    """Make a random stream."""
    return Generator().manual_seed(seed)


def inputs(case: Case) -> tuple[Tensor, Composite, Tensor, Tensor]:
    """Make the pictures of a class, the start of its memory, and the images and labels of the buffer."""
    pixels = torch.randint(256, (PICTURES, *case.shape), generator=seeded(0), dtype=torch.uint8)
    memory = Composite.draw(seeded(1), case.components, case.shape, torch.float32, case.images)
    buffer = torch.rand(BUFFERED * case.images, *case.shape, generator=seeded(2))
    return pixels, memory, buffer, torch.arange(BUFFERED).repeat_interleave(case.images)


def naive_net(case: Case) -> naive.Net:
    """Make the reference's network."""
    net = ConvNet(case.shape)
    return naive.Net(*case.shape, filters=net.width, blocks=net.blocks, outputs=OUTPUTS, dtype=torch.float32)


def naive_iteration(case: Case) -> Callable[[], object]:
    """One inner iteration of the naive transcription."""
    pixels, memory, buffer, labels = inputs(case)
    net, settings = naive_net(case), case.settings

    def way() -> object:
        return naive.algorithm_1(
            net,
            pixels,
            LABEL,
            list(memory.tensors().values()),
            (buffer, labels),
            seeded(3),
            outer=1,
            inner=1,
            matching=settings.matching,
            training=settings.training,
            batch=settings.batch,
            rate=settings.rate,
            network_rate=settings.network_rate,
            optimiser=settings.optimiser,
        )

    return way


def condenser(case: Case, engine: Engine) -> Condenser:
    """Make the library's job on the same inputs."""
    pixels, memory, buffer, labels = inputs(case)
    net = ConvNet(case.shape)
    return Condenser(net, OUTPUTS, LABEL, pixels, memory, buffer, labels, case.settings, seeded(3), engine=engine)


def iteration(case: Case, engine: Engine) -> Callable[[], object]:
    """One inner iteration of the library, from the beginning of a network."""
    job = condenser(case, engine)
    state = job.init()
    return lambda: job.step(state)


def naive_steps(case: Case) -> Callable[[], object]:
    """Some steps of Algorithm 2 by the naive transcription."""
    images, labels = lesson(case)
    net, recipe = naive_net(case), case.recipe
    return lambda: naive.algorithm_2(
        net, images, labels, seeded(4), steps=LEARNED_STEPS, batch=recipe.batch, rate=recipe.rate
    )


def steps(case: Case, engine: Engine) -> Callable[[], object]:
    """The same steps by the library."""
    images, labels = lesson(case)
    net, recipe = ConvNet(case.shape), case.recipe
    judge = Classify(net)

    def way() -> State:
        job = Trainer(
            lambda generator: net.init(generator, OUTPUTS),
            Replay(images, labels, recipe.batch, engine.weighting),
            lambda params, batch: engine.gradient(judge, params, batch),
            LEARNED_STEPS,
            recipe.rate,
            seeded(4),
        )
        state = job.init()
        while int(state["step"]) < LEARNED_STEPS:
            state, _ = job.step(state)
        return state

    return way


def lesson(case: Case) -> tuple[Tensor, Tensor]:
    """Make a buffer to learn from."""
    images = torch.rand(LEARNED_IMAGES, *case.shape, generator=seeded(5))
    return images, torch.arange(LEARNED_IMAGES) % OUTPUTS


def update_bytes(case: Case, graphs: Graphs | None) -> int:
    """Measure how much memory one matching update allocates at its peak, beyond what it is given."""
    job = condenser(case, Engine(graphs=graphs))
    state, _ = job.step(job.init())
    params, tensors, slots = (section(state, name) for name in ("network", "memory", "optimiser"))
    images = job.memory.images()
    label = torch.full((), LABEL)
    real, _ = job.engine.gradient(
        Classify(job.net), params, (images, label.expand(len(images)), even(len(images), images))
    )
    update = Update(job.net, SQUASHED, case.settings.optimiser, case.settings.rate)
    job.engine.update(update, params, real, tensors, slots, label)
    assert set(slots) == set(start(case.settings.optimiser, tensors))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        job.engine.update(update, params, real, tensors, slots, label)
    return peak_bytes(watched)


def peak_bytes(watched: profile) -> int:
    """Follow the allocations of a profile and return the most that was held at once."""
    assert watched.profiler is not None
    results = watched.profiler.kineto_results
    assert results is not None
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()  # type: ignore[attr-defined]
        most = max(most, held)
    return most


def activation_bytes(case: Case) -> int:
    """Count what a matching update must hold: of every block what the convolution and the pooling give.

    Both are held twice, once for the images and once for the gradient that is itself differentiated; and that
    gradient is held once.
    """
    net = ConvNet(case.shape)
    _, height, width = case.shape
    total = 0
    for _ in range(net.blocks):
        total += net.width * (height * width + (height // 2) * (width // 2))
        height, width = height // 2, width // 2
    gradient = sum(math.prod(shape) for shape in net.shapes(OUTPUTS).values())
    return 4 * (2 * case.images * total + gradient)
