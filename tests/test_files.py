"""Files are whole or absent: what a failed or interrupted write leaves, and what reading says."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccmcl.errors import InputError, StorageError
from ccmcl.files import first_line, read_json, storage_error, write, write_json
from ccmcl.tensor_files import read_tensors, write_tensors

UNTOUCHED = "What was saved before is untouched."


def failing(error: BaseException) -> Callable[[int], None]:
    def fsync(_: int) -> None:
        raise error

    return fsync


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 1000, bytes(3_000_000)])
def test_what_is_written_is_there_and_nothing_else(data: bytes, tmp_path: Path) -> None:
    write(tmp_path / "a.bin", b"old")
    write(tmp_path / "a.bin", data)
    assert (tmp_path / "a.bin").read_bytes() == data
    assert names(tmp_path) == ["a.bin"]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c.bin", b"deep")
    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"deep"


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full; free some space and start the same command again"),
        (errno.EIO, "input/output error"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    there: bool, number: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    if there:
        write(path, b"old")
    monkeypatch.setattr(os, "fsync", failing(OSError(number, os.strerror(number))))
    with pytest.raises(StorageError) as caught:
        write(path, b"new")
    assert str(caught.value) == f"Cannot write {path}: {reason}. {UNTOUCHED}"
    assert names(tmp_path) == ["a.bin"] * there
    assert not there or path.read_bytes() == b"old"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()], ids=repr)
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    write(path, b"old")
    monkeypatch.setattr(os, "fsync", failing(error))
    with pytest.raises(type(error)):
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_to_its_end_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write(path, b"old")
    with pytest.raises(StorageError) as caught, files_of_at_most(10_000):
        write(path, bytes(20_000))
    assert str(caught.value) == f"Cannot write {path}: file too large. {UNTOUCHED}"
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_until_all_is_on_the_disk_the_old_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen, synced = tmp_path / "a.bin", [], os.fsync

    def look(descriptor: int) -> None:
        synced(descriptor)
        seen.append((path.read_bytes(), os.fstat(descriptor).st_size))

    write(path, b"old")
    monkeypatch.setattr(os, "fsync", look)
    write(path, b"newer")
    assert seen[:1] == [(b"old", 5)]
    assert path.read_bytes() == b"newer"


def test_a_reader_sees_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    contents = [bytes([value]) * 200_000 for value in range(2)]
    write(path, contents[0])
    over = threading.Event()

    def rewrite() -> None:
        for turn in range(60):
            write(path, contents[turn % 2])
        over.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = 0
    while not over.is_set() or reads < 10:
        assert path.read_bytes() in contents
        reads += 1
    writer.join()
    assert names(tmp_path) == ["a.bin"]


def test_a_folder_in_the_place_of_the_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError) as caught:
        write(tmp_path / "taken", b"new")
    assert str(caught.value) == f"Cannot write {tmp_path / 'taken'}: is a directory. {UNTOUCHED}"
    assert names(tmp_path) == ["taken"]
    monkeypatch.chdir(tmp_path / "taken")
    for nameless in (Path(), Path("/")):
        with pytest.raises(StorageError, match=f"Cannot write {nameless}: "):
            write(nameless, b"new")
    assert names(tmp_path / "taken") == []


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for path in (tmp_path / "file" / "a.bin", tmp_path / "file" / "deeper" / "a.bin"):
        with pytest.raises(StorageError, match=rf"Cannot write {path}: .*\. {UNTOUCHED}"):
            write(path, b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_name_as_long_as_the_disk_allows_can_be_written(tmp_path: Path) -> None:
    longest = "a" * os.pathconf(tmp_path, "PC_NAME_MAX")
    (tmp_path / longest).write_bytes(b"old")
    write(tmp_path / longest, b"new")
    assert (tmp_path / longest).read_bytes() == b"new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_of_a_file_is_what_the_umask_says(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a.bin", b"x")
        write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(1)}, {})
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_error_without_words_still_makes_a_sentence() -> None:
    error = storage_error(Path("x"), OSError("Strange"))
    assert isinstance(error, StorageError)
    assert str(error) == f"Cannot write x: strange. {UNTOUCHED}"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_json_comes_back_as_it_was(value: object) -> None:
    path = Path(os.environ["CCMCL_CACHE"], "value.json")
    write_json(path, value)
    assert read_json(path) == value
    first = path.read_bytes()
    write_json(path, json.loads(first))
    assert path.read_bytes() == first


def test_json_is_readable_sorted_and_in_utf_8(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n "a": "é",\n "b": 1\n}\n'


def test_json_holds_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert names(tmp_path) == []


def test_a_file_name_that_is_not_unicode_can_be_noted_down(tmp_path: Path) -> None:
    source = os.fsdecode(b"/data/\xff.npz")
    write_json(tmp_path / "a.json", {"source": source})
    assert read_json(tmp_path / "a.json") == {"source": source}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{'a': 1}", b"9" * 5000])
def test_damaged_json_is_said_to_be_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json is damaged: it is not valid JSON \(.*\)\."):
        read_json(tmp_path / "a.json")


def test_json_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Cannot read .*a\.json: no such file or directory\."):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match="is a directory"):
        read_json(tmp_path)


def test_tensors_come_back_with_their_types_shapes_and_description(tmp_path: Path) -> None:
    about = {"b": [1, {"c": None}], "a": "é\n", "n": 2**70}
    kept = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "state": torch.Generator().get_state(),
        "double": torch.rand(2, 3, dtype=torch.float64).T,
        "grad": torch.rand(3, requires_grad=True),
    }
    write_tensors(tmp_path / "t", kept, about)
    tensors, described = read_tensors(tmp_path / "t")
    assert described == about
    assert sorted(tensors) == sorted(kept)
    for name, tensor in kept.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_a_description_in_another_order_gives_the_same_bytes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {"x": torch.zeros(1), "y": torch.ones(2)}, {"p": 1, "q": 2})
    write_tensors(tmp_path / "b", {"y": torch.ones(2), "x": torch.zeros(1)}, {"q": 2, "p": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_is_read_stays_when_the_file_changes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {"x": torch.arange(1000)}, {})
    tensors, _ = read_tensors(tmp_path / "t")
    with (tmp_path / "t").open("r+b") as file:
        file.write(b"\xff" * (tmp_path / "t").stat().st_size)
    assert torch.equal(tensors["x"], torch.arange(1000))
    assert tensors["x"].data_ptr() % 16 == 0


@pytest.mark.parametrize(
    ("message", "line"),
    [("One.\nTwo.", "One"), ("  spaced. \n", "spaced"), ("", "ValueError"), ("\n \n", "ValueError")],
)
def test_the_first_line_of_a_message_fits_into_a_sentence(message: str, line: str) -> None:
    assert first_line(ValueError(message)) == line
