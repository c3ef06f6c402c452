"""Arrays and labels as people have them, made into what the library works on; and back."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ccmcl.errors import InputError


def pixels_of(x: object) -> UInt8[Tensor, "n c h w"]:
    """Turn images into eight-bit pictures, channels first.

    Arrays are (N, H, W) or (N, H, W, C), torch tensors (N, H, W) or (N, C, H, W); uint8, or floats in [0, 1],
    which are rounded to eight bits.

    >>> pixels_of(np.ones((5, 8, 8, 3))).shape, pixels_of(torch.ones(5, 3, 8, 8)).max()
    (torch.Size([5, 3, 8, 8]), tensor(255, dtype=torch.uint8))
    """
    if isinstance(x, Tensor):
        images = x.detach().cpu()
    else:
        try:
            array = np.asarray(x)
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            images = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        except (TypeError, ValueError, RuntimeError):
            raise InputError("Images must be one array of numbers, all pictures of the same size.") from None
    given = tuple(images.shape)
    if images.ndim == 4 and not isinstance(x, Tensor):
        images = images.permute(0, 3, 1, 2)
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or 0 in images.shape:
        raise InputError(
            f"Images of shape {given} cannot be used: give (N, H, W), (N, H, W, C), "
            "or a torch tensor (N, C, H, W), with at least one picture."
        )
    if images.shape[1] > 4:
        raise InputError(
            f"Images of shape {given} would have {images.shape[1]} channels: "
            "arrays are (N, H, W, C) with C from 1 to 4, torch tensors (N, C, H, W)."
        )
    if images.dtype == torch.uint8:
        return images.contiguous()
    if not images.is_floating_point():
        raise InputError(f"Images of type {images.dtype} cannot be used: give uint8, or floats in [0, 1].")
    if not images.isfinite().all():
        raise InputError("The images hold NaN or infinite values: clean them first.")
    if images.min() < 0 or images.max() > 1:
        raise InputError(
            f"Float images must lie in [0, 1], these go from {images.min().item():g} to {images.max().item():g}: "
            "scale them first."
        )
    return (images * 255).round().to(torch.uint8).contiguous()


def labels_of(y: object) -> list[Hashable]:
    """Turn labels into a list of hashable values; numpy's and torch's numbers become Python's own.

    >>> labels_of(np.array([2, 3])), labels_of(["cat", ("dog", 1)])
    ([2, 3], ['cat', ('dog', 1)])
    """
    values: Any = y.tolist() if isinstance(y, np.ndarray | Tensor) else y
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError("Labels must be a list or an array, one for each picture.")
    labels = [_plain(value) for value in values]
    for label in labels:
        if not _hashable(label) or (isinstance(label, float) and label != label):
            raise InputError(f"A label cannot be {label!r}: give hashable values such as numbers or words.")
    return labels


def _plain(value: Any) -> Any:
    """Turn a number of numpy's or torch's, or a tuple of such, into Python's own; an array of one is that one."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor | np.ndarray):
        if math.prod(value.shape) != 1:
            raise InputError(f"A label cannot be an array of shape {tuple(value.shape)}: give one value a picture.")
        return value.item()
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _hashable(label: object) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    return True


def in_order(labels: Iterable[Hashable]) -> list[Hashable]:
    """List different labels in an order that does not depend on how they came: sorted, where they can be.

    >>> in_order(["b", "a", "b"])
    ['a', 'b']
    """
    different = list(dict.fromkeys(labels))
    try:
        return sorted(different)  # type: ignore[type-var]
    except TypeError:
        return sorted(different, key=lambda label: (type(label).__name__, repr(label)))


def label_array(labels: Sequence[Hashable], chosen: Tensor) -> NDArray[Any]:
    """Look labels up by number, as a plain array where they are all of one plain type."""
    table: NDArray[Any] = np.empty(0)
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], int | float | str):
        table = np.array(labels)
    if table.tolist() != list(labels):  # of several types, or such as numpy does not keep to the last sign
        table = np.empty(len(labels), dtype=object)
        table[:] = labels
    found: NDArray[Any] = table[chosen.numpy()]
    return found


def label_to_json(label: Hashable) -> object:
    """Write a label down; tuples become {"tuple": [...]}.

    >>> label_to_json(("a", 1))
    {'tuple': ['a', 1]}
    """
    if label is None or isinstance(label, bool | int | float | str):
        return label
    if isinstance(label, tuple):
        return {"tuple": [label_to_json(part) for part in label]}
    raise InputError(
        f"The label {label!r} cannot be written to a file: only numbers, words, None and tuples of them can."
    )


def label_from_json(value: object) -> Hashable:
    """Undo ``label_to_json``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and set(value) == {"tuple"} and isinstance(value["tuple"], list):
        try:
            return tuple(label_from_json(part) for part in value["tuple"])
        except RecursionError:
            raise InputError("A label is nested too deeply.") from None
    raise InputError(f"{value!r} is not a label.")


def plain_colour(pixels: UInt8[Tensor, "n c h w"]) -> Bool[Tensor, "n"]:
    """Say of each picture whether it is of one colour throughout, so that there is nothing to learn from it."""
    planes = pixels.flatten(2)
    return (planes.amin(2) == planes.amax(2)).all(1)
