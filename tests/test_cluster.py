"""Sweeps on a real Ray cluster of two nodes: the same results as here, whatever is killed, with or without one disk."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from ccmcl.errors import InputError
from ccmcl.local import Local
from ccmcl.sweep import DONE, expand, survey, sweep
from ccmcl.tasks import packed, unpacked

NODES = Path(__file__).with_name("ray_nodes.py")
OUTCOMES = ("memory.safetensors", "network.safetensors", "result.json", "forming.safetensors")
SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "width": 8,
    "outer": 1,
    "inner": 3,
    "matching": 2,
    "condense_batch": 64,
    "budget": "20",
    "per_experience": "5",
}
TABLE = {"method": ["composite", "rehearsal", "bic", "finetune"], "seed": [0, 1], "steps": [80]}
ENVIRONMENT = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            return
        yield pid


class Nodes:
    """Two nodes, and a way to kill the second."""

    def __init__(self, hidden: Path | None = None) -> None:
        program = [sys.executable, str(NODES)]
        if hidden is not None:  # a machine that does not see this folder
            hide = f'mount -t tmpfs none "{hidden}" && exec "$@"'
            program = ["unshare", "--mount", "sh", "-c", hide, "sh", *program]
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self._line()["address"]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError("the nodes did not start")

    def processes(self, title: str) -> list[int]:
        """Find the processes of this cluster with such a title, and of no other that other tests may have."""
        listed = subprocess.run(["pgrep", "-f", title], capture_output=True, text=True, check=True)
        return [pid for pid in map(int, listed.stdout.split()) if self.process.pid in _ancestors(pid)]

    def kill_one(self) -> list[int]:
        assert self.process.stdin is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        killed: list[int] = self._line()["killed"]
        return killed

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Nodes]:
    """Nodes of which none is killed."""
    made = Nodes()
    yield made
    made.close()


def command(out: Path, address: str | None, table: dict[str, Any], *more: str) -> list[str]:
    values = {name: ",".join(map(str, value)) for name, value in table.items()}
    given = {**SETTINGS, **values, "out": out, "threads": 1, "engine": "ray", "compile": "off", "device": "cpu"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    joined = [] if address is None else [f"--address={address}"]
    return [sys.executable, "-m", "ccmcl", "sweep", *flags, *joined, "--checkpoint-seconds=0.3", *more]


def outcome(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUTCOMES if (folder / name).is_file()}


def finishes(folder: Path) -> int:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return sum(json.loads(line)["event"] == "finish" for line in lines)


def wait_for_results(out: Path, count: int, process: subprocess.Popen[Any]) -> None:
    limit = time.monotonic() + 900
    while len(list(out.glob("*/result.json"))) < count:
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)


def same_as_here(out: Path, here: Path, table: dict[str, Any]) -> None:
    """Do the same sweep in processes of this machine, and compare byte by byte."""
    experiments = expand([{**SETTINGS, **table}], {})
    found = sweep(experiments, here, Local(1, here, 1, compile="off", device="cpu"))
    assert [one.state for one in found] == [DONE] * len(experiments)
    assert [one.state for one in survey(experiments, out)] == [DONE] * len(experiments)
    assert len([path for path in out.iterdir() if path.is_dir()]) == len(experiments)
    for one in experiments:
        assert outcome(out / one.name) == outcome(here / one.name), one.name
        assert finishes(out / one.name) == 1


def test_node_killed_in_the_middle_no_run_is_lost_or_done_twice(nodes: Nodes, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    process = subprocess.Popen(command(out, nodes.address, TABLE, "--quiet"), env=ENVIRONMENT)
    wait_for_results(out, 3, process)
    assert len(nodes.kill_one()) > 1, "nothing was running on the node"
    assert process.wait(900) == 0
    assert len(list(out.glob("*/result.json"))) == 8
    assert not list(out.glob(".sweep-*"))
    same_as_here(out, tmp_path / "here", TABLE)


def test_process_of_a_run_killed_its_run_is_taken_up_again(lasting: Nodes, tmp_path: Path) -> None:
    out, table = tmp_path / "runs", {"method": ["rehearsal"], "seed": [0, 1], "steps": [400]}
    arguments = command(out, lasting.address, table, "--json")
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob("*/resume/job-*")):
        assert time.monotonic() < limit
        time.sleep(0.05)
    for pid in lasting.processes("ray::do_run"):
        os.kill(pid, signal.SIGKILL)
    said, beside = process.communicate(timeout=900)
    assert process.returncode == 0, beside
    assert [one["state"] for one in json.loads(said)["runs"]] == ["done", "done"]
    assert "worker died" in beside, "Ray was not heard"
    same_as_here(out, tmp_path / "here", table)
    starts = [
        json.loads(line)["event"] for path in out.glob("*/events.jsonl") for line in path.read_text().splitlines()
    ]
    assert starts.count("start") + starts.count("resume") > 2, "no run was interrupted"


def test_nodes_without_a_shared_disk_hand_their_runs_back(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no machine with a disk of its own can be made here")
    nodes = Nodes(hidden=shared)
    try:
        table = {"method": ["composite", "rehearsal"], "seed": [0], "steps": [20]}
        subprocess.run(command(shared / "runs", nodes.address, table, "--quiet"), env=ENVIRONMENT, check=True)
        same_as_here(shared / "runs", tmp_path / "here", table)
        few: dict[str, list[Any]] = {"method": ["composite"], "seed": [7], "steps": [20]}
        few |= {
            "objective": ["distribution"],
            "continued": ["yes"],
            "experts": [0, 1],
            "expert_steps": [5],
            "updates": [4],
        }
        # There is room to spare: classes are tasks of their own, and the networks they share travel.
        subprocess.run(command(shared / "few", nodes.address, few, "--quiet"), env=ENVIRONMENT, check=True)
        same_as_here(shared / "few", tmp_path / "few", few)
    finally:
        nodes.close()


def test_failed_run_is_told_and_does_not_stop_the_others(lasting: Nodes, tmp_path: Path) -> None:
    table = {"method": ["composite", "finetune"], "budget": ["1KiB"], "steps": [5]}
    arguments = command(tmp_path, lasting.address, table, "--json")
    ended = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    states = {one["name"].split("-")[1]: one for one in json.loads(ended.stdout)["runs"]}
    assert states["finetune"]["state"] == "done"
    assert states["composite"]["state"] == "failed"
    assert "smaller than one component" in states["composite"]["reason"]


def test_own_data_are_found_from_where_the_sweep_was_started_and_workers_are_heeded(
    lasting: Nodes, tmp_path: Path
) -> None:
    chance = numpy.random.default_rng(0)
    pixels, labels = chance.integers(0, 256, (60, 8, 8), dtype=numpy.uint8), numpy.arange(60) % 6
    numpy.savez(tmp_path / "own.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    table = {"dataset": ["own.npz"], "per_experience": [3], "method": ["finetune"], "seed": [0, 1, 2], "steps": [200]}
    arguments = command(tmp_path / "runs", lasting.address, table, "--json", "--workers=1")
    ended = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    times = []
    for path in (tmp_path / "runs").glob("*/events.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        times.append((events[0]["time"], events[-1]["time"]))
    times.sort()
    assert len(times) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


def listening() -> set[str]:
    """Find what listens on more than the loopback, from the kernel's own tables."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address = local.partition(":")[0]
            loopback = address.endswith("0100007F") or address == "00000000000000000000000001000000"
            if state == "0A" and not loopback:
                found.add(local)
    return found


def test_cluster_started_in_place_listens_on_the_loopback_alone_and_can_be_stopped(tmp_path: Path) -> None:
    before, out = listening(), tmp_path / "runs"
    table = {"method": ["rehearsal"], "seed": [0], "steps": [100_000]}
    process = subprocess.Popen(command(out, None, table), stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob("*/resume/job-*")):
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert listening() <= before
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "every run keeps where it is" in said


def test_no_cluster_at_the_address_is_one_sentence(tmp_path: Path) -> None:
    arguments = command(tmp_path, "127.0.0.1:1", {"method": ["finetune"]}, "--quiet")
    ended = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 2
    assert "There is no Ray cluster at 127.0.0.1:1" in ended.stderr.splitlines()[-1]


def test_files_of_a_run_go_where_they_belong_and_nowhere_else(tmp_path: Path) -> None:
    files = {"config.json": b"1", "result.json": b"2", "resume/job-a.safetensors": b"3"}
    unpacked(files, tmp_path / "run")
    assert packed(tmp_path / "run") == files
    for name in ("../evil.json", "/etc/evil.json", "resume/../../evil.json", "run.py", "a/b.json"):
        with pytest.raises(InputError, match="has no file"):
            unpacked({name: b""}, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
