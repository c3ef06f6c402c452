"""Classes condensed side by side by real processes: the same result, whoever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ccmcl.compute import Compute
from ccmcl.errors import StorageError
from ccmcl.experiment import Experiment
from ccmcl.progress import Silent
from ccmcl.running import Stopped, run
from ccmcl.store import RunFolder
from ccmcl.workers import WorkerError, Workers

SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "width": 16,
    "outer": 2,
    "inner": 4,
    "matching": 4,
    "condense_batch": 64,
    "steps": 3,
    "budget": "20",
}


def experiment(**given: Any) -> Experiment:
    return Experiment.of(**{**SETTINGS, "order": "0,1,2,3,4,5", "per_experience": "3", **given})


def outcome(folder: RunFolder) -> list[bytes]:
    return [path.read_bytes() for path in (folder.memory_file, folder.network_file, folder.result_file)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(experiment(), tmp_path_factory.mktemp("alone"), compute=Compute("off", "cpu", 1))


class Watching(Silent):
    """Notes every step, and calls somebody at one of them."""

    def __init__(self, at: int = -1, act: Any = None) -> None:
        self.names: list[str] = []
        self.at, self.act = at, act

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        self.names.append(name)
        if len(self.names) == self.at:
            self.act()


def processes() -> list[list[str]]:
    listing = subprocess.run(["ps", "-eo", "pid,ppid,stat,args"], capture_output=True, text=True, check=True).stdout
    return [line.split(None, 3) for line in listing.splitlines()[1:]]


def children(parent: int | None = None) -> list[int]:
    """The worker processes of a process that are alive."""
    of = str(parent or os.getpid())
    return [int(row[0]) for row in processes() if row[1] == of and "ccmcl.worker" in row[3] and "Z" not in row[2]]


def alive(numbers: list[int]) -> list[int]:
    return [int(row[0]) for row in processes() if int(row[0]) in numbers and "Z" not in row[2]]


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_does_not_change_the_result(workers: int, tmp_path: Path, alone: RunFolder) -> None:
    watching = Watching()
    folder = run(experiment(), tmp_path, reporter=watching, compute=Compute("off", "cpu", workers))
    assert outcome(folder) == outcome(alone)
    assert folder.cost()["engine"]["workers"] == workers
    assert {name for name in watching.names if name.startswith("condense")} == {
        f"condense {label // 3}-{label}" for label in range(6)
    }
    assert not children(), "a run takes its workers with it"


def test_experts_are_shared_by_the_workers_that_condense(tmp_path: Path) -> None:
    settings = {"objective": "distribution", "recipe": "strong", "start": "real", "squash": "no", "bits": 8}
    one = experiment(**settings, expert_steps=4, updates=4, labels="soft", condense_optimiser="adam")
    results = [
        outcome(run(one, tmp_path / str(workers), compute=Compute(compile="off", workers=workers)))
        for workers in (1, 2)
    ]
    assert results[0] == results[1]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def by_its_own_course(**given: Any) -> Experiment:
    """Five images of each class: a product of so few is rounded otherwise by two threads than by one."""
    small = {"updates": 4, "steps": 8, "width": 16, "condense_batch": 16, "order": "0,1,2,3", "budget": "184B/class"}
    return Experiment.of(**{"preset": "fast", **small, **given})


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("experts", [0, 2])
def test_networks_that_show_the_way_are_shared_by_the_workers_that_condense(tmp_path: Path, experts: int) -> None:
    one = by_its_own_course(experts=experts)
    results = [
        outcome(run(one, tmp_path / str(workers), compute=Compute(compile="off", workers=workers)))
        for workers in (1, 2)
    ]
    assert results[0] == results[1]


@pytest.mark.usefixtures("two_threads")
def test_several_networks_are_the_same_by_whomever_they_are_trained(tmp_path: Path) -> None:
    one = by_its_own_course(networks=3, order="0,1")
    alone = run(one, tmp_path / "alone", compute=Compute("off", "cpu", 1))
    watching = Watching()
    beside = run(one, tmp_path / "beside", None, watching, compute=Compute("off", "cpu", 2))
    assert outcome(beside) == outcome(alone)
    assert {name for name in watching.names if name.startswith("learn")} == {
        "learn 0",
        "learn 0-1",
        "learn 0-2",
    }


@pytest.mark.usefixtures("two_threads")
def test_convolutions_by_tiles_are_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccmcl.compute.WORTH_TILES", 0)
    one, results = by_its_own_course(width=32, order="0,1"), []
    for workers in (1, 2):
        folder = run(one, tmp_path / str(workers), compute=Compute("auto", "cpu", workers))
        assert json.loads((folder.path / "cost.json").read_text())["engine"]["code"] == "tiles"
        results.append(outcome(folder))
    assert results[0] == results[1]
    assert results[0] != outcome(run(one, tmp_path / "plain", compute=Compute("off", "cpu", 1))), "there were no tiles"


@pytest.mark.usefixtures("two_threads")
def test_a_run_that_ends_while_workers_condense_goes_on_without_them(tmp_path: Path) -> None:
    one = by_its_own_course(updates=30, order="0,1")
    wanted = outcome(run(one, tmp_path / "whole", compute=Compute("off", "cpu", 1)))

    class Dead(BaseException):
        pass

    def die() -> None:
        raise Dead

    watching = Watching(at=8 + 20, act=die)  # after the eight steps of the network, in the middle of its memory
    with pytest.raises(Dead):
        run(one, tmp_path / "halved", None, watching, 0, Compute("off", "cpu", 2))
    assert watching.names[-1].startswith("condense")
    assert outcome(run(one, tmp_path / "halved", compute=Compute("off", "cpu", 1))) == wanted


@pytest.mark.usefixtures("two_threads")
def test_the_share_of_threads_is_the_same_with_and_without_workers(tmp_path: Path) -> None:
    """Two threads for two classes are one for each, whether both are done by one process or by two."""
    asked = experiment(per_experience="2", order="0,1")
    one = run(asked, tmp_path / "one", compute=Compute("off", "cpu", 1))
    two = run(asked, tmp_path / "two", compute=Compute("off", "cpu", 2))
    assert outcome(one) == outcome(two)


def test_a_worker_that_is_killed_is_replaced_and_the_result_is_the_same(tmp_path: Path, alone: RunFolder) -> None:
    def kill() -> None:
        os.kill(children()[0], signal.SIGKILL)

    watching = Watching(at=5, act=kill)
    folder = run(experiment(), tmp_path, reporter=watching, checkpoint_seconds=0, compute=Compute("off", "cpu", 2))
    assert outcome(folder) == outcome(alone)


def test_workers_that_keep_dying_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    class Killing(Silent):
        def step(self, *_: object) -> None:
            for child in children():
                os.kill(child, signal.SIGKILL)

    with pytest.raises(WorkerError, match="keep dying"):
        run(experiment(), tmp_path, reporter=Killing(), compute=Compute("off", "cpu", 2))
    assert not children()


def test_what_a_worker_stumbles_over_is_said(tmp_path: Path) -> None:
    about = {"folder": str(tmp_path), "data_dir": None, "code": "none", "device": "cpu", "every": 1, "threads": 1}
    workers = Workers(1, about)
    try:
        with pytest.raises(WorkerError, match="is not a run"):
            workers([{"name": "condense 0-0", "seconds": {}}], lambda _: None)
    finally:
        workers.close()


def test_a_full_disk_under_a_worker_is_the_fault_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import sys, json", "about, job = sys.stdin.readline(), sys.stdin.readline()"]
    lines += ["print(json.dumps({'error': 'The disk is full.', 'storage': True}))"]
    (tmp_path / "full_disk.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers = Workers(1, {"threads": 1}, "full_disk")
    try:
        with pytest.raises(StorageError, match="full") as raised:
            workers([{"name": "condense 0-0"}], lambda _: None)
    finally:
        workers.close()
    assert not isinstance(raised.value, WorkerError)


def test_a_run_that_is_stopped_keeps_where_its_workers_are(tmp_path: Path, alone: RunFolder) -> None:
    watch = Watching()
    with pytest.raises(Stopped):
        run(
            experiment(),
            tmp_path,
            reporter=watch,
            checkpoint_seconds=1000,
            compute=Compute("off", "cpu", 2),
            stop=lambda: sum(name.startswith("condense") for name in watch.names) >= 5,
        )
    kept = list(RunFolder.of(tmp_path, experiment()).path.glob("resume/job-condense-*.safetensors"))
    assert len(kept) == 2  # of both, though no checkpoint was due
    again = Watching()
    done = run(experiment(), tmp_path, reporter=again, compute=Compute("off", "cpu", 2))
    assert outcome(done) == outcome(alone)


def test_a_run_killed_with_its_workers_goes_on_to_the_same_result(tmp_path: Path, alone: RunFolder) -> None:
    given = {**SETTINGS, "order": "0,1,2,3,4,5", "per_experience": "3"}
    flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "ccmcl.cli", "run", *flags, "--workers", "2", "--compile", "off"]
    command += ["--out", str(tmp_path), "--checkpoint-seconds", "0"]
    folder = RunFolder.of(tmp_path, experiment())
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    kills = 0
    for wanted in (1, 3):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(folder.resume.glob("job-condense*"))) < wanted:
            time.sleep(0.01)
        started = children(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += bool(started)
        process.wait()
        until = time.monotonic() + 30
        while (left := alive(started)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, "workers outlive the run that started them"
    assert kills
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert outcome(folder) == outcome(alone)
