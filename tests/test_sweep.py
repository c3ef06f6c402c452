"""Many runs: every experiment once, whoever is killed, whoever else is at work, whatever goes wrong with one."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccmcl.catalogue import METHODS
from ccmcl.cli import main
from ccmcl.compute import Compute
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.files import write_json
from ccmcl.local import Local
from ccmcl.locks import claimed
from ccmcl.progress import Silent
from ccmcl.records import FAILED
from ccmcl.runner import attempt
from ccmcl.running import run
from ccmcl.store import RunFolder
from ccmcl.studies import Clock
from ccmcl.sweep import BEGUN, DONE, FAILING, RUNNING, WAITING, expand, read_sweep, survey, sweep
from studied import finished

TINY: dict[str, Any] = {
    "preset": "paper",
    "width": 4,
    "outer": 1,
    "inner": 2,
    "matching": 1,
    "steps": 5,
    "batch": 16,
    "condense_batch": 16,
    "per_experience": "5",
    "budget": "10",
}
OUTCOMES = ("memory.safetensors", "network.safetensors", "result.json", "forming.safetensors")
Capture = pytest.CaptureFixture[str]


def tiny(**changed: Any) -> Experiment:
    return Experiment.of(**{**TINY, **changed})


def outcome(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUTCOMES if (folder / name).is_file()}


def events(folder: Path, kind: str) -> int:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return sum(json.loads(line)["event"] == kind for line in lines)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("configs/*.toml")), ids=lambda path: path.stem)
def test_every_table_that_comes_with_the_program_can_be_read(path: Path) -> None:
    asked = read_sweep(path)
    assert asked.title
    assert len({one.name for one in asked.experiments}) == len(asked.experiments) > 0


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "svhn", "cifar10"])
def test_tables_of_the_paper_have_its_methods_buffers_and_seeds(name: str) -> None:
    asked = read_sweep(Path(__file__).parents[1] / "configs" / f"{name}.toml").experiments
    of_paper = [one for one in asked if one.method not in ("finetune", "joint")]
    assert len(of_paper) == 4 * 5 * 5
    assert {one.preset for one in asked} == {"paper"}
    assert len(asked) == 100 + 2 * 5


def test_any_setting_may_be_a_list_and_is_combined_with_all_others(tmp_path: Path) -> None:
    asked = read_sweep(written(tmp_path, 'method = ["joint", "bic"]\nseed = [3, 1]\nwidth = [4, 8]\nrate = 0.1\n'))
    found = [(one.seed, one.method, one.width) for one in asked.experiments]
    assert found == [(seed, method, width) for seed in (3, 1) for method in ("joint", "bic") for width in (4, 8)]
    assert {one.rate for one in asked.experiments} == {0.1}


def test_what_is_given_goes_before_the_file_and_equal_experiments_are_one(tmp_path: Path) -> None:
    path = written(tmp_path, "budget = [20, 40]\n[[also]]\nbudget = 60\nmethod = 'bic'\n")
    assert [(one.method, one.budget) for one in read_sweep(path).experiments] == [
        ("condensation", "20"),
        ("condensation", "40"),
        ("bic", "60"),
    ]
    changed = read_sweep(path, {"budget": ["80"], "method": ["bic"]}).experiments
    assert [(one.method, one.budget) for one in changed] == [("bic", "80")]


@given(st.fixed_dictionaries({}, optional={
    "method": st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True),
    "seed": st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
    "width": st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
}))  # fmt: skip
def test_a_grid_has_as_many_experiments_as_its_lists_multiply_to(grid: dict[str, list[Any]]) -> None:
    made = expand([grid], {})
    expected = 1
    for values in grid.values():
        expected *= len(values)
    assert len(set(made)) == len(made) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 1", "no setting 'colour'"),
        ("method = []", "list of method is empty"),
        ("method = 'magic'", "no method 'magic'"),
        ("seed = 1.5", "seed must be of type int"),
        ("seed = true", "seed must be of type int"),
        (f"seed = 0x{'f' * 5000}", "seed must be smaller than 2¹²⁸"),
        (f"steps = 1{'0' * 400}", "steps must be smaller than 2¹²⁸"),
        ("seed = [[1]]", "seed must be of type int"),
        ("title = 3", "title must be a text"),
        ("also = 3", "also must be tables"),
        ("[also]\nseed = 1", "also must be tables"),
        ("this is not TOML", "not valid TOML"),
        (f"seed = {list(range(400))}\nsteps = {list(range(1, 300))}", "more than 100,000"),
    ],
)
def test_bad_table_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_sweep(written(tmp_path, text))


def test_survey_tells_where_each_run_stands(tmp_path: Path) -> None:
    done, begun, failed, waiting, running = (tiny(method="finetune", seed=seed) for seed in range(5))
    run(done, tmp_path)
    RunFolder.of(tmp_path, begun).open(begun, "data")
    write_json(tmp_path / failed.name / FAILED, {"reason": "it rained"})
    RunFolder.of(tmp_path, running).open(running, "data")
    with RunFolder.of(tmp_path, running).locked():
        found = survey([done, begun, failed, waiting, running], tmp_path)
    assert [one.state for one in found] == [DONE, BEGUN, FAILING, WAITING, RUNNING]
    assert found[2].reason == "it rained"


def test_run_that_was_handed_elsewhere_is_left_alone_here(tmp_path: Path) -> None:
    one, other = tiny(method="finetune"), tiny(method="finetune", seed=1)
    claim = claimed(tmp_path / one.name)
    assert claim is not None
    assert claimed(tmp_path / one.name) is None
    assert [standing.state for standing in survey([one, other], tmp_path)] == [RUNNING, WAITING]
    said: list[dict[str, Any]] = []
    Local(1, tmp_path, device="cpu")([one, other], said.append)
    outcomes = {words["done"]: words["outcome"] for words in said if "done" in words}
    assert outcomes == {one.name: "busy", other.name: "finished"}
    claim.release()
    assert [standing.state for standing in sweep([one], tmp_path, Local(1, tmp_path, device="cpu"))] == [DONE]


def test_run_that_failed_in_another_sweep_is_not_tried_again_unasked(tmp_path: Path) -> None:
    one = tiny(method="finetune")
    write_json(tmp_path / one.name / FAILED, {"reason": "it rained"})
    said: list[dict[str, Any]] = []
    Local(1, tmp_path, device="cpu")([one], said.append)
    assert said[-1] == {"done": one.name, "outcome": "failed", "reason": "it rained"}
    run(one, tmp_path)  # asked for by itself, it is done
    assert survey([one], tmp_path)[0].state == DONE
    assert not (tmp_path / one.name / FAILED).exists()


@pytest.mark.parametrize("damaged", ["failed.json", "cost.json"])
def test_damaged_side_files_do_not_stop_a_sweep(tmp_path: Path, capsys: Capture, damaged: str) -> None:
    done = run(tiny(method="finetune"), tmp_path)
    (done.path / damaged).write_text("{")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    main(["sweep", *flags, "--method=finetune", "--seed=0,1", "--dry-run", f"--out={tmp_path}"])
    assert "1 of 2 to do" in capsys.readouterr().out


def test_stopped_before_it_began_an_engine_does_nothing(tmp_path: Path) -> None:
    engine = Local(1, tmp_path, device="cpu")
    engine.stop()
    found = sweep([tiny(method="finetune")], tmp_path, engine)
    assert [one.state for one in found] == [WAITING]


@dataclass
class Saying:
    """An engine that says one thing of every run, and leaves nothing behind."""

    words: dict[str, str]
    stopping: bool = False

    def __call__(self, experiments: Sequence[Experiment], hear: Callable[[dict[str, Any]], None]) -> None:
        for one in experiments:
            hear({"done": one.name, **self.words})

    def stop(self) -> None: ...


def test_what_a_full_disk_has_stopped_is_told_with_its_reason_and_can_go_on(tmp_path: Path) -> None:
    table = [tiny(method="finetune")]
    (one,) = sweep(table, tmp_path, Saying({"outcome": "failed", "reason": "the disk is full"}))
    assert (one.state, one.reason) == (WAITING, "the disk is full")
    (one,) = sweep(table, tmp_path, Local(1, tmp_path))
    assert (one.state, one.reason) == (DONE, "")


def test_the_time_left_is_that_of_what_will_be_done_and_of_the_longest_run(tmp_path: Path) -> None:
    short, long = (tiny(method="finetune", steps=steps) for steps in (1000, 100_000))
    clock = Clock(tmp_path, [short, long], threads=2, at_once=4)
    times = [(clock.estimate.seconds(one) or 0) / 2 for one in (short, long)]
    assert clock.left([short.name]) == pytest.approx(times[0])
    assert clock.left([short.name, long.name]) == pytest.approx(times[1])
    assert clock.left([long.name] + 8 * [short.name]) == pytest.approx(max(times[1], (times[1] + 8 * times[0]) / 4))
    assert clock.left([]) == 0
    assert Clock(tmp_path, [short], threads=1, at_once=None).left([short.name]) is None


def test_without_ray_it_says_what_to_install(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ccmcl.cluster", "ccmcl.tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit):
        main(["sweep", "--method=finetune", f"--out={tmp_path}", "--engine=ray"])
    assert "pip install 'ccmcl[ray]'" in capsys.readouterr().err


def test_an_address_is_for_ray_alone(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--method", "finetune", "--address", "127.0.0.1:1", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "--engine ray" in capsys.readouterr().err


def test_a_program_that_is_missing_is_said_once_and_no_run_is_marked(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ccmcl.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--method", "finetune", "--tensorboard", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "ccmcl[tensorboard]" in capsys.readouterr().err
    about = {"out": str(tmp_path), "data_dir": None, "compile": "off", "device": "cpu", "every": 1, "tensorboard": True}
    said = attempt(tiny(method="finetune"), about, Silent(), lambda: False)
    assert said["outcome"] == "failed"
    assert "ccmcl[tensorboard]" in said["reason"]


@pytest.mark.parametrize("columns", [None, 60])
def test_no_figure_of_a_table_is_cut_off(tmp_path: Path, capsys: Capture, columns: int | None) -> None:
    for bits, distance in itertools.product((8, 16, 32), ("mean", "kernel", "levels")):
        finished(tmp_path, 0.123, bits=bits, distance=distance, ratio=3.0 + bits, updates=bits, rate=1 / bits)
    if columns is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout.isatty", lambda: True)
            patch.setenv("COLUMNS", str(columns))
            main(["results", str(tmp_path)])
    else:
        main(["results", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.count("12.3") == 9
    assert shown.count("kernel") == 3
    assert "…" not in shown


def test_runs_finished_by_others_are_counted(tmp_path: Path) -> None:
    one = tiny(method="finetune")
    said: list[dict[str, Any]] = []

    def act(one: Experiment) -> str:
        run(one, tmp_path)  # by another process
        return "busy"

    sweep([one], tmp_path, Here(tmp_path, act), said.append, wait=0.0)
    assert said[-1] == {"done": one.name, "outcome": "finished elsewhere"}


class Here:
    """An engine in this process, which notes what it is asked for."""

    def __init__(self, out: Path, act: Callable[[Experiment], str]) -> None:
        self.out, self.act, self.asked, self.stopping = out, act, list[list[Experiment]](), False

    def __call__(self, experiments: Sequence[Experiment], hear: Callable[[dict[str, Any]], None]) -> None:
        self.asked.append(list(experiments))
        for one in experiments:
            hear({"done": one.name, "outcome": self.act(one)})

    def stop(self) -> None:
        self.stopping = True


def test_no_program_of_the_current_folder_is_run(tmp_path: Path) -> None:
    """Worker processes take Python's own modules, and ours, whatever lies about."""
    (tmp_path / "queue.py").write_text("from pathlib import Path\nPath('ran').touch()\nraise SystemExit\n")
    program = [str(Path(sys.executable).with_name("ccmcl")), "sweep", "--dataset", "digits", "--method", "finetune"]
    small = ["--steps", "2", "--width", "4", "--workers", "1", "--threads", "1", "--out", "runs"]
    done = subprocess.run([*program, *small], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_only_what_is_left_is_done(tmp_path: Path) -> None:
    first, second, failed = (tiny(method="finetune", seed=seed) for seed in range(3))
    run(first, tmp_path)
    write_json(tmp_path / failed.name / FAILED, {"reason": "it rained"})

    def act(one: Experiment) -> str:
        run(one, tmp_path)
        return "finished"

    engine = Here(tmp_path, act)
    found = sweep([first, second, failed], tmp_path, engine)
    assert engine.asked == [[second]]
    assert [one.state for one in found] == [DONE, DONE, FAILING]
    again = sweep([first, second, failed], tmp_path, engine, retry_failed=True)
    assert engine.asked == [[second], [failed]]
    assert [one.state for one in again] == [DONE] * 3


def test_what_another_process_does_is_waited_for_and_taken_up_if_it_dies(tmp_path: Path) -> None:
    finishes, dies = tiny(method="finetune"), tiny(method="finetune", seed=1)
    tries: dict[Experiment, int] = {finishes: 0, dies: 0}

    def act(one: Experiment) -> str:
        tries[one] += 1
        if tries[one] < 3:
            if one == finishes and tries[one] == 2:
                run(one, tmp_path)  # the other process has done it
            return "busy"
        run(one, tmp_path)
        return "finished"

    found = sweep([finishes, dies], tmp_path, Here(tmp_path, act), wait=0.0)
    assert tries == {finishes: 2, dies: 3}
    assert [one.state for one in found] == [DONE, DONE]


def test_failed_run_does_not_stop_the_others_and_can_be_tried_again(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["sweep", "--method=composite,finetune", "--budget=200B", "--width=4", "--steps=2", f"--out={tmp_path}"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--workers=1", "--threads=1"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "failed: digits-composite-200B-fast-seed0-" in said.out
    assert "smaller than one component per class" in " ".join(said.out.split())
    assert "finished" in said.err
    with pytest.raises(SystemExit):
        main([*arguments, "--workers=1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {one["state"] for one in told["runs"]} == {"failed", "done"}
    (failed,) = (tmp_path / one["name"] for one in told["runs"] if one["state"] == "failed")
    before = (failed / FAILED).stat().st_mtime_ns
    with pytest.raises(SystemExit):
        main([*arguments, "--workers=1", "--json", "--retry-failed"])
    assert (failed / FAILED).stat().st_mtime_ns > before


def test_run_whose_process_keeps_dying_is_failed_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = tmp_path / "sitecustomize.py"  # kills the process that begins to learn with seed 1
    killer.write_text(
        "import os, sys\n"
        "def look(event, arguments):\n"
        "    if event == 'open' and 'seed1' in str(arguments[0]) and 'progress' not in str(arguments[0]):\n"
        "        os.kill(os.getpid(), 9)\n"
        "if 'ccmcl.runner' in sys.orig_argv:\n"
        "    sys.addaudithook(look)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    experiments = [tiny(method="finetune", seed=seed) for seed in range(3)]
    found = sweep(experiments, tmp_path / "runs", Local(1, tmp_path / "runs", device="cpu"))
    assert [one.state for one in found] == [DONE, FAILING, DONE]
    assert "keeps dying" in found[1].reason


FLAGS: dict[str, Any] = {
    "preset": "paper",
    "width": 8,
    "outer": 1,
    "inner": 3,
    "matching": 2,
    "steps": 40,
    "condense_batch": 64,
    "budget": "20",
    "method": "composite,rehearsal,bic,finetune",
    "seed": "0,1,2,3",
    "per_experience": "5",
    "workers": 2,
    "threads": 2,
    "checkpoint_seconds": 0.2,
    "compile": "off",
}


def command(out: Path, *more: str, **changed: Any) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**FLAGS, "out": out, **changed}.items()]
    return [sys.executable, "-m", "ccmcl", "sweep", *flags, *more]


def asked(out: Path) -> list[Experiment]:
    told = subprocess.run(command(out, "--dry-run", "--json"), capture_output=True, text=True, check=True)
    flags = {
        name: FLAGS[name]
        for name in (
            "preset",
            "width",
            "outer",
            "inner",
            "matching",
            "steps",
            "condense_batch",
            "budget",
            "per_experience",
        )
    }
    listed = [one["name"] for one in json.loads(told.stdout)["runs"]]
    methods = ("composite", "rehearsal", "bic", "finetune")
    made = [Experiment.of(**flags, method=method, seed=seed) for seed in range(4) for method in methods]
    assert [one.name for one in made] == listed
    return made


def test_killed_five_times_every_run_is_done_once_and_as_if_alone(tmp_path: Path) -> None:
    out, chance = tmp_path / "runs", random.Random(0)
    experiments = asked(out)
    assert len(experiments) == 16
    for _ in range(5):
        before = sum(one.state == DONE for one in survey(experiments, out))
        process = subprocess.Popen(command(out, "--quiet"), start_new_session=True)
        limit = time.monotonic() + 300
        while sum(one.state == DONE for one in survey(experiments, out)) < before + 1:
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(chance.random())
        os.kill(process.pid, signal.SIGKILL)  # the driver alone: its processes must not outlive it
        process.wait()
        while any(one.state == RUNNING for one in survey(experiments, out)):
            assert time.monotonic() < limit
            time.sleep(0.05)
    assert any(one.state != DONE for one in survey(experiments, out))
    subprocess.run(command(out, "--quiet"), check=True)
    assert [one.state for one in survey(experiments, out)] == [DONE] * 16
    assert len([path for path in out.iterdir() if path.is_dir()]) == 16
    for one in experiments:
        alone = run(one, tmp_path / "alone", compute=Compute("off", "cpu"))
        assert outcome(out / one.name) == outcome(alone.path), one.name
        assert events(out / one.name, "finish") == 1


def test_two_sweeps_at_once_share_the_work(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    both = [subprocess.Popen(command(out, "--quiet", seed="0,1", workers=1, threads=1)) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    folders = [path for path in out.iterdir() if path.is_dir()]
    assert len(folders) == 8
    for folder in folders:
        assert events(folder, "start") == events(folder, "finish") == 1
        assert events(folder, "resume") == 0


def test_stopped_from_the_keyboard_every_run_keeps_where_it_is(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = command(out, checkpoint_seconds=1000, steps=4000, method="finetune", seed="0,1")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob("*/events.jsonl")):
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "every run keeps where it is" in said
    assert "goes on from the last checkpoint" in said
    assert list(out.glob("*/resume/job-*.safetensors"))  # no checkpoint was due yet
    assert not list(out.glob("*/result.json"))
