"""Runs that are killed, crash or run out of disk come to the very bytes of one that was left alone."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from ccmcl.cli import main
from ccmcl.store import RunFolder

CONTEXT = multiprocessing.get_context("forkserver")
# Children are forked off a process that has imported all this already, so that hundreds of runs are affordable;
# torch._dynamo is what torch imports on its own at the first gradient.
CONTEXT.set_forkserver_preload(["ccmcl.cli", "sklearn.datasets", "torch._dynamo", "pytest"])
CRASH = 9
OUTCOMES = ("memory.safetensors", "network.safetensors", "result.json", "forming.safetensors")
TINY = [
    "--preset=paper",
    "--width=4",
    "--outer=1",
    "--inner=2",
    "--matching=1",
    "--steps=2",
    "--order=0,1",
    "--per-experience=1",
]
BEST = [
    *["--preset=best", "--width=4", "--updates=2", "--steps=2", "--order=0,1", "--per-experience=1"],
]


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """Let child processes find this module under whatever name pytest gave it."""
    before, here = list(sys.path), Path(__file__).parent
    sys.path += [str(here), str(here.parent)]
    yield
    sys.path[:] = before


def command(arguments: list[str], log: Path) -> None:
    """Run the program in a child, what it says going into a file."""
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        main(arguments)


def crashing(arguments: list[str], log: Path, at: int, moment: str) -> None:
    """Run the program up to its write number ``at``, and end there as a crash would, with nothing tidied up.

    ``torn``: half of the new content is in the temporary file; ``replaced``: the new file has just come in place.
    """
    writes, replacements = itertools.count(), itertools.count()
    replace = Path.replace

    def fsync(descriptor: int) -> None:
        if next(writes) == at and moment == "torn":
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os._exit(CRASH)

    def replace_and_crash(path: Path, target: Path) -> Path:
        moved = replace(path, target)
        if next(replacements) == at and moment == "replaced":
            os._exit(CRASH)
        return moved

    os.fsync = fsync  # type: ignore[assignment]
    Path.replace = replace_and_crash  # type: ignore[method-assign,assignment]
    command(arguments, log)


def arguments_for(out: Path, *settings: str, every: float = 0.05) -> list[str]:
    return ["run", "--quiet", "--threads=1", f"--checkpoint-seconds={every}", f"--out={out}", *settings]


def started(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    process.join(60)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def finish(out: Path, *settings: str) -> dict[str, bytes]:
    """Run to the end, and return what came out."""
    log = out.with_suffix(".log")
    code = ended(started(command, arguments_for(out, *settings), log))
    assert code == 0, log.read_text()
    return outcome(out)


def outcome(out: Path) -> dict[str, bytes]:
    """Return what came out, all of which is there and nothing that only an unfinished run needs."""
    folder = only_run(out)
    assert folder is not None
    assert not folder.resume.exists()
    assert not list(folder.path.glob("*.tmp"))
    return {name: (folder.path / name).read_bytes() for name in OUTCOMES if (folder.path / name).is_file()}


def only_run(out: Path) -> RunFolder | None:
    found = [path.parent for path in out.glob("*/config.json")]
    assert len(found) < 2
    return RunFolder(found[0]) if found else None


def events(out: Path) -> list[str]:
    folder = only_run(out)
    path = None if folder is None else folder.path / "events.jsonl"
    if path is None or not path.is_file():
        return []
    return [json.loads(line)["event"] for line in path.read_text().splitlines() if line.endswith("}")]


def starts(out: Path) -> int:
    return sum(kind in ("start", "resume") for kind in events(out))


def begun_again(out: Path, before: int) -> bool:
    return starts(out) > before


def wait_for(condition: Callable[[], bool], process: ForkServerProcess) -> None:
    until = time.monotonic() + 60
    while not condition() and process.is_alive():
        assert time.monotonic() < until, "the run does not begin"
        time.sleep(0.005)


LONG = {
    "composite": ["--width=8", "--outer=1", "--inner=10", "--matching=3", "--steps=40"],
    "condensation": ["--width=8", "--outer=1", "--inner=6", "--matching=2", "--steps=25"],
    "best": ["--width=8", "--updates=15", "--steps=30", "--batch=32", "--bits=8"],
    "coded": ["--width=8", "--budget=6KiB", "--steps=30", "--batch=32"],
    "anew": [
        *["--width=8", "--expert-width=4", "--experts=2", "--expert-steps=10", "--updates=15", "--steps=30"],
        *["--batch=32", "--bits=8", "--labels=soft"],
    ],
    "rehearsal": ["--width=16", "--steps=80"],
    "bic": ["--width=16", "--steps=50"],
    "joint": ["--width=16", "--steps=60"],
}
PRESET_BEST = ("best", "coded", "anew")


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        *[("composite", 20), ("condensation", 5), ("best", 10), ("coded", 3), ("anew", 5)],
        *[("rehearsal", 5), ("bic", 5), ("joint", 5)],
    ],
)
def test_killed_at_random_moments_and_resumed_equals_undisturbed(tmp_path: Path, method: str, wanted: int) -> None:
    preset = ["--preset=best"] if method in PRESET_BEST else ["--preset=paper", f"--method={method}"]
    settings = [*preset, *LONG[method]]
    begun = time.monotonic()
    expected = finish(tmp_path / "undisturbed", *settings)
    learned = method in ("composite", "condensation", *PRESET_BEST)
    absent = {"memory.safetensors"} if method == "joint" else set()
    assert set(expected) == set(OUTCOMES) - absent - (set() if learned else {"forming.safetensors"})
    stretch = 1.6 * (time.monotonic() - begun) / wanted  # so that the kills are spread over most of the run

    chance, out = random.Random(method), tmp_path / "disturbed"
    kills = in_the_middle = 0
    while kills < wanted:
        before = starts(out)
        process = started(command, arguments_for(out, *settings), tmp_path / "log")
        if chance.random() < 0.8:  # the others may be killed before they have begun
            wait_for(partial(begun_again, out, before), process)
        time.sleep(chance.uniform(0, stretch))
        process.kill()
        code, folder = ended(process), only_run(out)
        if folder is not None and folder.finished:  # it was faster: the remaining kills go to another run
            assert finish(out, *settings) == expected
            out = tmp_path / f"disturbed after {kills}"
        else:
            assert code == -signal.SIGKILL
            kills += 1
            in_the_middle += folder is not None and any(folder.resume.glob("*.safetensors"))
    assert in_the_middle >= wanted // 2, "nearly all were killed before their first checkpoint"
    assert finish(out, *settings) == expected


@dataclass(frozen=True)
class Crashes:
    """What became of runs that crashed once, each at another of its writes, and were then resumed."""

    count: int
    different: list[int]
    litter: list[str]


@pytest.fixture(scope="module", params=["composite torn", "best replaced", "bic torn", "joint replaced"])
def crashes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, importable: None) -> Crashes:
    method, _, moment = request.param.partition(" ")
    settings = BEST if method == "best" else [*TINY, f"--method={method}"]
    folder = tmp_path_factory.mktemp("crashes")
    log = folder / "log"
    expected = finish(folder / "undisturbed", *settings)
    different: list[int] = []
    litter: list[str] = []
    for at in itertools.count():
        out = folder / str(at)
        code = ended(started(crashing, arguments_for(out, *settings, every=0), log, at, moment))
        if code == 0:
            return Crashes(at, different, litter)
        assert code == CRASH, log.read_text()
        assert ended(started(command, arguments_for(out, *settings, every=0), log)) == 0, log.read_text()
        if outcome(out) != expected:
            different.append(at)
        litter += [str(path.relative_to(folder)) for path in out.rglob("*") if path.suffix == ".tmp"]
    raise AssertionError


def test_crash_at_every_single_write_and_resumed_equals_undisturbed(crashes: Crashes) -> None:
    assert crashes.count >= 10  # the settings, two checkpoints of two jobs, two experiences, three results
    assert not crashes.different


def test_crash_at_any_write_leaves_no_litter_once_resumed(crashes: Crashes) -> None:
    assert not crashes.litter


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a disk of 1 MiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if sys.platform != "linux":
        pytest.skip("a disk to fill is made with Linux's tmpfs")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk to fill can be mounted here: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_disk_full_at_any_moment_is_one_sentence_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    expected = finish(tmp_path / "undisturbed", *TINY)
    filler, out, log = small_disk / "filler", small_disk / "runs", tmp_path / "log"
    page = os.sysconf("SC_PAGE_SIZE")
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * page))
    refused, done = [], 0
    while (code := ended(started(command, arguments_for(out, *TINY), log))) != 0:
        said = log.read_text()
        assert code == 1, said
        assert said.startswith("ccmcl: Cannot write ")
        assert "disk is full" in said
        assert said.count("\n") == 1
        assert not list(small_disk.rglob("*.tmp"))
        refused.append(said.split(":")[1])
        folder = only_run(out)
        now = 0 if folder is None else len(folder.load_progress().tallies)
        assert now >= done  # whole experiences are never lost
        done = now
        size = filler.stat().st_size
        assert size >= page, "the run needs more than the whole disk"
        os.truncate(filler, size - page)
    assert len(set(refused)) >= 4, f"the disk was full only at {refused}"
    assert any("job-" in place for place in refused)
    assert outcome(out) == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_by_a_signal_and_resumed_equals_undisturbed(tmp_path: Path, number: signal.Signals, code: int) -> None:
    settings = ["--method=rehearsal", "--width=4", "--steps=150", "--per-experience=5"]
    expected = finish(tmp_path / "undisturbed", *settings)
    out, log = tmp_path / "stopped", tmp_path / "log"
    process = started(command, arguments_for(out, *settings), log)
    wait_for(lambda: "progress" in events(out), process)
    assert process.pid is not None
    os.kill(process.pid, number)
    assert ended(process) == code
    folder = only_run(out)
    assert folder is not None
    assert not folder.finished
    assert finish(out, *settings) == expected


def test_interrupted_from_the_keyboard_says_how_to_go_on(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    process = started(command, arguments_for(out, "--method=rehearsal", "--width=4", "--steps=2000"), log)
    wait_for(lambda: "progress" in events(out), process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert ended(process) == 130
    assert log.read_text() == "ccmcl: Stopped; the same command goes on from the last checkpoint.\n"


def test_run_at_work_keeps_others_out_and_a_killed_one_does_not(tmp_path: Path) -> None:
    settings = ["--method=rehearsal", "--width=4", "--steps=2000"]
    out, log = tmp_path / "out", tmp_path / "log"
    process = started(command, arguments_for(out, *settings), tmp_path / "first.log")
    wait_for(lambda: "progress" in events(out), process)
    assert ended(started(command, arguments_for(out, *settings), log)) == 2
    assert "another process" in log.read_text()
    assert log.read_text().count("\n") == 1
    assert process.is_alive()
    process.kill()
    assert ended(process) == -signal.SIGKILL
    second = started(command, arguments_for(out, *settings), log)
    wait_for(partial(begun_again, out, 1), second)
    assert starts(out) == 2
    second.kill()
    ended(second)
