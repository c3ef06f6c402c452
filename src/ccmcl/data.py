"""Data sets by name or by path: found or fetched, parsed once, then mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pooch  # type: ignore[import-untyped]
import torch
from safetensors import safe_open
from torch import Tensor

from ccmcl import formats, own
from ccmcl.arrays import plain_colour
from ccmcl.catalogue import CLASSES, SHAPES
from ccmcl.errors import InputError, nearest
from ccmcl.fetch import SOURCES, Source
from ccmcl.tensor_files import ABOUT, write_tensors


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures of one size with the class of each, as an index into the class names.

    >>> train = load("digits").train
    >>> train.pixels.shape, train.classes[train.labels[0]]
    (torch.Size([1435, 1, 8, 8]), '0')
    """

    pixels: Tensor  # uint8, (n, c, h, w)
    labels: Tensor  # int64, (n,)
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise InputError(
                f"Images are {self.pixels.dtype} of shape {tuple(self.pixels.shape)}; "
                "expected uint8 of shape (n, c, h, w)."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise InputError(
                f"Labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; "
                f"expected int64, one for each of {len(self.pixels)} images."
            )
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise InputError(f"The class names {self.classes} are not distinct names of at least one class.")
        if odd := [name for name in self.classes if not name.strip() or not name.isprintable()]:
            raise InputError(f"The class name {odd[0]!r} cannot be printed; give the class a readable name.")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise InputError(
                f"Labels run from {int(self.labels.min())} to {int(self.labels.max())}; "
                f"expected 0 to {len(self.classes) - 1}, as there are {len(self.classes)} classes."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def of_class(self, k: int) -> Tensor:
        """Return where the images of class ``k`` are.

        >>> load("digits").test.of_class(3)[:3].tolist()
        [3, 14, 20]
        """
        return (self.labels == k).nonzero().flatten()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train on and to test with, where they were found, and whether their content is official."""

    name: str
    train: Images
    test: Images
    source: str  # for people: "embedded", or a folder or file
    official: bool | None  # None where there is no official content to compare with
    fingerprint: str  # changes when any pixel, label or class name does

    def __post_init__(self) -> None:
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:] or not len(self.test):
            raise InputError(
                f"{self.source}: has training images of shape {tuple(self.train.pixels.shape)} and test "
                f"images of {tuple(self.test.pixels.shape)}; expected some of each, of the same size."
            )
        if self.train.classes != self.test.classes:
            raise InputError(f"{self.source}: the classes of the training and the test images differ.")
        counts = torch.bincount(self.train.labels, minlength=len(self.train.classes))
        if lacking := [name for name, n in zip(self.train.classes, counts, strict=True) if not n]:
            raise InputError(
                f"{self.source}: has no training images of the class {lacking[0]!r}; add some, or drop it."
            )


@dataclass(frozen=True)
class Status:
    """What is known about one of the named sets without fetching it."""

    name: str
    shape: tuple[int, int, int]
    found: str | None = None  # "embedded", or a folder or file
    official: bool | None = None
    train: int | None = None  # number of images
    test: int | None = None
    size: int = 0  # bytes of its files
    problem: str | None = None  # why what was found cannot be used


def known() -> tuple[str, ...]:
    """Name the sets that can be loaded by name.

    >>> known()
    ('digits', 'mnist', 'fashion-mnist', 'cifar10', 'svhn')
    """
    return tuple(SHAPES)


def shape_of(name: str | Path, data_dir: Path | str | None = None) -> tuple[int, int, int]:
    """Return (c, h, w) of a set's images: at once for a name, by loading for a path.

    >>> shape_of("cifar10")
    (3, 32, 32)
    """
    if str(name) in SHAPES:
        return SHAPES[str(name)]
    c, h, w = load(name, data_dir).train.pixels.shape[1:]
    return c, h, w


def load(
    name: str | Path,
    data_dir: Path | str | None = None,
    *,
    download: bool = True,
    progress: bool = False,
    sources: Mapping[str, Source] = SOURCES,
) -> Dataset:
    """Load a known set, or a user's own from a ``.npz`` file or a folder of pictures.

    A known set is looked for in ``data_dir`` (else ``CCMCL_DATA``, else the user's cache folder) and fetched
    into it if it is not there. What a user already has is used as it is, with a line in the log if it differs
    from the official content.

    >>> digits = load("digits")
    >>> len(digits.train), len(digits.test), digits.source
    (1435, 362, 'embedded')
    """
    if str(name) == "digits":
        return _digits()
    found = _find(name, data_dir, sources)
    if found is None:
        root, source = _root(data_dir), sources[str(name)]
        if not download:
            raise InputError(
                f"{name} is neither in {root / name} nor in {root}{_pickled(root, root / name)}; "
                f"`ccmcl data {name}` fetches it, and --data-dir or CCMCL_DATA say where else to look."
            )
        with formats.reading(root / name, "a data folder"):
            source.fetch(root / name, progress=progress)
        found = _Found(str(name), root / name, source.find(root / name), source)
    dataset = _parsed_once(found)
    if dataset.official is False:
        logging.getLogger("ccmcl").warning(
            "%s: the content of %s is not the official one; it is used as it is.",
            dataset.name,
            dataset.source,
        )
    return dataset


def status(data_dir: Path | str | None = None, *, sources: Mapping[str, Source] = SOURCES) -> list[Status]:
    """Say of every known set where it was found and what is in it; nothing is fetched.

    >>> status("/nowhere")[0].train, status("/nowhere")[1].found
    (1435, None)
    """
    return [_status(name, data_dir, sources) for name in known()]


def status_of(dataset: Dataset) -> Status:
    """Say the same of a set that was given by its path."""
    where, (channels, height, width) = Path(dataset.source), dataset.train.pixels.shape[1:]
    files = [where] if where.is_file() else where.rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    counts = len(dataset.train), len(dataset.test)
    return Status(dataset.name, (channels, height, width), dataset.source, dataset.official, *counts, size)


def _status(name: str, data_dir: Path | str | None, sources: Mapping[str, Source]) -> Status:
    size, where = 0, "embedded"
    try:
        if name == "digits":
            dataset = _digits()
        else:
            found = _find(name, data_dir, sources)
            if found is None:
                return Status(name, SHAPES[name])
            where, size = str(found.where), sum(path.stat().st_size for path in found.files.values())
            dataset = _parsed_once(found)
    except (InputError, OSError) as error:
        return Status(name, SHAPES[name], where, size=size, problem=str(error))
    counts = len(dataset.train), len(dataset.test)
    return Status(name, SHAPES[name], where, dataset.official, *counts, size)


@dataclass(frozen=True)
class _Found:
    """A set on the disk; ``source`` is None for a user's own."""

    name: str
    where: Path
    files: Mapping[str, Path]
    source: Source | None


def _root(data_dir: Path | str | None) -> Path:
    root = Path(data_dir or os.environ.get("CCMCL_DATA") or pooch.os_cache("ccmcl") / "data")
    with formats.reading(root, "a data folder"):
        return root.expanduser()


def _find(name: str | Path, data_dir: Path | str | None, sources: Mapping[str, Source]) -> _Found | None:
    """Look for a known name where data is kept, for anything else as a path; None means: to be fetched."""
    if source := sources.get(str(name)):
        root = _root(data_dir)
        for where in (root / name, root):
            with formats.reading(where, "a data folder"):
                files = source.find(where)
                if files and (where != root or _idx_name(str(name), files, sources) == str(name)):
                    return _Found(str(name), where, files, source)
        return None
    with formats.reading(Path(name), "a data set"):
        path = Path(name).expanduser()
        if path.suffix == ".npz" and path.is_file():
            return _Found(path.stem, path, {path.name: path}, None)
        if path.is_dir() and str(name):
            return _find_in(path, sources)
        if path.exists() and str(name):
            raise InputError(f"{path}: expected a .npz file, a folder of pictures, or one of official files.")
    raise InputError(f"There is no data set, file or folder {str(name)!r}: {nearest(str(name), known())}.")


def _find_in(folder: Path, sources: Mapping[str, Source]) -> _Found:
    """Recognise a folder by its file names: the official files of a known set, or pictures."""
    for name, source in sources.items():
        if files := source.find(folder):
            guess = "fashion-mnist" if name == "mnist" and "fashion" in folder.name.lower() else name
            name = _idx_name(guess, files, sources)
            return _Found(name, folder, files, sources[name])
    if why := _pickled(folder):
        raise InputError(f"{folder}: cannot be used{why}; `ccmcl data cifar10` fetches the binary form.")
    pairs = [pair for part in own.picture_files(folder).values() for pair in part]
    return _Found(folder.resolve().name, folder, {str(path): path for _, path in pairs}, None)


def _idx_name(name: str, files: Mapping[str, Path], sources: Mapping[str, Source]) -> str:
    """Tell MNIST from FashionMNIST, whose files have the same names, by the official labels."""
    labels = "train-labels-idx1-ubyte"
    if labels not in files:
        return name
    content = formats.read_idx(files[labels], 1)[1]
    return next((other for other, s in sources.items() if s.contents.get(labels) == content), name)


def _pickled(*places: Path) -> str:
    names = ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1")
    there = any((place / name).exists() for place in places for name in names)
    return " (only CIFAR10's Python form is there: a pickle, and ccmcl opens none)" if there else ""


def _parse(found: _Found) -> formats.Parsed:
    if found.source is None and found.where.is_dir():
        return own.pictures(own.picture_files(found.where))
    if found.source is None:
        return own.npz(found.where)
    classes = CLASSES[found.name]
    if found.name == "cifar10":
        return formats.cifar10(found.files, classes, found.source.contents)
    return (formats.svhn if found.name == "svhn" else formats.mnist)(found.files, classes)


def _dataset(name: str, parsed: formats.Parsed, source: str, official: bool | None) -> Dataset:
    """Check what was parsed for what no file format excludes, and give it a fingerprint."""
    train, test = (
        Images(torch.from_numpy(split.pixels), torch.from_numpy(split.labels), parsed.classes)
        for split in (parsed.train, parsed.test)
    )
    digest = hashlib.sha256(json.dumps(parsed.classes).encode())
    for tensor in (train.pixels, train.labels, test.pixels, test.labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    dataset = Dataset(name, train, test, source, official, digest.hexdigest()[:16])
    counts = torch.bincount(train.labels[~plain_colour(train.pixels)], minlength=len(train.classes))
    if blank := [name for name, n in zip(train.classes, counts, strict=True) if not n]:
        raise InputError(
            f"{source}: every training image of the class {blank[0]!r} is of one plain colour, "
            "so that nothing can be learnt from them; check the images, or leave the class out."
        )
    return dataset


def _digits() -> Dataset:
    """Take the 1,797 digits of 8x8 from scikit-learn; every fifth of each class is for the test."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    x, y = load_digits(return_X_y=True)
    pixels = (x.astype("int64") * 255 + 8) // 16  # 0..16 to 0..255, rounded
    whole = formats.Split(pixels.astype("uint8").reshape(-1, 1, 8, 8), y.astype("int64"))
    return _dataset("digits", formats.Parsed(*formats.in_two(whole), CLASSES["digits"], {}), "embedded", None)


def _parsed_once(found: _Found) -> Dataset:
    """Map the set as it was parsed before, or parse it and keep that for the next time."""
    root = Path(os.environ.get("CCMCL_CACHE") or pooch.os_cache("ccmcl") / "parsed").expanduser()
    key = hashlib.sha256(f"{found.name}\n{found.where.resolve()}".encode(errors="replace")).hexdigest()[:24]
    cache, stamp = root / f"{key}.safetensors", _stamp(found)
    if dataset := _mapped(cache, found, stamp):
        return dataset
    parsed = _parse(found)
    official = parsed.contents == found.source.contents if found.source else None
    dataset = _dataset(found.name, parsed, str(found.where), official)
    tensors = {
        f"{part}.{kind}": getattr(getattr(dataset, part), kind)
        for part in ("train", "test")
        for kind in ("pixels", "labels")
    }
    about = {
        "stamp": stamp,
        "classes": parsed.classes,
        "official": official,
        "fingerprint": dataset.fingerprint,
    }
    with suppress(OSError):  # no cache is no error: it costs time, not correctness
        write_tensors(cache, tensors, about)
    return dataset


def _stamp(found: _Found) -> str:
    """Summarise what makes a cached parse stale: the files' sizes and times, and what is official."""
    try:
        stats = [(str(path.relative_to(found.where)), path.stat()) for path in found.files.values()]
    except OSError as error:
        raise InputError(f"{found.where}: a file in it cannot be read ({error.strerror}).") from error
    files = [(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats]
    official = dict(found.source.contents) if found.source else None
    return hashlib.sha256(json.dumps(["1", sorted(files), official]).encode()).hexdigest()


def _mapped(cache: Path, found: _Found, stamp: str) -> Dataset | None:
    """Map a cached parse of the same files privately into memory; None if there is none to trust."""
    try:
        with safe_open(cache, framework="pt") as file:
            about = json.loads(file.metadata()[ABOUT])
            if about["stamp"] != stamp or about["official"] not in (True, False, None):
                return None
            classes, fingerprint = tuple(about["classes"]), str(about["fingerprint"])
            train, test = (
                Images(file.get_tensor(f"{part}.pixels"), file.get_tensor(f"{part}.labels"), classes)
                for part in ("train", "test")
            )
        if found.source and (classes, train.pixels.shape[1:]) != (CLASSES[found.name], SHAPES[found.name]):
            return None
        return Dataset(found.name, train, test, str(found.where), about["official"], fingerprint)
    except Exception:  # a cache can be damaged in any way, and parsing again repairs it
        return None
