"""One file from mirrors that cut, lie, vanish or deliver; all of them on this machine."""

from __future__ import annotations

import errno
import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ccmcl.errors import InputError
from ccmcl.fetch import SOURCES, Source, fetch

BODY = bytes(range(256)) * 1000
MD5 = hashlib.md5(BODY).hexdigest()


@dataclass
class Mirror:
    """A server of one body, and the ways in which it misbehaves."""

    body: bytes = BODY
    status: int = 200
    cuts: list[int] = field(default_factory=list)  # bytes to send before hanging up, one a request
    ranges: bool = True
    lies: str | None = None  # Content-Range to claim
    length: bool = True
    declared: int | None = None
    encoding: str | None = None
    silence: threading.Event | None = None  # what to wait for before answering
    asked: list[str | None] = field(default_factory=list)  # the Range of every request
    base: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.asked.append(asked)
        if self.silence:
            self.silence.wait(10)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if self.status != 200:
            request.send_error(self.status)
            return
        if start >= len(self.body):
            request.send_error(416)
            return
        rest = self.body[start:]
        request.send_response(206 if start else 200)
        if start:
            honest = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
            request.send_header("Content-Range", self.lies or honest)
        if self.length:
            request.send_header("Content-Length", str(self.declared or len(rest)))
        if self.encoding:
            request.send_header("Content-Encoding", self.encoding)
        request.end_headers()
        request.wfile.write(rest[: self.cuts.pop(0)] if self.cuts else rest)


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that hung up, as they should."""


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Mirror]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers = []

    def start(**how: Any) -> Mirror:
        served = Mirror(**how)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        served.base = f"http://127.0.0.1:{server.server_port}/"
        return served

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def gone() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}/"


def get(into: Path, *bases: str, md5: str = MD5, **how: Any) -> Path:
    return fetch(bases, "file.bin", md5, into, **{"pause": 0.0, "timeout": (2.0, 2.0), **how})


def test_a_file_arrives_whole_and_alone(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    path = get(tmp_path / "new" / "folder", mirror().base)
    assert path.read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]


def test_a_file_already_there_is_not_asked_for(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(BODY)
    server = mirror()
    get(tmp_path, server.base)
    assert server.asked == []


def test_a_cut_download_is_resumed(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror(cuts=[100_000, 50_000])
    assert get(tmp_path, server.base).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_part_of_an_earlier_run_is_continued(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(BODY[:77_777])
    server = mirror()
    assert get(tmp_path, server.base).read_bytes() == BODY
    assert server.asked == ["bytes=77777-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_server_that_ignores_ranges_starts_over(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror(cuts=[100_000], ranges=False)
    assert get(tmp_path, server.base).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-"]


def test_a_range_that_was_not_asked_for_is_not_believed(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror(cuts=[100_000], lies="bytes 5-255999/256000")
    assert get(tmp_path, server.base).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-", None]


@pytest.mark.parametrize("left_over", [b"x" * 1000, b"x" * 300_000], ids=["wrong", "longer than the file"])
def test_a_foreign_part_is_thrown_away(mirror: Callable[..., Mirror], tmp_path: Path, left_over: bytes) -> None:
    (tmp_path / "file.bin.part").write_bytes(left_over)
    server = mirror()
    assert get(tmp_path, server.base).read_bytes() == BODY
    assert server.asked == [f"bytes={len(left_over)}-", None]


def test_a_wrong_hash_is_an_error_and_leaves_nothing_behind(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror(body=b"something else")
    with pytest.raises(InputError, match=f"something else than the official file of MD5 {MD5}"):
        get(tmp_path, server.base)
    assert list(tmp_path.iterdir()) == []
    assert len(server.asked) == 1


def test_a_download_always_cut_is_given_up_but_kept(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror(cuts=[1000] * 99)
    with pytest.raises(InputError, match=r"connection was cut.* kept and will be continued"):
        get(tmp_path, server.base, tries=3)
    assert len(server.asked) == 3
    assert (tmp_path / "file.bin.part").read_bytes() == BODY[:3000]


def test_a_cut_without_a_declared_length_is_caught_by_the_hash(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="something else than the official file"):
        get(tmp_path, mirror(cuts=[1000], length=False).base)
    assert list(tmp_path.iterdir()) == []


def test_the_second_mirror_helps_when_the_first_fails(mirror: Callable[..., Mirror], gone: str, tmp_path: Path) -> None:
    for number, first in enumerate([gone, mirror(status=404).base, mirror(body=b"else").base, "ftp://x/"]):
        assert get(tmp_path / str(number), first, mirror().base).read_bytes() == BODY


def test_the_second_mirror_continues_what_the_first_began(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    first, second = mirror(cuts=[60_000, 0, 0, 0, 0]), mirror()
    assert get(tmp_path, first.base, second.base, tries=3).read_bytes() == BODY
    assert second.asked == ["bytes=60000-"]


def test_when_all_mirrors_fail_each_is_named_with_its_reason(
    mirror: Callable[..., Mirror], gone: str, tmp_path: Path
) -> None:
    missing = mirror(status=404)
    with pytest.raises(InputError) as caught:
        get(tmp_path, gone, missing.base, "file:///etc/")
    assert f"{gone} (no connection to it)" in str(caught.value)
    assert f"{missing.base} (it answered 404 Not Found)" in str(caught.value)
    assert "file:///etc/ (only http and https" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert len(missing.asked) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [{"declared": 1 << 40}, {"length": False}], ids=["declared", "undeclared"])
def test_more_than_the_limit_is_refused(mirror: Callable[..., Mirror], tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="more than 200000 bytes"):
        get(tmp_path, mirror(**how).base, limit=200_000)
    assert list(tmp_path.iterdir()) == []


def test_a_silent_server_is_not_waited_for(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    over = threading.Event()
    with pytest.raises(InputError, match="did not answer in time"):
        get(tmp_path, mirror(silence=over, status=404).base, timeout=(1.0, 0.1))
    over.set()


def test_a_file_labelled_as_compressed_is_kept_as_it_was_sent(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    packed = gzip.compress(BODY)
    md5 = hashlib.md5(packed).hexdigest()
    assert get(tmp_path, mirror(body=packed, encoding="gzip").base, md5=md5).read_bytes() == packed


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="choose another folder"):
        get(tmp_path / "file" / "folder", "http://127.0.0.1:9/")


def test_a_full_disk_is_a_sentence(
    mirror: Callable[..., Mirror], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"No space left on device\); make room"):
        get(tmp_path, mirror().base)


def test_two_at_once_download_it_once(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror()
    threads = [threading.Thread(target=get, args=(tmp_path, server.base)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_progress_is_shown_on_stderr_only_if_wanted(
    mirror: Callable[..., Mirror], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    get(tmp_path / "quiet", mirror().base)
    assert capfd.readouterr() == ("", "")
    get(tmp_path / "shown", mirror().base, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "file.bin" in err
    assert "256k/256k" in err


def test_a_set_is_found_unpacked_packed_or_dotted_but_only_whole(tmp_path: Path) -> None:
    source = Source((), {"a-idx1.gz": "", "b-idx1.gz": ""}, {"a-idx1": "", "b-idx1": ""})
    (tmp_path / "a.idx1.gz").touch()
    assert source.find(tmp_path) == {}
    (tmp_path / "b-idx1").touch()
    assert source.find(tmp_path) == {"a-idx1": tmp_path / "a.idx1.gz", "b-idx1": tmp_path / "b-idx1"}


def test_only_files_that_are_missing_are_fetched(mirror: Callable[..., Mirror], tmp_path: Path) -> None:
    server = mirror()
    (tmp_path / "a-idx1").write_text("my own")
    Source((server.base,), {"a-idx1.gz": MD5, "b-idx1.gz": MD5}, {}).fetch(tmp_path)
    assert (tmp_path / "a-idx1").read_text() == "my own"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-idx1", "b-idx1.gz"]


def test_the_table_of_sources_is_complete() -> None:
    assert list(SOURCES) == ["mnist", "fashion-mnist", "cifar10", "svhn"]
    for source in SOURCES.values():
        assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in source.mirrors)
        sums = (*source.downloads.values(), *source.contents.values())
        assert all(len(bytes.fromhex(md5)) == 16 for md5 in sums)
