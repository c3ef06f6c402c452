"""Compiled code computes what plain code does, is compiled rarely, and is done without where it cannot be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from torch._inductor import codecache

from ccmcl import compiling, naive
from ccmcl.compiling import CACHE_VARIABLE, Graphs, code_folder, keep_compiled, private
from ccmcl.compute import Compute
from ccmcl.condense import Condensation, Condenser
from ccmcl.engine import Classify, Engine, block_size, capacity, gradient_of, widened
from ccmcl.experiment import Experiment
from ccmcl.kinds import Composite
from ccmcl.learn import Distil, Trainer
from ccmcl.loop import drive, section
from ccmcl.nets import ConvNet
from ccmcl.running import run
from ccmcl.sources import Replay
from ccmcl.store import RunFolder

DOUBLE = torch.float64
SHAPE = (1, 8, 8)


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def tiny(**settings: object) -> Experiment:
    given = {
        "preset": "paper",
        "budget": "20",
        "width": 8,
        "outer": 2,
        "inner": 2,
        "matching": 2,
        "condense_batch": 32,
        "steps": 4,
    }
    return Experiment.of(**{**given, **settings})  # type: ignore[arg-type]


def outcome(folder: RunFolder) -> list[bytes]:
    return [path.read_bytes() for path in (folder.memory_file, folder.network_file, folder.result_file)]


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return Graphs()


def test_a_compiled_run_in_double_precision_gives_the_memory_of_the_naive_transcription(graphs: Graphs) -> None:
    net = ConvNet(SHAPE, 8)
    reference = naive.Net(*SHAPE, filters=8, blocks=net.blocks, outputs=10)
    memory = Composite.draw(seeded(1), 2, SHAPE, DOUBLE, images=4)
    pixels = torch.randint(256, (60, *SHAPE), generator=seeded(2), dtype=torch.uint8)
    buffer, labels = torch.rand(12, *SHAPE, generator=seeded(5), dtype=DOUBLE), torch.arange(12) % 4
    settings = Condensation(2, 3, 3, 1, 40, "rmsprop", 0.01, 0.01)
    job = Condenser(
        net, 10, 4, pixels, memory, buffer, labels, settings, seeded(7), DOUBLE, engine=Engine(graphs=graphs)
    )
    ours = job.finish(drive({"condense": job})["condense"])
    theirs = naive.algorithm_1(
        reference, pixels, 4, list(memory.tensors().values()), (buffer, labels), seeded(7),
        outer=2, inner=3, matching=3, training=1, batch=40, rate=0.01, network_rate=0.01, optimiser="rmsprop",
    )  # fmt: skip
    assert not graphs.failed
    assert len(graphs.used) == 2, "one block size is enough here, and the update"
    for found, expected, start in zip(ours.tensors().values(), theirs, memory.tensors().values(), strict=True):
        assert (found - expected).abs().max() < 1e-9
        assert (found - start).abs().max() > 1e-3


def test_a_compiled_learner_in_double_precision_is_the_naive_one() -> None:
    graphs, net = Graphs(), ConvNet(SHAPE, 8)
    images, labels = torch.rand(12, *SHAPE, generator=seeded(5), dtype=DOUBLE), torch.arange(12) % 4
    gradient = partial(Engine(graphs=graphs).gradient, Classify(net))
    job = Trainer(
        lambda generator: net.init(generator, 4, DOUBLE), Replay(images, labels, 32), gradient, 20, 0.05, seeded(3)
    )
    ours = section(drive({"learn": job})["learn"], "params")
    reference = naive.Net(*SHAPE, filters=8, blocks=net.blocks, outputs=4)
    theirs = naive.algorithm_2(reference, images, labels, seeded(3), steps=20, batch=32, rate=0.05)
    Engine(graphs=graphs).gradient(
        Classify(net), net.init(seeded(1), 10, DOUBLE), Replay(images, labels, 32).take(torch.arange(32) % 12)
    )
    assert not graphs.failed
    assert len(graphs.used) == 1, "four outputs need no graph of their own"
    for name, expected in (("conv0.weight", "convolutions.0.weight"), ("head.weight", "head.weight")):
        assert (ours[name] - theirs[expected]).abs().max() < 1e-9


def test_compiled_logits_are_those_of_the_network(graphs: Graphs) -> None:
    net = ConvNet(SHAPE, 8)
    params = net.init(seeded(0), 4, DOUBLE)
    for count in (3, 40):
        images = torch.rand(count, *SHAPE, generator=seeded(1), dtype=DOUBLE)
        found = Engine(graphs=graphs).logits(net, params, images)
        assert found.shape == (count, 4)
        assert (found - net(params, images)).abs().max() < 1e-12
    assert not graphs.failed


def test_arguments_that_were_one_tensor_at_first_may_differ_later(graphs: Graphs) -> None:
    one = torch.ones(3)
    assert graphs(torch.sub, one, one).tolist() == [0.0] * 3
    assert graphs(torch.sub, torch.full((3,), 5.0), one).tolist() == [4.0] * 3
    assert not graphs.failed


@pytest.mark.parametrize("method", ["composite", "bic"])
def test_a_whole_run_of_five_experiences_needs_few_graphs(method: str, tmp_path: Path) -> None:
    before = len(compiling.READY)
    folder = run(tiny(method=method), tmp_path, compute=Compute(compile="on", workers=1))
    assert folder.finished
    assert folder.cost()["engine"]["compiled"]
    assert 1 <= len(compiling.READY) - before <= 6


def test_an_interrupted_compiled_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    class Stopping:
        heard = 0

        def begin(self, title: str, steps: object) -> None: ...
        def line(self, text: str) -> None: ...
        def end(self) -> None: ...
        def step(self, *_: object) -> None:
            self.heard += 1
            if self.heard > 7:
                raise KeyboardInterrupt

    compute = Compute(compile="on", workers=1)
    whole = run(tiny(), tmp_path / "whole", compute=compute)
    stops = 0
    while True:
        try:
            pieces = run(tiny(), tmp_path / "pieces", reporter=Stopping(), checkpoint_seconds=0, compute=compute)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 5
    assert outcome(pieces) == outcome(whole)


def test_a_run_goes_on_as_it_was_begun(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stop:
        def begin(self, title: str, steps: object) -> None: ...
        def line(self, text: str) -> None:
            raise KeyboardInterrupt

        def end(self) -> None: ...
        def step(self, *_: object) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run(tiny(), tmp_path, reporter=Stop(), compute=Compute(compile="off", workers=1))
    folder = run(tiny(), tmp_path, compute=Compute(compile="on", workers=1))
    assert not folder.cost()["engine"]["compiled"]
    assert "begun with --compile off" in caplog.text
    assert outcome(folder) == outcome(run(tiny(), tmp_path / "b", compute=Compute(compile="off", workers=1)))


def test_where_compiling_fails_one_line_says_so_and_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the compiler\nis broken")

    monkeypatch.setattr(compiling, "compile_graph", broken)
    monkeypatch.setattr(compiling, "READY", {})
    with caplog.at_level(logging.WARNING):
        fallen = run(tiny(), tmp_path / "a", compute=Compute(compile="on", workers=1))
    assert [record.getMessage() for record in caplog.records] == ["Cannot compile (the compiler); going on without."]
    assert outcome(fallen)[0] == outcome(run(tiny(), tmp_path / "b", compute=Compute(compile="off", workers=1)))[0]


def test_without_a_compiler_the_program_says_so_once_and_goes_on(tmp_path: Path) -> None:
    arguments = [
        "run",
        "--preset",
        "paper",
        "--width",
        "4",
        "--steps",
        "2",
        "--outer",
        "1",
        "--inner",
        "1",
        "--matching",
        "1",
        "--per-experience",
        "5",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ccmcl.cli", *arguments, "--compile", "on", "--out", str(tmp_path), "--quiet"],
        env={**{k: v for k, v in os.environ.items() if k != "CXX"}, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("\n") == 1
    assert "no C++ compiler" in done.stderr
    assert "accuracy" in done.stdout


def test_outputs_that_are_shut_change_nothing() -> None:
    net = ConvNet(SHAPE, 4)
    params = net.init(seeded(0), 3, DOUBLE)
    batch = (torch.rand(5, *SHAPE, generator=seeded(1), dtype=DOUBLE), torch.arange(5) % 3, torch.full((5,), 0.2))
    batch = (*batch[:2], batch[2].double())
    narrow, value = gradient_of(Classify(net), params, params, batch)
    wide_params = widened(params, capacity(3))
    wide, same_value = gradient_of(Classify(net), wide_params, wide_params, batch)
    assert torch.equal(value, same_value)
    for name in params:
        torch.testing.assert_close(wide[name][: len(narrow[name])], narrow[name], rtol=1e-13, atol=1e-13)
    assert not wide["head.weight"][3:].any()
    assert not wide["head.bias"][3:].any()


def test_filling_up_a_block_adds_nothing_to_what_is_distilled() -> None:
    net = ConvNet(SHAPE, 4)
    params = net.init(seeded(0), 4, DOUBLE)
    logits = torch.randn(5, 4, generator=seeded(2), dtype=DOUBLE)
    known = (torch.arange(4) < torch.tensor([[2], [2], [4], [3], [0]])).double()
    weights = torch.full((5,), 0.1, dtype=DOUBLE)
    batch: tuple[Tensor, ...] = (
        torch.rand(5, *SHAPE, generator=seeded(1), dtype=DOUBLE),
        torch.arange(5) % 4,
        weights,
        logits,
        known,
        weights,
    )
    judge = Distil(net)
    filled = tuple(torch.cat([part, torch.zeros_like(part)]) for part in judge.widened(batch, 10))
    value = judge(params, *batch)
    assert torch.allclose(judge(widened(params, 10), *filled), value, rtol=1e-13)


def test_blocks_follow_the_size_of_the_pictures() -> None:
    assert [block_size(ConvNet((1, side, side), 4)) for side in (8, 28, 32, 64, 400)] == [256, 32, 32, 8, 4]


def test_code_is_kept_beside_the_data_unless_a_folder_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCMCL_CACHE", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "chosen"))
    keep_compiled()
    assert code_folder() == tmp_path / "chosen"
    monkeypatch.delenv(CACHE_VARIABLE)
    keep_compiled()
    assert code_folder() == tmp_path / "compiled"


def test_headers_are_kept_with_the_code(graphs: Graphs) -> None:
    before = codecache._HEADER_DIR
    assert graphs(torch.mul, torch.full((5,), 3.0), torch.full((5,), 2.0)).tolist() == [6.0] * 5
    assert not graphs.failed
    folder = code_folder()
    assert folder is not None
    assert list((folder / "headers").glob("*.gch"))
    assert before == codecache._HEADER_DIR


def test_without_a_folder_of_our_own_code_is_kept_in_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled").chmod(0o777)
    monkeypatch.setenv("CCMCL_CACHE", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    keep_compiled()
    folder = code_folder()
    assert folder is not None
    assert folder != tmp_path / "compiled"
    assert private(folder)
    assert not list(folder.iterdir())


def test_code_is_not_kept_where_others_can_write(tmp_path: Path) -> None:
    assert private(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert not private(tmp_path / "open")
    (tmp_path / "file").write_text("")
    assert not private(tmp_path / "file")
