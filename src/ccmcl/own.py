"""A user's own pictures, in an .npz file or a folder, become arrays; nothing they claim is believed unchecked."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ccmcl.errors import InputError
from ccmcl.formats import Parsed, Split, in_two, reading

OWN_LIMIT = 1 << 32  # bytes that a user's own set may unpack to
AT_ONCE = 1 << 24
"""Numbers that are converted together."""
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP", ".gif": "GIF"}


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names, by value where all are numbers."""
    distinct = set(names)
    if all(re.fullmatch("-?[0-9]{1,18}", name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def _indices(where: Path, names: NDArray[Any], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Replace each name by its place among the classes."""
    place = {name: k for k, name in enumerate(classes)}
    distinct, inverse = np.unique(names, return_inverse=True)
    if unknown := [str(name) for name in distinct if name not in place]:
        raise InputError(
            f"{where}: has images of a class {unknown[0]!r} that is not among the training classes; "
            "remove them, or give the class training images too."
        )
    return np.array([place[str(name)] for name in distinct], np.int64)[inverse.reshape(-1)]


def npz(path: Path) -> Parsed:
    """Parse a user's arrays: x_train, y_train, x_test and y_test, or x and y to be split here."""
    fours = ("x_train", "y_train", "x_test", "y_test")
    with reading(path, "a NumPy .npz archive"):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > OWN_LIMIT:
                raise ValueError(f"it unpacks to more than {OWN_LIMIT} bytes")
        with np.load(path, allow_pickle=False) as file:
            there = list(file.files)
            arrays = {key: np.asarray(file[key]) for key in (*fours, "x", "y", "classes") if key in there}
    parts = ("_train", "_test") if all(key in arrays for key in fours) else ("",)
    if not all(f"{axis}{part}" in arrays for axis in "xy" for part in parts):
        raise InputError(
            f"{path}: has the arrays {', '.join(map(repr, there[:9])) or '(none)'}; "
            f"expected {', '.join(fours)}, or x and y. Save it again with those names."
        )
    given = arrays.get("classes", np.array([], np.str_))
    if given.dtype.kind != "U" or given.ndim != 1:
        raise InputError(f"{path}: its classes are not a list of names; save them as an array of str.")
    if len(given) > sum(len(arrays[f"x{part}"]) for part in parts if arrays[f"x{part}"].ndim):
        raise InputError(f"{path}: has {len(given)} classes, more than images; name each class once.")
    classes = tuple(map(str, given))
    pixels = [_array_pixels(path, f"x{part}", arrays[f"x{part}"]) for part in parts]
    names = [
        _array_names(path, f"y{part}", arrays[f"y{part}"], len(x), classes)
        for part, x in zip(parts, pixels, strict=True)
    ]
    classes = classes or _in_order(map(str, np.unique(names[0])))
    splits = [Split(x, _indices(path, y, classes)) for x, y in zip(pixels, names, strict=True)]
    train, test = splits if len(splits) == 2 else in_two(splits[0])
    return Parsed(train, test, classes, {})


def _array_pixels(path: Path, key: str, x: NDArray[Any]) -> NDArray[np.uint8]:
    """Return (n, h, w) or (n, h, w, c) images, uint8 or float in [0, 1], as (n, c, h, w) uint8."""
    if x.ndim not in (3, 4) or 0 in x.shape or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise InputError(f"{path}: {key} has the shape {x.shape}; expected (n, h, w) or (n, h, w, 1 or 3).")
    if x.dtype.kind == "f":
        found = np.empty(x.shape, np.uint8)
        step = max(1, AT_ONCE * len(x) // x.size)
        for part in range(0, len(x), step):  # on the way they take many times the room
            some = x[part : part + step]
            if not (np.isfinite(some).all() and some.min() >= 0 and some.max() <= 1):
                raise InputError(f"{path}: {key} has NaN or numbers outside 0..1; scale it, or store uint8.")
            found[part : part + len(some)] = np.rint(some.astype(np.float32, copy=False) * 255)
        x = found
    elif x.dtype != np.uint8:
        raise InputError(f"{path}: {key} is of type {x.dtype}; expected uint8 in 0..255 or floats in 0..1.")
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def _array_names(path: Path, key: str, y: NDArray[Any], images: int, classes: tuple[str, ...]) -> NDArray[Any]:
    """Return the class name of each image, from names, numbers, or (with ``classes``) places among them."""
    if y.shape not in ((images,), (images, 1)) or y.dtype.kind not in "iuU":
        raise InputError(f"{path}: {key} is {y.dtype} of shape {y.shape}; expected {images} whole numbers or names.")
    y = y.reshape(-1)
    if classes and y.dtype.kind != "U":
        if y.min() < 0 or y.max() >= len(classes):
            raise InputError(
                f"{path}: {key} has labels from {y.min()} to {y.max()}; with its {len(classes)} classes, "
                f"expected 0 to {len(classes) - 1}."
            )
        y = np.array(classes)[y.astype(np.int64)]
    return y.astype(np.str_)


def picture_files(folder: Path) -> dict[str, list[tuple[str, Path]]]:
    """List a folder's pictures with their classes, in ``train`` and ``test``, else in ``all``."""

    def entries(place: Path) -> list[Path]:
        clutter = ("Thumbs.db", "desktop.ini")
        return sorted(p for p in place.iterdir() if p.name[0] != "." and p.name not in clutter)

    def listed(place: Path) -> list[tuple[str, Path]]:
        return [(kind.name, path) for kind in entries(place) if kind.is_dir() for path in entries(kind)]

    with reading(folder, "a folder of pictures"):
        places = {"train": folder / "train", "test": folder / "test"}
        if not all(place.is_dir() for place in places.values()):
            places = {"all": folder}
        files = {part: listed(place) for part, place in places.items()}
        for _, path in (pair for pairs in files.values() for pair in pairs):
            if path.suffix.lower() not in PICTURES or not path.is_file():
                raise InputError(
                    f"{path}: is not a picture; expected only {', '.join(PICTURES)} files in <class>/, or in "
                    f"train/<class>/ and test/<class>/, under {folder}. Move it elsewhere."
                )
    for part, pairs in files.items():
        if not pairs:
            raise InputError(f"{places[part]}: expected a folder of pictures a class, or a whole official set.")
    return files


def _picture(path: Path) -> NDArray[np.uint8]:
    """Decode a picture to (c, h, w): one plane if it is grey, three if it is in colour."""
    with reading(path, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=sorted(set(PICTURES.values()))) as image:
            if image.mode[0] in "IF":
                raise ValueError("it has more than 8 bits a pixel")
            # By way of RGBA, as a palette may hold colours that are partly transparent.
            grey = image.mode in ("1", "L", "LA")
            plain = image.convert("L") if grey else image.convert("RGBA").convert("RGB")
            return np.atleast_3d(np.asarray(plain)).transpose(2, 0, 1)


def pictures(files: dict[str, list[tuple[str, Path]]]) -> Parsed:
    """Parse pictures of one size that are all grey or all in colour."""
    every = [path for pairs in files.values() for _, path in pairs]
    first = _picture(every[0])
    if first.size * len(every) > OWN_LIMIT:
        raise InputError(f"{every[0]}: {len(every)} such pictures are more than {OWN_LIMIT} bytes; shrink them.")
    pixels = np.empty((len(every), *first.shape), np.uint8)
    for row, path in enumerate(every):
        picture = _picture(path)
        if picture.shape != first.shape:
            here, there = (
                f"{x.shape[2]}x{x.shape[1]} in {'grey' if len(x) == 1 else 'colour'}" for x in (picture, first)
            )
            raise InputError(f"{path}: is {here}, but {every[0]} is {there}; make all pictures alike.")
        pixels[row] = picture
    names = [np.array([name for name, _ in pairs]) for pairs in files.values()]
    classes = _in_order(map(str, names[0]))
    labels = [_indices(every[-1].parent.parent, part, classes) for part in names]
    if len(labels) == 1:
        return Parsed(*in_two(Split(pixels, labels[0])), classes, {})
    cut = len(labels[0])
    return Parsed(Split(pixels[:cut], labels[0]), Split(pixels[cut:], labels[1]), classes, {})
