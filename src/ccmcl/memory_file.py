"""A memory in one safetensors file, whose payload is exactly what the memory counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccmcl.errors import InputError
from ccmcl.memory import KINDS, Composite, Exemplars, Memory, Pixels, Remembered, count_of
from ccmcl.tensor_files import read_tensors, write_tensors

FORMAT = "ccmcl memory 1"
MOST_DECODED = 4 * 2**30


def save_memory(memory: Memory, path: Path | str, names: Sequence[str] = ()) -> None:
    """Write a memory, and the names of its classes, into one file.

    >>> import tempfile
    >>> from ccmcl.memory import Pixels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_memory(Memory().plus(0, Pixels(torch.rand(2, 1, 8, 8))), Path(folder, "m.safetensors"), ["zero"])
    ...     memory, names = load_memory(Path(folder, "m.safetensors"))
    >>> names, memory.nbytes
    (('zero',), 516)
    """
    tensors, about = pack(memory, names)
    if any(tensor.is_floating_point() and tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise InputError("Only memories in float32 can be saved.")
    write_tensors(Path(path), tensors, about)


def load_memory(path: Path | str) -> tuple[Memory, tuple[str, ...]]:
    """Read a memory and the names of its classes; the file is not trusted."""
    tensors, about = read_tensors(Path(path))
    return unpack(tensors, about, str(path))


def pack(memory: Memory, names: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Lay a memory out as named tensors and a description."""
    tensors = {f"{label}.{name}": tensor for label, kept in memory.items() for name, tensor in kept.tensors().items()}
    tensors["labels"] = torch.tensor(list(memory), dtype=torch.int32)
    kinds = [kept.kind for kept in memory.values()]
    return tensors, {"format": FORMAT, "kinds": kinds, "names": list(names)}


def unpack(tensors: dict[str, Tensor], about: dict[str, Any], source: str) -> tuple[Memory, tuple[str, ...]]:
    """Undo ``pack``, checking everything that a hostile or damaged file could have wrong."""
    if about.get("format") != FORMAT:
        raise InputError(f"{source} does not hold a memory of this program (expected the format {FORMAT!r}).")
    kinds, names, labels = about.get("kinds"), about.get("names"), tensors.get("labels")
    if (
        labels is None
        or labels.dtype != torch.int32
        or labels.ndim != 1
        or not isinstance(kinds, list)
        or len(kinds) != len(labels)
        or not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or labels.tolist() != sorted({label for label in labels.tolist() if label >= 0})
    ):
        raise InputError(f"{source} is damaged: its list of classes does not fit together.")
    memory = Memory()
    for label, kind in zip(labels.tolist(), kinds, strict=True):
        own = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{label}.")}
        memory = memory.plus(label, _remembered(kind, own, f"{source}, class {label}"))
    if sum(count_of(kept) * _decoded(kept) for kept in memory.values()) > MOST_DECODED:
        raise InputError(f"{source} would decode to more than {MOST_DECODED >> 30} GiB of images.")
    shapes = {tuple(next(iter(kept.tensors().values())).shape[1:]) for kept in memory.values()}
    if len(shapes) > 1 or sum(len(kept.tensors()) for kept in memory.values()) + 1 != len(tensors):
        raise InputError(f"{source} is damaged: its classes do not fit together.")
    return memory, tuple(names)


def _decoded(kept: Remembered) -> int:
    """Count the bytes of one decoded image."""
    return 4 * next(iter(kept.tensors().values()))[0].numel()


def _remembered(kind: object, tensors: dict[str, Tensor], source: str) -> Remembered:
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32 and not tensor.isfinite().all():
            raise InputError(f"{source} is damaged: its {name} hold values that are not numbers.")
    floats, images = torch.float32, tensors.get("pixels", tensors.get("components"))
    whole = images is not None and images.ndim == 4 and images.numel() > 0
    match kind, sorted(tensors):
        case Exemplars.kind, ["pixels"] if whole and tensors["pixels"].dtype == torch.uint8:
            return Exemplars(tensors["pixels"])
        case Exemplars.kind, ["logits", "pixels"] if whole and tensors["pixels"].dtype == torch.uint8:
            logits = tensors["logits"]
            if logits.ndim == 2 and len(logits) == len(tensors["pixels"]) and logits.dtype == floats:
                return Exemplars(tensors["pixels"], logits)
        case Pixels.kind, ["pixels"] if whole and tensors["pixels"].dtype == floats:
            return Pixels(tensors["pixels"])
        case Composite.kind, ["components", "weights"] if whole and tensors["components"].dtype == floats:
            components, weights = tensors["components"], tensors["weights"]
            if weights.ndim == 2 and len(weights) == len(components) and weights.dtype == floats and weights.numel():
                return Composite(components, weights)
    expected = kind if isinstance(kind, str) and kind in KINDS else f"one of {', '.join(KINDS)}"
    raise InputError(f"{source} is damaged: what is stored is not {expected} of the right shapes and types.")
