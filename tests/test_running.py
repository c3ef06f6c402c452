"""What every method owes to a run: the result, the budget, and the same bytes whenever it is done again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ccmcl.budget import Budget
from ccmcl.condense import FORMING_IMAGES, moments
from ccmcl.data import load
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.kinds import Composite
from ccmcl.methods import METHODS
from ccmcl.plan import COUNTS
from ccmcl.progress import Reporter
from ccmcl.running import arrange, run
from ccmcl.store import RunFolder
from ccmcl.values import visible

TINY: dict[str, Any] = {
    "preset": "paper",
    "width": 4,
    "outer": 1,
    "inner": 3,
    "matching": 1,
    "steps": 5,
    "batch": 16,
    "condense_batch": 16,
    "order": "0,1,2,3",
    "per_experience": "2",
    "budget": "8",
}
LIMITED = list(COUNTS)
OUTCOMES = ("memory.safetensors", "network.safetensors", "result.json", "forming.safetensors")


def tiny(**changed: Any) -> Experiment:
    return Experiment.of(**{**TINY, **changed})


def outcome(folder: RunFolder) -> dict[str, bytes]:
    assert folder.finished
    assert not folder.resume.exists()
    return {name: (folder.path / name).read_bytes() for name in OUTCOMES if (folder.path / name).is_file()}


def results(folder: RunFolder) -> dict[str, object]:
    """What came out, but for the settings it came of."""
    values = {name: value for name, value in folder.result().items() if name != "experiment"}
    return {**outcome(folder), "result.json": values}


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Stopped(Exception):  # noqa: N818
    """Ends a run as an interruption would."""


@dataclass
class Stopping(Reporter):
    """Hears of so many steps, and then stops the run; counts what it heard."""

    after: int = 10**9
    at_line: int = 10**9
    heard: int = 0
    lines: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def begin(self, title: str, steps: Mapping[str, int]) -> None:
        self.titles.append(title)

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        self.heard += 1
        if self.heard > self.after:
            raise Stopped

    def line(self, text: str) -> None:
        self.lines.append(text)
        if len(self.lines) >= self.at_line:
            raise Stopped

    def end(self) -> None:
        pass


def interrupted(experiment: Experiment, out: Path, stop: Stopping, every: float = 0.0) -> bool:
    try:
        run(experiment, out, reporter=stop, checkpoint_seconds=every)
    except Stopped:
        return True
    return False


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, method: str) -> tuple[RunFolder, int]:
    """One finished run of each method, and how often it told of a step."""
    counting = Stopping()
    return run(tiny(method=method), tmp_path_factory.mktemp("once"), reporter=counting), counting.heard


@pytest.fixture(scope="module")
def once(counted: tuple[RunFolder, int]) -> RunFolder:
    return counted[0]


def test_result_has_what_a_reader_looks_for(once: RunFolder) -> None:
    result = once.result()
    assert result["classes"] == ["0", "1", "2", "3"]
    assert result["groups"] == [[0, 1], [2, 3]]
    assert [[value is None for value in row] for row in result["matrix"]] == [[False, True], [False, False]]
    test = load("digits").test
    for row, label in zip(result["confusion"], range(4), strict=True):
        assert sum(row) == len(test.of_class(label))
    counts = np.array(result["confusion"])
    assert result["accuracy"] == result["accuracies"][-1] == pytest.approx(counts.trace() / counts.sum())
    assert result["incremental_accuracy"] == pytest.approx(sum(result["accuracies"]) / 2)
    assert result["forgetting"] == pytest.approx(result["matrix"][0][0] - result["matrix"][1][0])
    assert [row["right"] for row in result["per_class"]] == counts.diagonal().tolist()


def test_cost_is_told_apart_from_the_result(once: RunFolder, method: str) -> None:
    cost = once.cost()
    assert cost["seconds"] == pytest.approx(sum(cost["seconds_by_kind"].values()))
    kinds = {"learn", "evaluate"}
    kinds |= {"condense"} if method in ("composite", "condensation") else set()
    kinds |= {"correct"} if method == "bic" else set()
    assert set(cost["seconds_by_kind"]) == kinds
    assert not {"seconds", "cost", "time"} & once.result().keys()


def test_memory_is_within_the_budget_and_counted_exactly(once: RunFolder, method: str) -> None:
    told = once.result()["memory"]
    if method not in LIMITED:
        assert not once.memory_file.exists()
        every = sum(len(load("digits").train.of_class(k)) for k in range(4))
        assert told["images"] == (0 if method == "finetune" else every)
        return
    memory, names = once.memory()
    assert names == ("0", "1", "2", "3")
    assert list(memory) == [0, 1, 2, 3]
    for kept in memory.values():
        assert len(next(iter(kept.tensors().values()))) == 2  # a budget of 8 shared by 4 classes
        if isinstance(kept, Composite):
            assert tuple(kept.weights.shape) == (2, 4)
    stored = load_file(once.memory_file)
    assert told == {"images": memory.count, "scalars": memory.scalars, "bytes": memory.nbytes}
    assert told["bytes"] == sum(tensor.nbytes for tensor in stored.values())


def test_memory_can_be_watched_forming(once: RunFolder, method: str) -> None:
    watched = once.forming()
    if method not in ("composite", "condensation"):
        assert watched == {}
        return
    memory, _ = once.memory()
    assert [label for _, label in watched] == list(memory)
    total = once.experiment().outer * once.experiment().inner
    for (_, label), seen in watched.items():
        assert list(seen) == moments(total)
        assert torch.equal(seen[total], visible(memory[label].images()[:FORMING_IMAGES]))
        assert not torch.equal(seen[total], seen[0])


def test_damaged_picture_of_the_forming_does_not_cost_the_result(tmp_path: Path) -> None:
    experiment = tiny()
    assert interrupted(experiment, tmp_path, Stopping(at_line=1))
    for kept in RunFolder.of(tmp_path, experiment).resume.glob("forming-*"):
        kept.write_bytes(b"damaged")
    assert run(experiment, tmp_path).finished


def test_network_tells_all_classes_apart(once: RunFolder) -> None:
    stored = load_file(once.network_file)
    assert len(stored["head.bias"]) == 4
    assert all(tensor.isfinite().all() for tensor in stored.values())


def test_events_tell_the_story(once: RunFolder, method: str) -> None:
    lines = [json.loads(line) for line in (once.path / "events.jsonl").read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert (kinds[0], kinds[-1], kinds.count("experience")) == ("start", "finish", 2)
    assert {line["job"] for line in lines if line["event"] == "progress"} >= {"learn 0", "learn 1"}


def test_same_seed_gives_the_same_bytes(tmp_path: Path, once: RunFolder, method: str) -> None:
    assert outcome(run(tiny(method=method), tmp_path)) == outcome(once)


def test_another_seed_gives_another_network_and_memory(tmp_path: Path, once: RunFolder, method: str) -> None:
    other = outcome(run(tiny(method=method, seed=1), tmp_path))
    for name in set(other) - {"result.json"}:
        assert other[name] != outcome(once)[name], name


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, counted: tuple[RunFolder, int], method: str, share: float
) -> None:
    once, steps = counted
    every = 1e9 if share == 0.3 else 0.0  # once with checkpoints only where work ends
    assert interrupted(tiny(method=method), tmp_path, Stopping(after=int(share * steps)), every)
    assert outcome(run(tiny(method=method), tmp_path)) == outcome(once)


def test_interrupted_after_every_few_steps_equals_uninterrupted(tmp_path: Path, once: RunFolder, method: str) -> None:
    stops = 0
    while interrupted(tiny(method=method), tmp_path, Stopping(after=4)):
        stops += 1
        assert stops < 50, "it does not come forward"
    assert stops >= 3
    assert outcome(run(tiny(method=method), tmp_path)) == outcome(once)


def test_interrupted_between_two_experiences_equals_uninterrupted(tmp_path: Path, once: RunFolder, method: str) -> None:
    assert interrupted(tiny(method=method), tmp_path, Stopping(at_line=1))
    second = Stopping()
    assert not interrupted(tiny(method=method), tmp_path, second)
    assert len(second.lines) == 1  # the first experience was not met again
    assert outcome(RunFolder.of(tmp_path, tiny(method=method))) == outcome(once)


def test_finished_run_is_answered_from_its_folder(once: RunFolder, method: str) -> None:
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in once.path.iterdir() if path.suffix}
    listening = Stopping()
    assert run(tiny(method=method), once.path.parent, reporter=listening) == once
    assert (listening.heard, listening.lines, listening.titles) == (0, [], [])
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before


@pytest.mark.parametrize("name", ["composite", "rehearsal", "bic"])
@settings(max_examples=4)
@given(data=st.data())
def test_order_of_listing_within_an_experience_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    first, second = (data.draw(st.permutations(group)) for group in ([0, 1, 2], [3, 4]))
    made = [
        run(
            tiny(method=name, order=",".join(map(str, order)), per_experience="3,2", budget="10", inner=1, steps=2),
            tmp_path_factory.mktemp("order"),
        )
        for order in ([0, 1, 2, 3, 4], [*first, *second])
    ]
    assert results(made[0]) == results(made[1])


def test_order_of_experiences_does_matter(tmp_path: Path) -> None:
    one, other = (outcome(run(tiny(order=order), tmp_path)) for order in ("0,1,2,3", "2,3,0,1"))
    assert one["memory.safetensors"] != other["memory.safetensors"]


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("budget", ["2KiB", "600B/class", "1.5KB", "3333B"])
def test_byte_budget_is_kept_and_used(tmp_path: Path, name: str, budget: str) -> None:
    folder = run(tiny(method=name, budget=budget, inner=1, steps=1, per_experience="1,3"), tmp_path)
    parsed = Budget.parse(budget)
    stored = load_file(folder.memory_file)
    payload = sum(tensor.nbytes for tensor in stored.values())
    memory, _ = folder.memory()
    share = parsed.amount if parsed.each_class else parsed.amount // 4
    assert payload == memory.nbytes <= (4 if parsed.each_class else 1) * parsed.amount
    for label in memory:
        own = 4 + sum(tensor.nbytes for key, tensor in stored.items() if key.startswith(f"{label}."))
        one_more = 64 * (4 if name in ("composite", "condensation") else 1) + 16  # at least what one more would take
        assert own <= share
        assert own + one_more + 8 * len(stored[f"{label}.{'components' if name == 'composite' else 'pixels'}"]) > share


def test_budget_too_small_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in LIMITED:
        with pytest.raises(InputError, match="smaller than one"):
            run(tiny(method=name, budget="100B"), tmp_path / "out")
        with pytest.raises(InputError, match="smaller than one"):
            run(tiny(method=name, budget="3"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def own_data(path: Path, seed: int = 0, poison: bool = False, classes: Iterable[str] = "abcd") -> Path:
    """Write a small set with a test part of its own, which can be poisoned."""
    noise = np.random.default_rng(seed)
    labels = np.arange(80) % 4
    pictures = noise.integers(0, 60, (80, 8, 8)) + 40 * labels[:, None, None]
    x_test, y_test = pictures[:20].copy(), labels[:20]
    if poison:
        x_test, y_test = np.random.default_rng(99).integers(0, 256, x_test.shape), (y_test + 1) % 4
    np.savez(
        path,
        x_train=pictures.astype(np.uint8),
        y_train=labels,
        x_test=x_test.astype(np.uint8),
        y_test=y_test,
        classes=np.array(list(classes)),
    )
    return path


OWN = {"order": "ascending", "inner": 1, "steps": 3, "budget": "8"}


def test_changed_data_at_the_same_path_are_refused(tmp_path: Path) -> None:
    path = own_data(tmp_path / "own.npz")
    experiment = tiny(dataset=str(path), **OWN)
    folder = run(experiment, tmp_path / "out")
    before = outcome(folder)
    own_data(path, seed=1)
    with pytest.raises(InputError, match="have changed since the run"):
        run(experiment, tmp_path / "out")
    assert outcome(folder) == before
    own_data(path)  # the same content again, at a later time
    assert outcome(run(experiment, tmp_path / "out")) == before


def test_changed_data_are_refused_in_the_middle_of_a_run_too(tmp_path: Path) -> None:
    path = own_data(tmp_path / "own.npz")
    experiment = tiny(dataset=str(path), **OWN)
    assert interrupted(experiment, tmp_path / "out", Stopping(after=3))
    own_data(path, poison=True)
    with pytest.raises(InputError, match="have changed since the run"):
        run(experiment, tmp_path / "out")


def test_holdout_leaves_the_test_set_untouched(tmp_path: Path, method: str) -> None:
    honest, poisoned = own_data(tmp_path / "a.npz"), own_data(tmp_path / "b.npz", poison=True)
    held, other = (
        results(run(tiny(dataset=str(path), method=method, holdout=20, **OWN), tmp_path / "out"))
        for path in (honest, poisoned)
    )
    assert held == other
    without = [run(tiny(dataset=str(path), method=method, **OWN), tmp_path / "out") for path in (honest, poisoned)]
    assert without[0].result()["confusion"] != without[1].result()["confusion"]  # else nothing was poisoned


@pytest.mark.parametrize("holdout", [1, 100, 1280])
def test_held_out_images_are_judged_on_and_never_learned_from(holdout: int) -> None:
    data = load("digits")
    stream, judged, _ = arrange(tiny(order="ascending", holdout=holdout, budget="20"), data)
    learned = torch.cat([experience.pixels for experience in stream])
    assert (len(judged), len(learned)) == (holdout, len(data.train) - holdout)

    def listed(pixels: torch.Tensor) -> list[bytes]:
        return sorted(picture.numpy().tobytes() for picture in pixels)

    assert listed(torch.cat([learned, judged.pixels])) == listed(data.train.pixels)


def test_holdout_is_the_same_for_every_seed() -> None:
    one, other = (arrange(tiny(holdout=100, seed=seed), load("digits"))[1] for seed in (0, 1))
    assert torch.equal(one.pixels, other.pixels)


@pytest.mark.parametrize("holdout", [1430, 1434, 1435, 10**9])
def test_holdout_that_leaves_a_class_nothing_to_learn_from_is_refused(tmp_path: Path, holdout: int) -> None:
    with pytest.raises(InputError, match=r"(?i)hold"):
        run(tiny(order="ascending", holdout=holdout, budget="20"), tmp_path / "out")
    assert not list(tmp_path.glob("out/*/config.json"))


def test_class_without_test_images_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = run(tiny(holdout=1), tmp_path)
    assert sum(map(sum, folder.result()["confusion"])) <= 1


def test_folder_that_is_being_worked_on_is_refused_and_left_alone(tmp_path: Path) -> None:
    experiment = tiny(method="rehearsal")
    assert interrupted(experiment, tmp_path, Stopping(after=3))
    folder = RunFolder.of(tmp_path, experiment)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with folder.locked(), pytest.raises(InputError, match="another process"):
        run(experiment, tmp_path)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("config", ['{"experiment": {}, "data": ""}', "{}", "[]", "not JSON"])
def test_folder_with_foreign_settings_is_refused(tmp_path: Path, config: str) -> None:
    folder = RunFolder.of(tmp_path, tiny())
    folder.path.mkdir()
    folder.config_file.write_text(config)
    with pytest.raises(InputError):
        run(tiny(), tmp_path)
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


def test_damaged_checkpoint_of_a_job_is_done_again(tmp_path: Path, once: RunFolder, method: str) -> None:
    experiment = tiny(method=method)
    assert interrupted(experiment, tmp_path, Stopping(after=5))
    jobs = list(RunFolder.of(tmp_path, experiment).resume.glob("job-*"))
    assert jobs
    for job in jobs:
        job.write_bytes(job.read_bytes()[:-100])
    assert outcome(run(experiment, tmp_path)) == outcome(once)


def test_damaged_progress_is_a_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    experiment = tiny(method="rehearsal")
    assert interrupted(experiment, tmp_path, Stopping(at_line=1))
    path = RunFolder.of(tmp_path, experiment).resume / "progress.safetensors"
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"progress\.safetensors"):
        run(experiment, tmp_path)
    assert path.read_bytes() == damaged


def refusal(experiment: Experiment, out: Path) -> str | None:
    """Return the sentence with which a run is refused, if it is."""
    try:
        run(experiment, out)
    except InputError as error:
        return str(error)
    return None


def test_seed_beyond_all_machine_numbers_works_or_is_a_sentence(tmp_path: Path) -> None:
    said = refusal(tiny(method="finetune", order="random", seed=2**70, per_experience="5", steps=1), tmp_path)
    assert said is None or "seed" in said


def test_run_that_diverges_says_so_instead_of_leaving_a_memory_that_cannot_be_read(tmp_path: Path) -> None:
    said = refusal(tiny(rate=1e30), tmp_path)
    if said is None:
        memory, _ = RunFolder.of(tmp_path, tiny(rate=1e30)).memory()
        assert list(memory) == [0, 1, 2, 3]
    else:
        assert "rate" in said
