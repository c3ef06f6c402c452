"""One official file from the first mirror that has it: continued after a cut, verified by its MD5."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]
import requests
import urllib3
from tqdm import tqdm  # type: ignore[import-untyped]

from ccmcl.errors import InputError


@dataclass(frozen=True)
class Source:
    """The files of a known set: where they are downloaded from, and what official content hashes to."""

    mirrors: tuple[str, ...]
    downloads: Mapping[str, str]  # file on the mirrors -> MD5 of it as downloaded
    contents: Mapping[str, str]  # file after unpacking -> MD5 of its official content
    unpacks_to: str = "."  # folder that the archive makes when somebody unpacks it

    def find(self, folder: Path) -> dict[str, Path]:
        """Return the set's files in ``folder``, unpacked ones first, or nothing unless all are there."""
        for place in (folder / self.unpacks_to, folder):
            unpacked = {name: path for name in self.contents if (path := _spelling(place, name))}
            if len(unpacked) == len(self.contents):
                return unpacked
        packed = {name: folder / name for name in self.downloads if (folder / name).is_file()}
        return packed if len(packed) == len(self.downloads) else {}

    def fetch(self, folder: Path, *, progress: bool = False) -> None:
        """Download into ``folder`` what it lacks; a file that is there in any spelling is left alone."""
        for name, md5 in self.downloads.items():
            if not _spelling(folder, name.removesuffix(".gz")) and not (folder / name).is_file():
                fetch(self.mirrors, name, md5, folder, progress=progress)


def _spelling(folder: Path, name: str) -> Path | None:
    """Find a file under its official name, the dotted one (``images.idx3``), or either with ``.gz``."""
    dotted = name.replace("-idx", ".idx")
    return next((p for n in (name, dotted) for s in ("", ".gz") if (p := folder / f"{n}{s}").is_file()), None)


_SVHN = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _idx_source(mirrors: tuple[str, ...], downloads: str, contents: str) -> Source:
    names = tuple(f"{name}.gz" for name in _IDX)
    return Source(
        mirrors,
        dict(zip(names, downloads.split(), strict=True)),
        dict(zip(_IDX, contents.split(), strict=True)),
    )


SOURCES: Mapping[str, Source] = {
    "mnist": _idx_source(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        """f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432
        9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c""",
        """6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624
        2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637""",
    ),
    "fashion-mnist": _idx_source(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        """8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe
        bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310""",
        """f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9
        8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965""",
    ),
    "cifar10": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        unpacks_to="cifar-10-batches-bin",
    ),
    "svhn": Source(
        ("http://ufldl.stanford.edu/housenumbers/",),
        _SVHN,
        _SVHN,
    ),
}


def fetch(
    url_bases: Sequence[str],
    filename: str,
    md5: str,
    into: Path,
    *,
    progress: bool = False,
    tries: int = 5,
    pause: float = 1.0,
    timeout: tuple[float, float] = (10.0, 30.0),
    limit: int = 1 << 30,
) -> Path:
    """Download ``filename`` into a folder, from the first of the addresses that delivers it with its MD5.

    What arrived before a cut stays in ``filename.part`` and is continued, now (``tries`` times a mirror) or
    in a later call; content that is not the official one is removed, and so is any beyond ``limit`` bytes.
    """
    reasons = []
    part = into / f"{filename}.part"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with _alone_in(into), _quiet_pooch():
            for base in url_bases:
                download = _Download(part, timeout, limit, progress)
                try:
                    return _from_mirror(f"{base.rstrip('/')}/{filename}", md5, into, download, tries, pause)
                except _FailedError as error:
                    reasons.append(f"{base} ({error})")
    except OSError as error:
        raise InputError(
            f"{into / filename}: cannot be put there ({error.strerror or error}); "
            "make room or choose another folder with --data-dir or CCMCL_DATA."
        ) from error
    kept = " What has arrived is kept and will be continued." if part.exists() else ""
    raise InputError(
        f"{filename} could not be downloaded from {' nor from '.join(reasons)}; "
        f"try again later, or put the file into {into} yourself.{kept}"
    )


def _from_mirror(url: str, md5: str, into: Path, download: _Download, tries: int, pause: float) -> Path:
    """Try one mirror until the file is whole, as long as trying again makes sense."""
    if not re.match(r"https?://", url):
        raise _FailedError("only http and https addresses are used")
    name = url.rpartition("/")[2]
    for attempt in range(1, tries + 1):
        continued = download.part.exists()
        try:
            return Path(pooch.retrieve(url, f"md5:{md5}", name, into, downloader=download))
        except _FailedError as error:
            if not error.again or attempt == tries:
                raise
        except ValueError as error:  # pooch found another hash and has removed the file
            if not continued:  # else what was left over from before may have been the wrong part
                raise _FailedError(f"it sent something else than the official file of MD5 {md5}") from error
        time.sleep(pause * attempt)
    raise _FailedError(f"what it sent did not match the MD5 {md5}")


class _FailedError(Exception):
    """Why a mirror did not deliver, and whether asking it again may help."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


@dataclass
class _Download:
    """A downloader for pooch that continues the ``.part`` file of an earlier try."""

    part: Path
    timeout: tuple[float, float]
    limit: int
    progress: bool
    arrived: bool = False  # whether this mirror ever sent anything: else it is gone, and the next one is asked

    def __call__(self, url: str, output_file: str, _pooch: object) -> None:
        """Download ``url`` to where pooch verifies it, by way of the ``.part`` file."""
        have = self.part.stat().st_size if self.part.exists() else 0
        # The bytes of the file itself are wanted, and a range of them, hence no compression on the way.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
                self._save(response, have)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _FailedError(_in_words(error), again=self.arrived) from error
        self.part.replace(output_file)

    def _save(self, response: requests.Response, have: int) -> None:
        """Write the body to the ``.part`` file: behind what is there if the server agrees, else anew."""
        if have and response.status_code in (206, 416):
            served = re.fullmatch(rf"bytes {have}-\d+/(?:\d+|\*)", response.headers.get("Content-Range", ""))
            if response.status_code == 416 or not served:
                self.part.unlink()
                raise _FailedError("it could not continue where the download had stopped", again=True)
        elif response.status_code == 200:
            have = 0
        else:
            raise _FailedError(f"it answered {response.status_code} {response.reason}")
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        self._bound(total or 0)
        with (
            self.part.open("ab" if have else "wb") as file,
            tqdm(
                desc=self.part.stem,
                total=total,
                initial=have,
                unit="B",
                unit_scale=True,
                file=sys.stderr,
                disable=not self.progress,
            ) as bar,
        ):
            for chunk in response.raw.stream(1 << 16, decode_content=False):
                self.arrived = True
                have += len(chunk)
                self._bound(have)
                file.write(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        if total is not None and have != total:
            raise _FailedError(f"it sent {have} of {total} bytes", again=True)

    def _bound(self, size: int) -> None:
        if size > self.limit:
            self.part.unlink(missing_ok=True)
            raise _FailedError(f"it sends more than {self.limit} bytes")


def _in_words(error: Exception) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate could not be verified"
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return "it did not answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection to it"
    return "the connection was cut"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let processes that want the same file take turns where they can; the later ones find it there."""
    try:
        import fcntl
    except ImportError:  # Windows: two at once would spoil each other's part, which the MD5 catches
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Keep pooch from announcing each file on the terminal."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
