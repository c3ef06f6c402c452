"""Run folders: whole files, honest refusals, and nothing that a crash could leave behind."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import save_file

from ccmcl import store
from ccmcl.errors import InputError, StorageError
from ccmcl.evaluate import Scores
from ccmcl.experiment import Experiment
from ccmcl.files import check_writable, read_json, write_json
from ccmcl.kinds import Composite, Exemplars, Pixels
from ccmcl.loop import State, counter
from ccmcl.memory import Memory
from ccmcl.nets import ConvNet, Params
from ccmcl.plan import Learner
from ccmcl.store import Progress, RunFolder
from ccmcl.tensor_files import write_tensors
from studied import finished

EXPERIMENT = Experiment.of(width=4)
RESULT: dict[str, Any] = {
    "classes": ["a", "b", "c"],
    "groups": [[0, 1, 2]],
    "memory": {"images": 9, "scalars": 1, "bytes": 4},
    **Scores([[[2, 1], [2, 2], [2, 1]]], [[0, 1, 2]]).as_dict(),
}
NET = ConvNet((1, 8, 8), 4)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.of(tmp_path, EXPERIMENT)
    made.open(EXPERIMENT, "fingerprint")
    return made


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the tests' own check of types off, which would come before ours."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def params() -> Params:
    return NET.init(seeded(), 3)


def memory() -> Memory:
    kinds = Composite.draw(seeded(), 2, (1, 8, 8), torch.float32, 4), Pixels(torch.rand(2, 1, 8, 8))
    stored = Exemplars(torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8), torch.rand(3, 2))
    return Memory(dict(enumerate([*kinds, stored])))


def state() -> State:
    return {"step": counter(7), "generator": seeded(3).get_state(), "memory.pixels": torch.rand(2, 1, 8, 8)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_folder_is_named_after_its_experiment_and_holds_its_settings(tmp_path: Path) -> None:
    made = RunFolder.of(tmp_path / "not yet" / "there", EXPERIMENT)
    made.open(EXPERIMENT, "fingerprint")
    assert made.path.name == EXPERIMENT.name
    assert RunFolder.existing(made.path).experiment() == EXPERIMENT
    assert not made.finished
    made.open(EXPERIMENT, "fingerprint")  # opening it again changes nothing


def test_folder_of_another_experiment_is_refused(tmp_path: Path, folder: RunFolder) -> None:
    with pytest.raises(InputError, match="holds another experiment"):
        folder.open(Experiment.of(width=5), "fingerprint")


def test_folder_of_the_same_experiment_on_changed_data_is_refused(folder: RunFolder) -> None:
    with pytest.raises(InputError, match="data of 'digits' have changed"):
        folder.open(EXPERIMENT, "another fingerprint")


@pytest.mark.parametrize("config", ["", "{", "[]", "null", '"text"', "{}", '{"experiment": 3}', "\x00", "[" * 100_000])
def test_folder_with_foreign_settings_is_refused(folder: RunFolder, config: str) -> None:
    folder.config_file.write_text(config)
    with pytest.raises(InputError):
        folder.open(EXPERIMENT, "fingerprint")
    with pytest.raises(InputError):
        folder.experiment()
    assert folder.config_file.read_text() == config


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        RunFolder.existing(tmp_path)


@pytest.mark.parametrize("result", ["", "[]", "{}", '{"accuracy": null}', '{"accuracy": "high"}'])
def test_foreign_result_is_refused(folder: RunFolder, result: str) -> None:
    folder.result_file.write_text(result)
    with pytest.raises(InputError):
        folder.result()


@pytest.mark.parametrize("spoilt", [{"memory": {}}, {"memory": {"bytes": 1}}, {"classes": list(range(10))}], ids=str)
def test_result_that_lacks_what_is_shown_of_it_is_refused(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    folder = finished(tmp_path)
    write_json(folder.result_file, read_json(folder.result_file) | spoilt)
    with pytest.raises(InputError, match="does not hold the result"):
        folder.result()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("cost", ["", "[]", "[1]", '"text"', "3"])
def test_foreign_cost_is_refused_or_none(folder: RunFolder, cost: str) -> None:
    (folder.path / "cost.json").write_text(cost)
    with suppress(InputError):
        assert folder.cost() == {}


def test_jobs_come_back_as_they_were_each_under_its_own_name(folder: RunFolder) -> None:
    one, other = state(), state()
    folder.save_job("condense 1-2", one, {"condense": 1.5})
    folder.save_job("learn 1", other, {"condense": 2.5, "learn": 0.1})
    loaded, reloaded = folder.load_job("condense 1-2"), folder.load_job("learn 1")
    assert loaded is not None
    assert reloaded is not None
    assert same(loaded[0], one)
    assert same(reloaded[0], other)
    assert (loaded[1], reloaded[1]) == ({"condense": 1.5}, {"condense": 2.5, "learn": 0.1})
    assert folder.load_job("condense 1-3") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
        lambda path: path.write_bytes(pickle.dumps({"step": 1})),
        lambda path: save_file(state(), path),
        lambda path: write_tensors(path, state(), {"job": "learn 2", "cost": {}}),
        lambda path: write_tensors(path, {"step": counter(1)}, {"job": "learn 1", "cost": {}}),
        lambda path: write_tensors(path, state(), {"job": "learn 1"}),
    ],
    ids=["empty", "cut", "cut by one", "longer", "lying", "pickle", "undescribed", "another's", "part", "no cost"],
)
def test_damaged_checkpoint_of_a_job_is_as_good_as_none(folder: RunFolder, damage: Callable[[Path], Any]) -> None:
    folder.save_job("learn 1", state(), {"learn": 1.0})
    (path,) = folder.resume.iterdir()
    damage(path)
    assert folder.load_job("learn 1") is None


def test_progress_comes_back_as_it_was_and_forgets_the_jobs_it_was_made_of(folder: RunFolder) -> None:
    folder.save_job("learn 0", state(), {})
    kept = Progress(Learner(memory(), params()), ([[4, 3], [4, 4]],), ((3, 1), (0, 4)), (("learn", 1.25),))
    folder.save_progress(kept, keep_memory=True)
    assert folder.load_job("learn 0") is None
    loaded = folder.load_progress()
    assert (loaded.tallies, loaded.confusion, loaded.cost) == (kept.tallies, kept.confusion, kept.cost)
    assert loaded.learner.params is not None
    assert same(loaded.learner.params, params())
    assert list(loaded.learner.memory) == list(kept.learner.memory)
    for label, remembered in kept.learner.memory.items():
        assert type(loaded.learner.memory[label]) is type(remembered)
        assert same(loaded.learner.memory[label].tensors(), remembered.tensors())


def test_progress_without_memory_keeps_the_rest(folder: RunFolder) -> None:
    folder.save_progress(Progress(Learner(memory(), params()), ([[1, 1]],), ((1,),)), keep_memory=False)
    loaded = folder.load_progress()
    assert not loaded.learner.memory
    assert loaded.learner.params is not None
    assert (loaded.tallies, loaded.confusion) == (([[1, 1]],), ((1,),))


def test_no_progress_yet_is_a_beginning(folder: RunFolder) -> None:
    assert folder.load_progress() == Progress(Learner(Memory()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(pickle.dumps({"memory": 1})),
        lambda path: save_file(params(), path),
        lambda path: write_tensors(path, params(), {"memory": None, "tallies": [], "cost": []}),
        lambda path: write_tensors(path, params(), {"memory": {}, "tallies": 3, "cost": "x"}),
    ],
    ids=["empty", "cut", "pickle", "undescribed", "no memory", "nonsense"],
)
def test_damaged_progress_is_a_sentence(folder: RunFolder, damage: Callable[[Path], Any]) -> None:
    folder.save_progress(Progress(Learner(memory(), params()), ([[1]],)), keep_memory=True)
    (path,) = folder.resume.iterdir()
    damage(path)
    with pytest.raises(InputError) as caught:
        folder.load_progress()
    assert str(path) in str(caught.value)


def test_events_are_lines_of_json(folder: RunFolder) -> None:
    folder.event("start", versions={"python": "3"})
    folder.event("finish", accuracy=0.5)
    lines = (folder.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "finish"]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_event_cut_off_by_a_crash_is_dropped(folder: RunFolder, cut: int) -> None:
    folder.event("start")
    folder.event("progress", step=1)
    path = folder.path / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    folder.event("resume")
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert (events[0], events[-1]) == ("start", "resume")
    assert set(events[1:-1]) <= ({"progress"} if cut == 1 else set())


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a run's lock."""
    script = """if True:
        import sys, filelock
        with filelock.FileLock(sys.argv[1]):
            print("held", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_folder_is_locked_while_a_live_process_works_on_it(folder: RunFolder) -> None:
    with held(folder.path) as process:
        with pytest.raises(InputError, match="another process"), folder.locked():
            raise AssertionError("two are at work")
        process.kill()
        process.wait()
        with folder.locked():
            pass


def test_lock_is_given_back_even_after_a_failure(folder: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), folder.locked():
        raise ZeroDivisionError
    with folder.locked():
        pass


def test_result_is_written_last(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def failing(path: Path, value: object) -> None:
        if path == folder.result_file:
            written.extend(sorted(there.name for there in folder.path.iterdir() if there.name[0] != "."))
            raise StorageError("the disk is full")

    monkeypatch.setattr(store, "write_json", failing)
    with pytest.raises(StorageError):
        folder.finish(memory(), ("a", "b", "c"), params(), RESULT, {})
    assert {"memory.safetensors", "network.safetensors"} <= set(written)
    assert not folder.finished


def test_finished_folder_keeps_only_what_came_out(folder: RunFolder) -> None:
    folder.save_job("learn 0", state(), {})
    (folder.path / ".result.json.0123456789ab.tmp").write_bytes(b"half")
    folder.finish(memory(), ("a", "b", "c"), params(), RESULT, {"seconds": 1.0})
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "config.json",
        "cost.json",
        "memory.safetensors",
        "network.safetensors",
        "result.json",
    ]
    assert (folder.result(), folder.cost()) == (RESULT, {"seconds": 1.0})
    loaded, names = folder.memory()
    assert (names, loaded.nbytes) == (("a", "b", "c"), memory().nbytes)


def test_same_outcome_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for place in "ab":
        made, kept = RunFolder.of(tmp_path / place, EXPERIMENT), Memory({0: Pixels(torch.full((1, 1, 8, 8), 0.5))})
        made.open(EXPERIMENT, "fingerprint")
        made.finish(kept, ("é",), params(), {"accuracy": 0.5, "classes": ["é"]}, {})
        contents.append({path.name: path.read_bytes() for path in made.path.iterdir()})
    assert contents[0] == contents[1]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_place_that_cannot_be_written_is_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"Cannot write to the output directory .*\.$"):
        check_writable(tmp_path / place)
    assert (tmp_path / "file").read_text() == "in the way"


def test_place_that_can_be_written_is_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "place")
    assert list((tmp_path / "new" / "place").iterdir()) == []


def test_failed_write_leaves_what_was_there(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save_job("learn 0", state(), {"learn": 1.0})
    (path,) = folder.resume.iterdir()
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full; free some space"):
        folder.save_job("learn 0", state(), {"learn": 2.0})
    assert path.read_bytes() == before
    assert list(folder.resume.iterdir()) == [path]
