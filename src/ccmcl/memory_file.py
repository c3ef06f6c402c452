"""A memory in one safetensors file, whose payload is exactly what the memory counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccmcl.budget import FLOAT_BYTES, MOST_DECODED, MOST_GROWTH, seen_of
from ccmcl.coding import decoded
from ccmcl.errors import InputError
from ccmcl.forms import Form, enlargeable
from ccmcl.frequencies import Frequencies
from ccmcl.kinds import KINDS, Composite, Encoded, Exemplars, Pixels, Remembered, count_of
from ccmcl.memory import Memory
from ccmcl.tensor_files import read_tensors, write_tensors

FORMATS = ("ccmcl memory 1", "ccmcl memory 2")
"""The first has no forms: images are as large as what is stored, and composites are squashed."""
LARGEST = 1 << 16


def save_memory(memory: Memory, path: Path | str, names: Sequence[str] = ()) -> None:
    """Write a memory, and the names of its classes, into one file.

    >>> import tempfile
    >>> from ccmcl.kinds import Pixels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_memory(Memory().plus(0, Pixels(torch.rand(2, 1, 8, 8))), Path(folder, "m.safetensors"), ["zero"])
    ...     memory, names = load_memory(Path(folder, "m.safetensors"))
    >>> names, memory.nbytes
    (('zero',), 516)
    """
    tensors, about = pack(memory, names)
    for kept in memory.values():
        if not _fitting(kept.kind, kept.tensors(), kept.form):
            raise InputError("Only memories in float32, or in the bits they say, can be saved.")
    write_tensors(Path(path), tensors, about)


def load_memory(path: Path | str) -> tuple[Memory, tuple[str, ...]]:
    """Read a memory and the names of its classes; the file is not trusted."""
    tensors, about = read_tensors(Path(path))
    return unpack(tensors, about, str(path))


def pack(memory: Memory, names: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Lay a memory out as named tensors and a description."""
    _check_size(memory, "This memory")
    tensors = {f"{label}.{name}": tensor for label, kept in memory.items() for name, tensor in kept.tensors().items()}
    tensors["labels"] = torch.tensor(list(memory), dtype=torch.int32)
    kinds = [kept.kind for kept in memory.values()]
    about: dict[str, object] = {"format": FORMATS[0], "kinds": kinds, "names": list(names)}
    forms = [described(kept) for kept in memory.values()]
    if any(forms):
        about |= {"format": FORMATS[1], "forms": forms}
    return tensors, about


def described(kept: Remembered) -> dict[str, object]:
    """Describe what is not as it would be without a word."""
    form, usual = kept.form, KINDS[kept.kind].form
    about: dict[str, object] = {}
    if form.frequencies is not None:
        about |= {"pictures": list(form.frequencies.shape), "frequencies": form.frequencies.count}
        about |= {"margin": form.frequencies.margin} if form.frequencies.margin else {}
    if form.size is not None:
        about["size"] = list(form.size)
    if form.squash != usual.squash:
        about["squash"] = form.squash
    if form.bits != usual.bits:
        about["bits"] = form.bits
    if form.step:
        about["step"] = form.step
    if isinstance(kept, Encoded):
        about["shape"] = list(kept.shape)
    return about


def unpack(tensors: dict[str, Tensor], about: dict[str, Any], source: str) -> tuple[Memory, tuple[str, ...]]:
    """Undo ``pack``, checking everything that a hostile or damaged file could have wrong."""
    if about.get("format") not in FORMATS:
        expected = " or ".join(map(repr, FORMATS))
        raise InputError(f"{source} does not hold a memory of this program (expected the format {expected}).")
    kinds, names, labels = about.get("kinds"), about.get("names"), tensors.get("labels")
    forms = about.get("forms") if about["format"] == FORMATS[1] else [{}] * (0 if labels is None else labels.numel())
    if (
        labels is None
        or labels.dtype != torch.int32
        or labels.ndim != 1
        or not isinstance(kinds, list)
        or not isinstance(forms, list)
        or not len(kinds) == len(forms) == len(labels)
        or not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or labels.tolist() != sorted({label for label in labels.tolist() if label >= 0})
    ):
        raise InputError(f"{source} is damaged: its list of classes does not fit together.")
    by_class: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        of_class, _, own = name.partition(".")
        by_class.setdefault(of_class, {})[own] = tensor
    memory = Memory(
        {
            label: _remembered(kind, by_class.get(str(label), {}), form, f"{source}, class {label}")
            for label, kind, form in zip(labels.tolist(), kinds, forms, strict=True)
        }
    )
    _check_size(memory, source)
    shapes = {picture_shape(kept) for kept in memory.values()}
    if len(shapes) > 1 or sum(len(kept.tensors()) for kept in memory.values()) + 1 != len(tensors):
        raise InputError(f"{source} is damaged: its classes do not fit together.")
    return memory, tuple(names)


def picture_shape(kept: Remembered) -> tuple[int, int, int]:
    """Tell the channels, height and width of the images without making them."""
    channels, height, width = stored_shape(kept)
    return (channels, *(kept.form.size or (height, width)))


def stored_shape(kept: Remembered) -> tuple[int, int, int]:
    """Tell the channels, height and width of what is stored of an image: pixels, or those its frequencies are of."""
    if kept.form.frequencies is not None:
        return kept.form.frequencies.shape
    if isinstance(kept, Encoded):
        return kept.shape
    channels, height, width = next(iter(kept.tensors().values())).shape[1:]
    return channels, height, width


def _seen(kept: Remembered) -> int:
    return seen_of(count_of(kept), len(kept.components) if isinstance(kept, Composite) else 0)


def _check_size(memory: Memory, source: str) -> None:
    """Refuse what could be saved but not loaded again, and what no program of ours has saved."""
    grown = sum(FLOAT_BYTES * _seen(kept) * math.prod(picture_shape(kept)) for kept in memory.values())
    if grown > max(MOST_DECODED, MOST_GROWTH * memory.nbytes):
        raise InputError(
            f"{source} would decode to {grown / 2**30:.1f} GiB of images, more than {MOST_GROWTH} times its size."
        )


def _remembered(kind: object, tensors: dict[str, Tensor], about: object, source: str) -> Remembered:
    wanted = kind if isinstance(kind, str) and kind in KINDS else f"one of {', '.join(KINDS)}"
    wrong = InputError(f"{source} is damaged: what is stored is not {wanted} of the right shapes and types.")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(about, dict):
        raise wrong
    form = _form(about, KINDS[kind].form)
    if form is None or not _fitting(kind, tensors, form):
        raise wrong
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"{source} is damaged: its {name} hold values that are not numbers.")
    try:
        if kind == Encoded.kind:
            kept = Encoded(**tensors, shape=_sizes(about.get("shape"), 3), form=form)
            if form.size is not None and not enlargeable(kept.shape[1:], form.size):
                raise InputError("It cannot be enlarged.")
            if count_of(kept) * math.prod(kept.shape) > max(MOST_DECODED, MOST_GROWTH * kept.files.nbytes):
                raise InputError("It would decode to too much.")
            for _ in kept.each():
                pass
            return kept
        if form.step:
            return _uncoded(tensors, form)
        return KINDS[kind](**tensors, form=form)  # type: ignore[arg-type]
    except (TypeError, InputError) as error:
        raise wrong from error


def _uncoded(tensors: dict[str, Tensor], form: Form) -> Pixels:
    """Read images that are coded; how many, and of what, must be possible before anything is made of them."""
    assert form.frequencies is not None
    count, columns = int(tensors["count"]), form.frequencies.numbers
    if FLOAT_BYTES * count * math.prod(form.frequencies.shape) > max(
        MOST_DECODED, MOST_GROWTH * tensors["code"].nbytes
    ):
        raise InputError("It would decode to too much.")
    numbers = decoded(tensors["code"], tensors["widths"], count, columns)
    if "targets" in tensors and len(tensors["targets"]) != count:
        raise InputError("There is not a label for each image.")
    kept = Pixels(numbers.to(torch.int16)[:, None, None], targets=tensors.get("targets"), form=form)
    vars(kept)["code"] = {name: tensors[name] for name in ("code", "widths", "count")}  # which it was read from
    return kept


def _form(about: dict[str, Any], usual: Form) -> Form | None:
    """Read how images are made, or None where it cannot be."""
    squash, bits, step = about.get("squash", usual.squash), about.get("bits", usual.bits), about.get("step", 0.0)
    try:
        size = _sizes(about["size"], 2) if "size" in about else None
        frequencies = None
        if "frequencies" in about:
            shape, (count,) = _sizes(about.get("pictures"), 3), _sizes([about["frequencies"]], 1)
            margin = _sizes([about["margin"]], 1) if "margin" in about else (0,)
            frequencies = Frequencies(shape, count, *margin)
        fits = isinstance(squash, bool) and isinstance(bits, int) and (size is None or frequencies is None)
        fits = fits and isinstance(step, float) and (not step or frequencies is not None)
        return Form(size, squash, bits, frequencies, step) if fits else None
    except InputError:
        return None


def _sizes(given: object, count: int) -> Any:
    """Read lengths of sides."""
    if not isinstance(given, list) or len(given) != count:
        raise InputError("There are lengths missing.")
    if not all(type(length) is int and 0 < length < LARGEST for length in given):
        raise InputError("There are lengths that cannot be.")
    return tuple(given)


def _fitting(kind: str, tensors: dict[str, Tensor], form: Form) -> bool:
    """Say whether tensors are what a memory of this kind and form is made of."""
    stored = {32: torch.float32, 16: torch.float16, 8: torch.uint8}[form.bits]
    optional = {"targets": (torch.float16, 2), "logits": (torch.float32, 2)}
    types: dict[str, tuple[torch.dtype, int]] = {
        Exemplars.kind: {"pixels": (torch.uint8, 4)},
        Encoded.kind: {"files": (torch.uint8, 1), "ends": (torch.int32, 1)},
        Pixels.kind: {"pixels": (stored, 4)},
        Composite.kind: {"components": (stored, 4), "weights": (stored, 2)},
    }[kind]
    learned = kind in (Pixels.kind, Composite.kind)
    if form.step:
        types = {"code": (torch.uint8, 1), "widths": (torch.uint8, 1), "count": (torch.int32, 1)}
        if kind != Pixels.kind or form.bits != 32 or form.frequencies is None:
            return False
    if learned and form.bits == 8:
        types["scales"] = (torch.float16, 2)
    more = "targets" if learned else "logits"
    if more in tensors:
        types[more] = optional[more]
    if {name: (tensor.dtype, tensor.ndim) for name, tensor in tensors.items()} != types:
        return False
    if any(not tensor.numel() for name, tensor in tensors.items() if name != "logits"):
        return False
    if form.size is not None:
        stored_size = [tuple(tensor.shape[-2:]) for tensor in tensors.values() if tensor.ndim == 4]
        if not all(enlargeable((height, width), form.size) for height, width in stored_size):
            return False
    if form.frequencies is not None:
        few = (1, 1, form.frequencies.numbers)
        if not learned or any(tensor.shape[1:] != few for tensor in tensors.values() if tensor.ndim == 4):
            return False
    rows = {name: len(tensor) for name, tensor in tensors.items()}
    images = tensors["weights"].shape[1] if "weights" in tensors else rows.get("ends", rows.get("pixels"))
    if kind == Composite.kind and rows["weights"] != rows["components"]:
        return False
    if "scales" in tensors:
        parts = 2 if kind == Composite.kind else 1
        if tensors["scales"].shape != (rows.get("components", rows.get("pixels")), 2 * parts):
            return False
    if "count" in tensors:
        return tensors["count"].shape == (1,)  # the rest is seen when it is read
    if "ends" in tensors:
        ends = tensors["ends"].tolist()
        if ends != sorted(set(ends)) or ends[0] < 1 or ends[-1] != rows["files"]:
            return False
    return more not in tensors or rows[more] == images
