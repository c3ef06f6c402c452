"""The official files of the known sets become arrays; as they come from outside, nothing they claim is believed."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccmcl.errors import InputError

LIMIT = 1 << 30  # bytes that one official file may unpack to; the largest has 226 million
MATRIX, COMPRESSED = 14, 15
"""Kinds of elements in a MATLAB file."""


class Split(NamedTuple):
    """Images (n, c, h, w) with the index of the class of each."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Parsed(NamedTuple):
    """A whole set; ``contents`` has the MD5 of each official file, unpacked, to compare with the lists."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    contents: dict[str, str]


def md5(data: bytes) -> str:
    """Hash the content of a file as the official lists do."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def reading(path: Path, form: str) -> Iterator[None]:
    """Turn whatever a decoder makes of a damaged or hostile file into a sentence that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {form} ({why}); replace it with a sound copy.") from error


def _checked_labels(path: Path, labels: NDArray[Any], images: int) -> NDArray[np.int64]:
    """Return labels of a ten-class set as int64 if there is one for each of the images."""
    if len(labels) != images or not images:
        raise InputError(f"{path}: has {len(labels)} labels for {images} images; expected as many, and at least one.")
    odd = labels[~np.isin(labels, np.arange(10))]
    if len(odd):
        raise InputError(f"{path}: has a label {odd[0]} where only ten classes are known; use a file of this very set.")
    return labels.astype(np.int64)


def read_idx(path: Path, axes: int) -> tuple[NDArray[np.uint8], str]:
    """Read one IDX file of bytes, gzipped or not, with the MD5 of its unpacked content."""
    with reading(path, "an IDX file"), path.open("rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        file: io.BufferedIOBase = gzip.GzipFile(fileobj=raw) if packed else raw
        head = file.read(4 + 4 * axes)
        magic = bytes((0, 0, 8, axes))
        if head[:4] != magic or len(head) < 4 + 4 * axes:
            raise InputError(
                f"{path}: begins with {head[:4].hex(' ') or 'nothing'}, where an IDX file of bytes with "
                f"{axes} axes begins with {magic.hex(' ')} and {axes} sizes; replace it with a sound copy."
            )
        shape = struct.unpack(f">{axes}I", head[4:])
        size = math.prod(shape)
        if size > LIMIT:
            raise InputError(f"{path}: its header promises {size} bytes, expected far fewer; get a sound copy.")
        body = file.read(size + 1)
        if len(body) != size:
            there = "more than that" if len(body) > size else f"only {len(body)}"
            raise InputError(f"{path}: its header promises {size} bytes, but it has {there}; get a sound copy.")
        return np.frombuffer(bytearray(body), np.uint8).reshape(shape), md5(head + body)


def mnist(files: Mapping[str, Path], classes: tuple[str, ...]) -> Parsed:
    """Parse the four IDX files of MNIST or of a set in its form."""
    contents: dict[str, str] = {}

    def split(part: str) -> Split:
        images, labels = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        pixels, contents[images] = read_idx(files[images], 3)
        marks, contents[labels] = read_idx(files[labels], 1)
        if pixels.shape[1:] != (28, 28):
            raise InputError(f"{files[images]}: has images of {pixels.shape[1:]} pixels; expected (28, 28).")
        return Split(pixels[:, None], _checked_labels(files[labels], marks, len(pixels)))

    return Parsed(split("train"), split("t10k"), classes, contents)


class _Bounded(io.RawIOBase):
    """A stream that ends with an error rather than give more than ``left`` bytes."""

    def __init__(self, inner: io.BufferedIOBase, left: int) -> None:
        self.inner, self.left = inner, left

    def read(self, size: int = -1) -> bytes:
        data = self.inner.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it unpacks to more than the official one")
        return data


def _cifar_archive(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Read the batches out of the archive without writing anything to the disk."""
    found: dict[str, bytes] = {}
    with reading(path, "a gzipped tar archive"), gzip.open(path) as unpacked:
        bounded = _Bounded(unpacked, LIMIT)
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                plain = member.isreg() and not member.issparse()  # a sparse one is as large as it says
                if name in wanted and plain and (body := archive.extractfile(member)):
                    found[name] = body.read()
    return found


def parse_cifar_batch(path: Path, data: bytes) -> Split:
    """Parse records of a label and 32x32 red, green and blue planes."""
    count, rest = divmod(len(data), 3073)
    if rest or not count:
        raise InputError(f"{path}: has {len(data)} bytes, not whole records of 3073; get a sound copy.")
    records = np.frombuffer(data, np.uint8).reshape(count, 3073)
    return Split(records[:, 1:].reshape(count, 3, 32, 32), _checked_labels(path, records[:, 0], count))


def cifar10(files: Mapping[str, Path], classes: tuple[str, ...], batches: Iterable[str]) -> Parsed:
    """Parse CIFAR10's binary form from its six batches, or from the archive that holds them."""
    archive = next((path for path in files.values() if path.name.endswith(".tar.gz")), None)
    if archive:
        data = _cifar_archive(archive, batches)
        if missing := sorted(set(batches) - set(data)):
            raise InputError(f"{archive}: has no {', '.join(missing)}; replace it with a sound copy.")
        files = {name: archive / name for name in data}
    else:
        data = {}
        for name, path in files.items():
            with reading(path, "a CIFAR10 batch"), path.open("rb") as file:
                data[name] = _Bounded(file, LIMIT).read()
    parsed = {name: parse_cifar_batch(files[name], data[name]) for name in sorted(data)}

    def joined(prefix: str) -> Split:
        splits = [split for name, split in parsed.items() if name.startswith(prefix)]
        return Split(np.concatenate([s.pixels for s in splits]), np.concatenate([s.labels for s in splits]))

    return Parsed(joined("data"), joined("test"), classes, {name: md5(data[name]) for name in data})


def _unpacked_mat(path: Path) -> tuple[Any, str]:
    """Unpack a MATLAB 5 file's elements here, within bounds: scipy would unpack as much as the file likes."""
    with path.open("rb") as file:
        data = _Bounded(file, LIMIT).read()
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if not data.startswith(b"MATLAB 5.0") or order is None:
        raise ValueError("it does not begin as a MATLAB 5 file does")
    plain, at = io.BytesIO(), 128
    plain.write(data[:128])
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        element = memoryview(data)[at : at + 8 + size]
        if len(element) < 8 + size:
            raise ValueError("it ends too early")
        if kind == COMPRESSED:
            inflate = zlib.decompressobj()
            element = memoryview(inflate.decompress(element[8:], LIMIT))
            if not inflate.eof or len(element) < 8:
                raise ValueError("it unpacks to more than the official one, or to nothing")
            kind, inner = struct.unpack_from(f"{order}II", element)
            if len(element) != 8 + inner:
                raise ValueError("what it packs is not one element")
        if kind != MATRIX:  # one that is compressed again would be unpacked without bounds
            raise ValueError("it holds something else than arrays")
        plain.write(element)
        if plain.tell() > LIMIT:
            raise ValueError("it unpacks to more than the official one")
        at += 8 + size
    return plain, md5(data)


def _mat_split(path: Path) -> tuple[Split, str]:
    """Parse images X (32, 32, 3, n) and labels y (n, 1) in 1..10, where 10 stands for the digit 0."""
    from scipy.io import loadmat, whosmat

    with reading(path, "a MATLAB 5 file"):
        plain, digest = _unpacked_mat(path)
        # The kinds are looked at first: X and y could be nested cells, which scipy would descend into.
        listing = [entry for entry in whosmat(plain) if entry[0] in ("X", "y")]
        held = {name: (shape, kind) for name, shape, kind in listing}
        (*image, n), kind = held.get("X", ((0,), ""))
        numbers = ("uint8", "int8", "uint16", "int16", "int32", "single", "double")
        columns = [((n, 1), number) for number in numbers]
        if len(listing) != 2 or (image, kind) != ([32, 32, 3], "uint8") or held.get("y") not in columns:
            raise InputError(
                f"{path}: holds {listing or 'neither X nor y'}; expected uint8 images X of (32, 32, 3, n) "
                "and n labels y in a column. Replace it with a sound copy."
            )
        plain.seek(0)
        arrays = loadmat(plain, variable_names=("X", "y"))
        pixels, labels = arrays["X"], arrays["y"].reshape(-1)
        if pixels.dtype != np.uint8 or labels.dtype.kind not in "iuf":
            raise ValueError(f"X and y have the types {pixels.dtype} and {labels.dtype}")
    if not np.isin(labels, np.arange(1, 11)).all():
        raise InputError(f"{path}: has labels other than 1 to 10; replace it with a sound copy.")
    labels = _checked_labels(path, labels.astype(np.int64) % 10, pixels.shape[3])
    return Split(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels), digest


def svhn(files: Mapping[str, Path], classes: tuple[str, ...]) -> Parsed:
    """Parse the two MATLAB files of the cropped SVHN digits."""
    (train, train_md5), (test, test_md5) = (_mat_split(files[f"{s}_32x32.mat"]) for s in ("train", "test"))
    return Parsed(train, test, classes, {"train_32x32.mat": train_md5, "test_32x32.mat": test_md5})


def held_out(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark every fifth image of each class for the test, from its second on: a split that never changes.

    >>> held_out(np.array([0, 0, 1, 0, 0, 0, 0, 1])).nonzero()[0].tolist()
    [1, 7]
    """
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    marked = np.empty(len(labels), bool)
    marked[order] = (np.arange(len(labels)) - np.searchsorted(ranked, ranked)) % 5 == 1
    return marked


def in_two(whole: Split) -> tuple[Split, Split]:
    """Split what has no test set of its own into a training and a test set."""
    test = held_out(whole.labels)
    return Split(whole.pixels[~test], whole.labels[~test]), Split(whole.pixels[test], whole.labels[test])
