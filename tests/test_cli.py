"""The command line: one sentence for every mistake, clean output for programs, and no half-written runs."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from ccmcl import __version__
from ccmcl.cli import main
from ccmcl.data import known
from ccmcl.experiment import Experiment
from ccmcl.kinds import Composite, Exemplars, Pixels
from ccmcl.memory import Memory
from ccmcl.memory_file import save_memory
from ccmcl.running import run
from ccmcl.store import RunFolder

SMALL: dict[str, Any] = {"preset": "paper", "width": 4, "outer": 1, "inner": 1, "matching": 1, "steps": 2, "batch": 8}
Capture = pytest.CaptureFixture[str]


def options(**given: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **given}.items()]


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """Put back what the program does about signals."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of its own, with the output below it and no data but what a test puts there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CCMCL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path / "runs"


def ending(arguments: list[str]) -> object:
    """Run the program, and return its exit code."""
    try:
        main(arguments)
    except SystemExit as end:
        return end.code
    return 0


def refused(capsys: Capture, arguments: list[str]) -> str:
    """Run the program, and return the one sentence that it ends with."""
    ended, said = ending(arguments), capsys.readouterr()
    assert ended == 2, said.err
    assert said.out == ""
    assert said.err.startswith("ccmcl: ")
    assert said.err.endswith((".\n", "?\n"))
    assert said.err.count("\n") == 1
    assert len(said.err) < 600
    return said.err


def told(capsys: Capture, arguments: list[str]) -> str:
    """Run the program to a good end, and return what it prints."""
    main(arguments)
    return capsys.readouterr().out


def write_npz(path: Path, **changed: Any) -> Path:
    """Write a small data set of four classes."""
    noise = np.random.default_rng(0)
    given = {"x": noise.integers(0, 256, (40, 8, 8), dtype=np.uint8), "y": np.arange(40) % 4, **changed}
    np.savez(path, **given)
    return path


def nan_pictures() -> Any:
    x = np.random.default_rng(0).random((40, 8, 8))
    x[7, 3, 3] = np.nan
    return x


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset=minst"], "did you mean 'mnist'"),
        (["--dataset=cifar"], "did you mean 'cifar10'"),
        (["--dataset=nothing at all"], "known: digits, mnist, fashion-mnist, cifar10, svhn"),
        (["--dataset=missing.npz"], "no data set, file or folder 'missing.npz'"),
        (["--dataset="], "no data set, file or folder ''"),
        (["--dataset=cut.npz"], "cut.npz"),
        (["--dataset=text.npz"], "text.npz"),
        (["--dataset=pickle.npz"], "pickle.npz"),
        (["--dataset=foreign.txt"], "foreign.txt"),
        (["--dataset=other arrays.npz"], "expected x_train"),
        (["--dataset=nan.npz"], "NaN"),
        (["--dataset=plain.npz"], "of one plain colour"),
        (["--dataset=mnist", "--data-dir=cut"], "images"),
        (["--dataset=empty"], "empty"),
        (["--budget=0"], "budget of '0' leaves nothing"),
        (["--budget=-1"], "Cannot read the budget '-1'"),
        (["--budget", "-1"], "budget"),
        (["--budget=abc"], "Cannot read the budget 'abc'"),
        (["--budget="], "Cannot read the budget ''"),
        (["--budget=9"], "smaller than one component per class"),
        (["--budget=1KiB"], "smaller than one component per class"),
        (["--budget=63B/class", "--method=rehearsal"], "smaller than one picture per class"),
        (["--budget=9999999999999999999999"], ""),
        (["--budget=" + "9" * 400 + "KiB"], "budget"),
        (["--per-experience=1,2,30"], "33 classes, but the stream has 10"),
        (["--per-experience=0"], "at least one class"),
        (["--per-experience=-2"], "at least one class"),
        (["--per-experience=two"], "Cannot read the classes of each experience"),
        (["--order=0,99"], "expected distinct class numbers from 0 to 9"),
        (["--order=0,0"], "expected distinct class numbers"),
        (["--order=backwards"], "Cannot read the class order"),
        (["--order=0,1", "--per-experience=2,2"], "4 classes, but the stream has 2"),
        (["--holdout=1435"], "Cannot hold out 1435 of 1435"),
        (["--holdout=99999"], "Cannot hold out 99999"),
        (["--holdout=1434"], "hold"),
        (["--holdout=-1"], "holdout must not be negative"),
        (["--method=compsite"], "did you mean 'composite'"),
        (["--preset=papr"], "did you mean 'paper'"),
        (["--condense-optimiser=rmsprob"], "did you mean 'rmsprop'"),
        (["--stepz=3"], "--stepz"),
        (["--settings=3"], "--settings"),
        (["extra"], "extra"),
        (["--training=many"], "many"),
        (["--seed=1.5"], "1.5"),
        (["--seed=-1"], "seed must not be negative"),
        (["--rate=fast"], "fast"),
        (["--rate=nan"], "rate must be a positive number"),
        (["--ratio=0"], "ratio must be a positive number"),
        (["--ratio=1e15"], ""),
        (["--blocks=0"], "blocks must be at least 1"),
        (["--threads=0"], "thread"),
        (["--threads=99999999999999"], "thread"),
        (["--workers=0"], "workers"),
        (["--workers=two"], "workers"),
        (["--workers=100000"], "workers"),
        (["--compile=maybe"], "compile"),
        (["--compile="], "compile"),
        (["--device=gpu"], "device"),
        (["--device=mps"], "mps"),
        (["--precision=float8"], "precision"),
        (["--json=maybe"], "maybe"),
        (["--seed"], "--seed"),
        (["--out=file"], "Cannot write to the output directory file"),
        (["--out=file/below"], "Cannot write to the output directory file/below"),
        (["--out=/proc/x"], "Cannot write to the output directory /proc/x"),
        (["--out=" + "x" * 300], "Cannot write to the output directory"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_input_to_a_run_is_one_sentence_and_leaves_no_run(
    out: Path, capsys: Capture, arguments: list[str], words: str
) -> None:
    Path("file").write_text("in the way")
    Path("foreign.txt").write_text("hello")
    Path("text.npz").write_text("hello")
    Path("pickle.npz").write_bytes(pickle.dumps({"x": 1}))
    Path("empty").mkdir()
    whole = write_npz(Path("whole.npz")).read_bytes()
    Path("cut.npz").write_bytes(whole[: len(whole) // 2])
    write_npz(Path("nan.npz"), x=nan_pictures())
    write_npz(Path("plain.npz"), x=np.full((40, 8, 8), 9, np.uint8))
    np.savez("other arrays.npz", images=np.zeros(3))
    Path("cut/mnist").mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        head = bytes((0, 0, 8, 3)) + struct.pack(">3I", count, 28, 28)
        Path(f"cut/mnist/{part}-images-idx3-ubyte").write_bytes(head + bytes(100))
        head = bytes((0, 0, 8, 1)) + struct.pack(">I", count)
        Path(f"cut/mnist/{part}-labels-idx1-ubyte").write_bytes(head + bytes(k % 10 for k in range(count)))

    others = [one for one in options() if not any(given.startswith(one.split("=")[0]) for given in arguments)]
    assert words.lower() in refused(capsys, ["run", "--quiet", *others, *arguments]).lower()
    assert not list(out.glob("*/*"))
    assert Path("file").read_text() == "in the way"


@pytest.mark.parametrize("setting", ["width", "steps", "outer", "inner", "matching", "batch"])
@pytest.mark.parametrize("value", ["0", "-3", "many", "1e3x"])
def test_impossible_number_is_one_sentence_that_names_it(out: Path, capsys: Capture, setting: str, value: str) -> None:
    said = refused(capsys, ["run", "--quiet", *options(**{setting: value})])
    assert setting in said
    assert value in said
    assert not out.exists()


def test_number_can_follow_after_a_space(out: Path, capsys: Capture) -> None:
    assert "steps must be at least 1, not -3" in refused(capsys, ["run", "--steps", "-3"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], 'Did you mean "run"'),
        (["--methdo", "composite"], "--methdo"),
        (["sweep"], "Give a file"),
        (["sweep", "missing.toml"], "missing.toml"),
        (["sweep", "--method=composite,magic"], "no method 'magic'"),
        (["sweep", "--method="], "no method ''"),
        (["sweep", "--seed=0,x"], "--seed takes whole numbers"),
        (["sweep", "--rate=fast"], "--rate takes numbers"),
        (["sweep", "--method=joint", "--workers=0"], "workers must be from 1"),
        (["sweep", "--method=joint", "--engine=steam"], "no engine 'steam'"),
        (["sweep", "--method=joint", "--device=gpu"], "no device 'gpu'"),
        (["sweep", "--method=joint", "--compile=yes"], "no compile 'yes'"),
        (["results", "nowhere"], "no folder nowhere"),
        (["data", "minst"], "did you mean 'mnist'"),
        (["data", "missing.npz"], "missing.npz"),
        (["show"], "requires an argument"),
        (["show", "a", "b"], "b"),
    ],
    ids=str,
)
def test_bad_command_is_one_sentence(out: Path, capsys: Capture, arguments: list[str], words: str) -> None:
    assert words in refused(capsys, arguments)
    assert not out.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One finished run, to be shown."""
    return run(Experiment.of(**SMALL, per_experience="5"), tmp_path_factory.mktemp("finished"))


MEMORY = Memory({0: Composite(torch.rand(2, 1, 8, 8), torch.rand(2, 4)), 2: Pixels(torch.rand(3, 1, 8, 8))})


def lying(whole: bytes) -> bytes:
    """Make the header of a safetensors file claim more than there is."""
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header["0.components"]["shape"] = [2, 1, 80, 80]
    changed = json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + whole[8 + length :]


def other_shapes(whole: bytes) -> bytes:
    """Make weights that do not fit the components, in a file that is otherwise sound."""
    about = json.dumps({"format": "ccmcl memory 1", "kinds": ["composite"], "names": []})
    tensors = {
        "labels": torch.zeros(1, dtype=torch.int32),
        "0.components": torch.rand(2, 1, 8, 8),
        "0.weights": torch.rand(3, 4),
    }
    return save(tensors, {"ccmcl": about})


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:7],
        lambda whole: whole[:50],
        lambda whole: whole[:-1],
        lambda whole: whole + b"more",
        lambda whole: b"\xff" * 8 + whole[8:],
        lambda whole: struct.pack("<Q", 2**40) + whole[8:],
        lying,
        other_shapes,
        lambda whole: pickle.dumps({"labels": [1]}),
        lambda whole: b"hello\nworld\n" * 50,
        lambda whole: save({"x": torch.zeros(1)}),
        lambda whole: save({"x": torch.zeros(1)}, {"ccmcl": "[]"}),
        lambda whole: save({"x": torch.zeros(1)}, {"ccmcl": "{"}),
    ],
    ids=[
        "empty",
        "7 bytes",
        "50 bytes",
        "cut by one",
        "longer",
        "endless header",
        "long header",
        "lying header",
        "weights of others",
        "pickle",
        "text",
        "no description",
        "a list for a description",
        "broken description",
    ],
)
def test_damaged_memory_file_is_one_sentence(out: Path, capsys: Capture, damage: Callable[[bytes], bytes]) -> None:
    path = Path("memory.safetensors")
    save_memory(MEMORY, path, ["a", "b", "c"])
    path.write_bytes(damage(path.read_bytes()))
    assert "memory.safetensors" in refused(capsys, ["show", str(path), "--png=picture.png"])
    assert not Path("picture.png").exists()


def test_pickle_named_like_a_memory_is_not_opened(out: Path, capsys: Capture) -> None:
    torch.save({"labels": torch.zeros(1)}, "memory.safetensors")
    assert "not a whole safetensors file" in refused(capsys, ["show", "memory.safetensors"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing", "There is no file nothing"),
        (".", "is not a run"),
        ("unfinished", "not finished"),
        ("foreign result", "result.json"),
        ("half a result", "result.json"),
        ("x" * 300, "x"),
    ],
)
def test_showing_what_is_no_finished_run_is_one_sentence(
    out: Path, capsys: Capture, finished: RunFolder, path: str, words: str
) -> None:
    for name, config, result in [
        ("unfinished", finished.config_file.read_text(), None),
        ("foreign result", finished.config_file.read_text(), "{}"),
        ("half a result", finished.config_file.read_text(), '{"accuracy": 1.0}'),
    ]:
        Path(name).mkdir()
        Path(name, "config.json").write_text(config)
        if result is not None:
            Path(name, "result.json").write_text(result)
    assert words in refused(capsys, ["show", path])


def test_run_prints_a_table_and_where_it_is(out: Path, capsys: Capture) -> None:
    printed = told(capsys, ["run", "--quiet", *options(per_experience=5)])
    (folder,) = out.iterdir()
    result = RunFolder(folder).result()
    assert f"run folder: runs/{folder.name}" in printed
    assert "0, 1, 2, 3, 4" in printed
    assert f"accuracy {result['accuracy']:.2%}" in printed
    assert f"{result['memory']['bytes']:,} bytes" in printed


def test_json_is_all_that_is_printed_and_is_the_result(out: Path, capsys: Capture) -> None:
    main(["run", "--json", *options(per_experience=5)])
    said = capsys.readouterr()
    printed = json.loads(said.out)
    (folder,) = out.iterdir()
    assert printed.pop("run") == f"runs/{folder.name}"
    assert printed.pop("cost") == json.loads((folder / "cost.json").read_text())
    assert printed == json.loads((folder / "result.json").read_text())
    assert "experience 2/2" in said.err  # progress goes elsewhere


def test_second_call_answers_from_the_folder(out: Path, capsys: Capture) -> None:
    arguments = ["run", "--json", *options(per_experience=5)]
    first = told(capsys, arguments)
    (folder,) = out.iterdir()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.suffix}
    main(arguments)
    said = capsys.readouterr()
    assert said.out == first
    assert said.err == ""
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.suffix} == before
    assert [path for path in out.iterdir() if path.name[0] == "."] == []


def test_every_setting_of_an_experiment_can_be_given(out: Path, capsys: Capture) -> None:
    helped = " ".join(told(capsys, ["run", "--help"]).split())
    for field in dataclasses.fields(Experiment):
        assert f"--{field.name.replace('_', '-')} " in helped
    given = Experiment.of(**SMALL, per_experience="5,5", seed=3, order="random", budget="3KiB", holdout=700, ratio=1.5)
    main(["run", "--quiet", "--json", *(f"--{k.replace('_', '-')}={v}" for k, v in given.as_dict().items())])
    assert RunFolder(out / given.name).experiment() == given


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_help_begins_with_what_everybody_gives(out: Path, capsys: Capture, command: str) -> None:
    first, second, third = told(capsys, [command, "--help"]).split("╭─ ")[1:4]
    assert first.startswith("The experiment ")
    for name in ("--dataset", "--method", "--budget", "--preset", "--seed"):
        assert f"{name} " in first
    assert second.startswith("Options ")
    assert "--out " in second
    assert "--dataset" not in second + third


def test_threads_are_set(out: Path, capsys: Capture) -> None:
    before = torch.get_num_threads()
    try:
        main(["run", "--quiet", "--json", "--threads=2", *options(per_experience=10, method="finetune")])
        assert json.loads(capsys.readouterr().out)["cost"]["machine"]["threads"] == 2
    finally:
        torch.set_num_threads(before)


def test_progress_in_a_log_has_no_escape_codes(out: Path, capsys: Capture) -> None:
    main(["run", *options(per_experience=5, method="rehearsal")])
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith("digits-rehearsal-20-paper-seed0-")
    assert len(said.err.splitlines()) == 3
    for text in said:
        assert "\x1b" not in text
        assert "\r" not in text


def test_run_can_be_shown(out: Path, capsys: Capture, finished: RunFolder) -> None:
    printed = told(capsys, ["show", str(finished.path)])
    assert f"accuracy {finished.result()['accuracy']:.2%}" in printed
    assert "2 components mixed into 4 images" in printed
    assert f"{finished.result()['memory']['bytes']:,}" in printed


def test_run_can_be_shown_as_json(out: Path, capsys: Capture, finished: RunFolder) -> None:
    printed = json.loads(told(capsys, ["show", str(finished.path), "--json"]))
    assert {name: printed[name] for name in finished.result()} == finished.result()


@pytest.mark.parametrize("method", ["finetune", "joint"])
def test_run_without_a_memory_can_be_shown_but_not_drawn(out: Path, capsys: Capture, method: str) -> None:
    folder = run(Experiment.of(**SMALL, per_experience="10", method=method), out)
    assert "accuracy" in told(capsys, ["show", str(folder.path)])
    assert json.loads(told(capsys, ["show", "--json", str(folder.path)]))["accuracy"] == folder.result()["accuracy"]
    assert "no memory to draw" in refused(capsys, ["show", str(folder.path), "--png=p.png"])


def test_memory_file_can_be_shown(out: Path, capsys: Capture) -> None:
    save_memory(MEMORY, "m.safetensors", ["zero", "one", "two"])
    printed = told(capsys, ["show", "m.safetensors"])
    assert "zero" in printed
    assert "two" in printed
    assert "one " not in printed  # nothing is remembered of it
    assert "3 free images" in printed
    assert f"{MEMORY.nbytes:,}" in printed
    as_json = json.loads(told(capsys, ["show", "m.safetensors", "--json"]))
    assert as_json["memory"] == {"images": 7, "scalars": MEMORY.scalars, "bytes": MEMORY.nbytes}
    assert as_json["names"] == ["zero", "one", "two"]


def is_picture(path: Path) -> bool:
    with Image.open(path) as image:
        image.load()
        extremes = image.convert("L").getextrema()
        return image.format == "PNG" and extremes[0] != extremes[1]


def test_memory_can_be_drawn(out: Path, capsys: Capture, finished: RunFolder) -> None:
    save_memory(MEMORY, "m.safetensors", ["zero", "one", "two"])
    assert "picture: new/m.png" in told(capsys, ["show", "m.safetensors", "--png=new/m.png"])
    assert is_picture(Path("new/m.png"))
    json.loads(told(capsys, ["show", str(finished.path), "--png=run.png", "--json"]))
    assert is_picture(Path("run.png"))


@pytest.mark.parametrize("name", ["$", "$x$ and $y$", r"\frac{1}{0}$", "a" * 200, "猫", "[red]x[/red]"])
def test_memory_of_a_class_of_any_name_can_be_drawn(out: Path, capsys: Capture, name: str) -> None:
    save_memory(Memory({0: Pixels(torch.rand(1, 3, 8, 8))}), "m.safetensors", [name])
    told(capsys, ["show", "m.safetensors", "--png=m.png"])
    assert is_picture(Path("m.png"))


def test_empty_memory_is_shown_and_drawing_it_is_one_sentence_at_most(out: Path, capsys: Capture) -> None:
    save_memory(Memory(), "m.safetensors")
    assert "0 images" in told(capsys, ["show", "m.safetensors"])
    assert ending(["show", "m.safetensors", "--png=m.png"]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


def test_hostile_memory_file_cannot_steer_the_terminal(out: Path, capsys: Capture) -> None:
    save_memory(Memory({0: Pixels(torch.rand(1, 1, 8, 8))}), "m.safetensors", ["\x1b[31mred\x1b]0;title\x07"])
    assert ending(["show", "m.safetensors"]) in (0, 2)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out + said.err


def test_picture_that_cannot_be_written_is_one_sentence(out: Path, capsys: Capture) -> None:
    Path("file").write_text("in the way")
    save_memory(MEMORY, "m.safetensors")
    assert ending(["show", "m.safetensors", "--png=file/below.png"]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_all_data_sets_are_listed(out: Path, capsys: Capture) -> None:
    printed = told(capsys, ["data"])
    for name in known():
        assert name in printed
    assert "ccmcl data svhn" in printed
    listed = json.loads(told(capsys, ["data", "--json"]))
    assert [row["name"] for row in listed] == list(known())
    assert (listed[0]["train"], listed[0]["test"]) == (1435, 362)
    assert [row["found"] for row in listed[1:]] == [None] * 4
    assert len(known()) == 5


def test_one_data_set_is_looked_up_by_name_and_by_path(out: Path, capsys: Capture) -> None:
    (digits,) = json.loads(told(capsys, ["data", "digits", "--json"]))
    assert (digits["name"], digits["shape"]) == ("digits", [1, 8, 8])
    write_npz(Path("own.npz"))
    (own,) = json.loads(told(capsys, ["data", "own.npz", "--json"]))
    assert (own["train"], own["test"], own["shape"]) == (32, 8, [1, 8, 8])
    assert (own["official"], own["size"]) == (None, Path("own.npz").stat().st_size)
    assert "8×8 grey" in told(capsys, ["data", "own.npz"])


def test_damaged_data_set_is_listed_as_unusable(out: Path, capsys: Capture) -> None:
    folder = Path("data/mnist")
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(b"nonsense")
    printed = told(capsys, ["data"])
    assert "unusable" in printed
    assert all(name in printed for name in known())


NAMES = ["[red]x[/red]", "<script>", "[/closed]", "$x$"]


def test_class_names_are_printed_as_they_are(out: Path, capsys: Capture) -> None:
    path = write_npz(Path("own.npz"), classes=np.array(NAMES))
    main(["run", *options(per_experience=1, dataset=path)])
    said = capsys.readouterr()
    for name in NAMES:
        assert name in said.out
        assert name in said.err
    (folder,) = out.iterdir()
    printed = told(capsys, ["show", str(folder), "--png=m.png"])
    for name in NAMES:
        assert printed.count(name) >= 3  # a column, a row, and its memory
    assert is_picture(Path("m.png"))


def test_data_set_path_is_printed_as_it_is(out: Path, capsys: Capture) -> None:
    path = Path("[red]own[/red] [b].npz")
    path.parent.mkdir()
    write_npz(path)
    arguments = ["sweep", *options(dataset=path), "--method=finetune", "--dry-run"]
    assert str(path) in told(capsys, arguments).replace("\n", " ")
    assert str(path) in told(capsys, ["data", str(path)])


def test_data_set_with_a_name_that_is_no_text_can_be_used(out: Path, capsys: Capture) -> None:
    name = os.fsdecode(b"\xff\xfe.npz")
    write_npz(Path(name))
    main(["run", "--quiet", *options(dataset=name)])
    assert "accuracy" in capsys.readouterr().out


def test_data_set_with_a_long_name_can_be_used(out: Path, capsys: Capture) -> None:
    path = write_npz(Path("a" * 245 + ".npz"))
    main(["run", "--quiet", *options(dataset=path)])
    assert "accuracy" in capsys.readouterr().out


def test_memory_as_large_as_the_machine_is_one_sentence(out: Path, capsys: Capture) -> None:
    for setting in ({"budget": 10**15}, {"width": 10**15}):
        said = refused(capsys, ["run", "--quiet", *options(**setting)])
        assert "memory" in said


def test_stored_pictures_with_logits_are_shown(out: Path, capsys: Capture) -> None:
    kept = Exemplars(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, 2))
    save_memory(Memory({0: kept}), "m.safetensors")
    assert "1 stored picture with logits" in told(capsys, ["show", "m.safetensors"])


def test_command_is_installed() -> None:
    (entry,) = entry_points(group="console_scripts", name="ccmcl")
    assert entry.value == "ccmcl.cli:main"


def test_version_is_printed(capsys: Capture) -> None:
    assert told(capsys, ["--version"]).strip() == __version__


def real(*arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "ccmcl.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        encoding="utf-8",
        **given,
    )


def test_real_process_ends_a_mistake_with_one_line_and_code_2(out: Path) -> None:
    ended = real("run", "--dataset=minst")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("ccmcl: There is no data set, file or folder 'minst': did you mean 'mnist'?")
    assert ended.stderr.count("\n") == 1


def test_real_process_prints_json_alone_and_plain_progress(out: Path) -> None:
    ended = real("run", "--json", "--threads=1", *options(per_experience=5))
    assert ended.returncode == 0
    (folder,) = out.iterdir()
    printed = json.loads(ended.stdout)
    assert printed["accuracy"] == RunFolder(folder).result()["accuracy"]
    assert "\x1b" not in ended.stderr
    assert "Warning" not in ended.stderr
    assert [line.strip()[:14] for line in ended.stderr.splitlines()[1:]] == ["experience 1/2", "experience 2/2"]


def test_reader_that_goes_away_is_no_traceback(out: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-m", "ccmcl.cli", "data"], stdout=write, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(write)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said == ""


def test_output_in_plain_ascii_is_no_traceback(out: Path) -> None:
    ended = real("data", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0, ended.stderr
    assert "fashion-mnist" in ended.stdout
