"""No step assumes the CPU. There is no accelerator to try it on, so jobs run on PyTorch's meta device, which has
shapes but no numbers, under a watch that sees every operation and on which device its tensors are."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ccmcl.classifier import _Teller
from ccmcl.compute import Compute, device_of, settle
from ccmcl.condense import Condensation, Condenser
from ccmcl.distribution import Courses, Distribution, Matcher
from ccmcl.engine import Classify, Engine
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.forms import Form
from ccmcl.kinds import Composite, Pixels, formed
from ccmcl.learn import Distil, Trainer
from ccmcl.loop import CPU, State, placed
from ccmcl.nets import ConvNet
from ccmcl.planning import plan_of
from ccmcl.progress import Silent
from ccmcl.residual import ResNet
from ccmcl.sources import Beside, Pictures, Replay, Source, WithLogits

META = torch.device("meta")
SHAPE = (3, 8, 8)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what goes from one device to another, and refuses operations that mix them."""

    moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        before = {tensor.device.type for tensor in tensors if tensor.ndim}
        after = {leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        if len(before | after) > 1:
            assert func is torch.ops.aten._to_copy.default, f"{func} mixes devices"
            self.moved += 1
        return result


def on_device(state: State) -> set[str]:
    return {tensor.device.type for name, tensor in state.items() if name not in ("step", "generator")}


@pytest.mark.parametrize("kind", [Composite, Pixels])
@pytest.mark.parametrize("training", [1, 2])
def test_nothing_is_copied_to_the_device_between_two_networks(kind: type, training: int) -> None:
    if kind is Composite:
        memory: Composite | Pixels = Composite.draw(seeded(0), 2, SHAPE, torch.float32, 4)
    else:
        memory = Pixels.draw(seeded(0), 2, SHAPE, torch.float32)
    job = Condenser(
        ConvNet(SHAPE, 4),
        10,
        3,
        torch.zeros(40, *SHAPE, dtype=torch.uint8, device=META),
        memory,
        torch.zeros(6, *SHAPE, device=META),
        torch.zeros(6, dtype=torch.int64, device=META),
        Condensation(2, 4, 3, training, 16, "adam", 0.01, 0.01),
        seeded(1),
        device=META,
    )
    state = job.init()
    for step in range(job.total):
        with Watch() as watch:  # type: ignore[no-untyped-call]
            state, loss = job.step(state)
        assert on_device(state) == {"meta"}
        assert loss.device == META
        assert (watch.moved > 0) == (step % 4 == 0), "draws and networks come once for each network"


def test_drawing_a_memory_by_features_copies_nothing_but_draws_for_many_steps() -> None:
    net, form = ResNet(SHAPE, 4), Form(bits=8)
    course = Courses.through([placed(net.init(seeded(0), 5), META) for _ in range(2)])
    job = Matcher(
        net,
        3,
        torch.zeros(40, *SHAPE, dtype=torch.uint8, device=META),
        formed(Pixels, {"pixels": torch.rand(6, *SHAPE, generator=seeded(1))}, form),
        course,
        Distribution(0, updates=5, batch=8, distance="levels"),
        True,
        seeded(2),
        device=META,
    )
    state, moves = job.init(), []
    for _ in range(job.total):
        with Watch() as watch:  # type: ignore[no-untyped-call]
            state, _ = job.step(state)
        moves.append(watch.moved)
    assert [step for step, moved in enumerate(moves) if moved] == [0]
    assert on_device(state) == {"meta"}


def sources() -> dict[str, Source]:
    new = Pictures(
        torch.zeros(50, *SHAPE, dtype=torch.uint8, device=META), torch.zeros(50, dtype=torch.int64, device=META), 8
    )
    images, labels = torch.zeros(6, *SHAPE, device=META), torch.zeros(6, dtype=torch.int64, device=META)
    old = Replay(images, labels, 8)
    known = torch.zeros(6, 5, device=META)
    return {
        "replay": old,
        "pictures": new,
        "beside": Beside(new, old),
        "logits": WithLogits(new, images, labels, known, known, 8, 0.5),
    }


@pytest.mark.parametrize("name", ["replay", "pictures", "beside", "logits"])
def test_learning_copies_nothing_to_the_device_but_draws_for_many_steps(name: str) -> None:
    net = ConvNet(SHAPE, 4)
    judge = Distil(net) if name == "logits" else Classify(net)
    gradient = partial(Engine().gradient, judge)
    job = Trainer(lambda generator: net.init(generator, 5), sources()[name], gradient, 60, 0.1, seeded(2), META)
    state = job.init()
    moves = []
    for _ in range(job.total):
        with Watch() as watch:  # type: ignore[no-untyped-call]
            state, _ = job.step(state)
        moves.append(watch.moved)
    assert [step for step, moved in enumerate(moves) if moved] == [0, 50]
    assert on_device(state) == {"meta"}


@pytest.mark.parametrize(("device", "told"), [("cpu", 30), ("meta", 1)])
def test_a_loss_is_read_now_and_then_where_reading_waits(device: str, told: int, monkeypatch: Any) -> None:
    class Counting:
        total, device = 30, torch.device("cpu")

        def init(self) -> State:
            return {"step": torch.tensor(0)}

        def step(self, state: State) -> tuple[State, Tensor]:
            return {"step": state["step"] + 1}, torch.tensor(0.5)

    class Heard(Silent):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
            self.steps.append(done)

    monkeypatch.setattr("ccmcl.loop.TELL_SECONDS", 3600.0)
    job, heard = Counting(), Heard()
    job.device = torch.device(device)
    assert int(_Teller(heard)({"learn": job})["learn"]["step"]) == 30
    assert len(heard.steps) == told
    assert heard.steps[-1] == 30


def test_a_state_comes_back_to_its_device_without_its_step_and_random_stream() -> None:
    state = {"step": torch.tensor(3), "generator": torch.zeros(4, dtype=torch.uint8), "params.a": torch.zeros(2)}
    there = placed(state, META)
    assert {name: tensor.device.type for name, tensor in there.items()} == {
        "step": "cpu",
        "generator": "cpu",
        "params.a": "meta",
    }


def test_a_device_that_is_not_here_is_a_mistake() -> None:
    assert device_of("cpu") == "cpu"
    assert torch.device(device_of("auto")).type in ("cpu", "cuda", "mps")
    for name, here in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if not here:
            with pytest.raises(InputError, match=f"no {name} device"):
                device_of(name)
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        Compute(device="cud")
    with pytest.raises(InputError, match="known: auto, on, off"):
        Compute(compile="perhaps")
    with pytest.raises(InputError, match="workers"):
        Compute(workers=0)


def test_compiling_and_workers_are_for_long_work() -> None:
    groups = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    short = plan_of(Experiment.of(dataset="digits", preset="fast"), (1, 8, 8), 10)
    long = plan_of(Experiment.of(dataset="cifar10", preset="paper", budget="100"), (3, 32, 32), 10)
    assert not settle(Compute(), short, "composite", groups).compiled
    assert settle(Compute(), long, "composite", groups).compiled
    assert settle(Compute(), long, "rehearsal", groups).workers == 1
    assert settle(Compute(workers=7), long, "composite", groups).workers == 2, "there are but two classes at a time"
    assert settle(Compute(), long, "composite", groups, begun="none").code == "none"
    assert settle(Compute(), short, "composite", groups, begun="tiles").code == "tiles"
    assert settle(Compute(), long, "composite", groups, begun="magic").compiled, "a damaged note is none"
    assert not settle(Compute("off"), long, "composite", groups).compiled
    assert settle(Compute("on"), short, "composite", groups).compiled


def test_convolutions_in_sixteen_bits_are_close_and_everything_else_stays_in_thirty_two() -> None:
    images = torch.rand(4, 1, 16, 16, generator=seeded(0))
    full, half = ConvNet((1, 16, 16), 32), ConvNet((1, 16, 16), 32, precision="bfloat16")
    params = full.init(seeded(1), 5)
    batch = (images, torch.arange(4), torch.full((4,), 0.25))
    exact, _ = Engine().gradient(Classify(full), params, batch)
    rounded, _ = Engine().gradient(Classify(half), params, batch)
    for name, gradient in rounded.items():
        assert gradient.dtype == torch.float32
        assert gradient.device == CPU
        cosine = torch.cosine_similarity(gradient.flatten(), exact[name].flatten(), dim=0)
        assert cosine > 0.99
    assert any(not torch.equal(rounded[name], exact[name]) for name in exact)
    with pytest.raises(InputError, match="precision"):
        ConvNet((1, 8, 8), precision="float8")
