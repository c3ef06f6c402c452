"""What is remembered of one class: stored pictures, free images, or components and how they mix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float16, Int32, Int64, UInt8
from torch import Generator, Tensor

from ccmcl.budget import COUNT_BYTES, LABEL_BYTES
from ccmcl.coding import beside, bits_of, encoded
from ccmcl.encoding import decode, encode
from ccmcl.forms import Form
from ccmcl.values import unit

PLAIN, SQUASHED = Form(), Form(squash=True)


@runtime_checkable
class Remembered(Protocol):
    """What is remembered of one class: some stored tensors, and the images that a learner sees of them."""

    kind: ClassVar[str]

    @property
    def form(self) -> Form:
        """How what is stored becomes images."""
        ...

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the training images."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored, by name."""
        ...

    def shrunk(self, count: int, images: int, apart: int = 0, was: int = 0) -> Remembered:
        """Return a memory of the same class with at most ``count`` pictures or components, and ``images`` mixtures.

        Of the first images that were set apart, so many still are, and go before all others.
        """
        ...


@dataclass(frozen=True)
class Exemplars:
    """Pictures of the class as they came or made smaller, in eight bits, and the logits a network gave (for BiC).

    >>> Exemplars(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).images().shape
    torch.Size([2, 1, 8, 8])
    """

    kind: ClassVar[str] = "exemplars"
    pixels: UInt8[Tensor, "q c h w"]
    logits: Float[Tensor, "q k"] | None = None
    form: Form = PLAIN

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the pictures with values in [0, 1]."""
        return self.form.enlarged(unit(self.pixels))

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int, images: int = 0, apart: int = 0, was: int = 0) -> Exemplars:  # noqa: ARG002
        """Keep ``count`` pictures (they were drawn at random)."""
        return self.only(remaining(len(self.pixels), count, apart, was))

    def only(self, places: Int64[Tensor, "n"]) -> Exemplars:
        """Keep the pictures of these places."""
        return Exemplars(self.pixels[places], rows(self.logits, places), self.form)

    def joined(self, other: Remembered) -> Exemplars:
        """Put the pictures of another memory of the same form behind these, without logits."""
        return Exemplars(torch.cat([self.pixels, other.tensors()["pixels"]]), form=self.form)


@dataclass(frozen=True)
class Encoded:
    """Pictures of the class as JPEG or WebP files, one after the other; ``ends`` says where each ends.

    >>> pictures = torch.full((3, 3, 16, 16), 128, dtype=torch.uint8)
    >>> kept = Encoded.of(pictures, "webp", 90)
    >>> kept.images().shape, nbytes(kept) < pictures.nbytes
    (torch.Size([3, 3, 16, 16]), True)
    """

    kind: ClassVar[str] = "encoded"
    files: UInt8[Tensor, "n"]
    ends: Int32[Tensor, "q"]
    shape: tuple[int, int, int]
    logits: Float[Tensor, "q k"] | None = None
    form: Form = PLAIN

    @staticmethod
    def of(
        pixels: UInt8[Tensor, "q c h w"],
        codec: str,
        quality: int,
        logits: Float[Tensor, "q k"] | None = None,
        form: Form = PLAIN,
    ) -> Encoded:
        """Encode pictures."""
        files = [encode(picture, codec, quality) for picture in pixels]
        ends = torch.tensor([len(file) for file in files], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        channels, height, width = pixels.shape[1:]
        data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
        return Encoded(data, ends, (channels, height, width), logits, form)

    def images(self) -> Float[Tensor, "q c h w"]:
        """Decode the pictures, with values in [0, 1]."""
        return self.form.enlarged(unit(self.pixels()))

    def pixels(self) -> UInt8[Tensor, "q c h w"]:
        """Decode the pictures as they are stored."""
        return torch.stack(list(self.each()))

    def each(self) -> Iterator[UInt8[Tensor, "c h w"]]:
        """Decode one picture after the other."""
        data, starts = self.files.numpy().tobytes(), [0, *self.ends.tolist()]
        for start, end in pairwise(starts):
            yield decode(data[start:end], self.shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int, images: int = 0, apart: int = 0, was: int = 0) -> Encoded:  # noqa: ARG002
        """Keep ``count`` pictures."""
        return self.only(remaining(len(self.ends), count, apart, was))

    def within(self, room: int, beside: int) -> Int64[Tensor, "n"]:
        """Choose the pictures, from the first, that fit into so many bytes, each with so many beside it."""
        chosen, used = list[int](), 0
        for place, length in enumerate(self._lengths().tolist()):
            if used + length + beside <= room:
                chosen.append(place)
                used += length + beside
        return torch.tensor(chosen, dtype=torch.int64)

    def only(self, places: Int64[Tensor, "n"]) -> Encoded:
        """Keep the pictures of these places."""
        lengths = self._lengths()
        files = torch.split(self.files[: int(lengths.sum())], lengths.tolist())
        some = [self.files[:0], *(files[place] for place in places.tolist())]
        ends = lengths[places].cumsum(0, dtype=torch.int32)
        return Encoded(torch.cat(some), ends, self.shape, rows(self.logits, places), self.form)

    def joined(self, other: Remembered) -> Encoded:
        """Put the files of another memory of the same form behind these, without logits."""
        more = other.tensors()
        ends = torch.cat([self.ends, more["ends"] + len(self.files)])
        return Encoded(torch.cat([self.files, more["files"]]), ends, self.shape, form=self.form)

    def _lengths(self) -> Int32[Tensor, "q"]:
        return torch.diff(self.ends, prepend=self.ends.new_zeros(1))


@dataclass(frozen=True)
class Pixels:
    """Free images, every pixel learned by itself (dataset condensation); values may leave [0, 1].

    ``scales`` are the ranges of images stored in eight bits, ``targets`` what a network took each image for. Numbers
    that are multiples of a step are held as such, and stored in as few bits as they need.

    >>> numbers = {"pixels": torch.randn(50, 1, 1, 9)}
    >>> [nbytes(formed(Pixels, numbers, Form(bits=bits))) for bits in (32, 8)]
    [1804, 654]
    >>> nbytes(formed(Pixels, numbers, Form(step=0.5))) < 300
    True
    """

    kind: ClassVar[str] = "pixels"
    pixels: Tensor
    scales: Float16[Tensor, "q 2"] | None = None
    targets: Float16[Tensor, "q k"] | None = None
    form: Form = PLAIN

    @staticmethod
    def draw(generator: Generator, count: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Pixels:
        """Start from uniform noise, as many images as are stored."""
        return Pixels(torch.rand(count, *shape, generator=generator, dtype=dtype))

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the images."""
        return self.form.decoded(self.numbers())

    def unmade(self) -> Float[Tensor, "q *s"]:
        """Return what each image is made of, in the shape of what is stored."""
        return self.numbers()["pixels"]

    def numbers(self) -> dict[str, Tensor]:
        """Return what is learned, in float32."""
        return numbers_of(self)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        held = stored(self)
        return {name: held[name] for name in held if name != "pixels"} | self.code if self.form.step else held

    @cached_property
    def code(self) -> dict[str, Tensor]:
        """The numbers as few bits, the widths to read these by, and the number of images."""
        code, widths = encoded(self.pixels.flatten(1).int())
        return {"code": code, "widths": widths, "count": torch.tensor([len(self.pixels)], dtype=torch.int32)}

    def within(self, room: int) -> int:
        """Say how many images, from the first, take about so many bytes, the label of the class among them."""
        numbers = self.pixels.flatten(1).int()
        each = bits_of(numbers) / 8 + (0 if self.targets is None else self.targets[0].nbytes)
        around = torch.tensor([beside(count, numbers.shape[1]) for count in range(1, len(numbers) + 1)])
        return int((LABEL_BYTES + COUNT_BYTES + around + each.cumsum(0) <= room).sum())

    def shrunk(self, count: int, images: int = 0, apart: int = 0, was: int = 0) -> Pixels:  # noqa: ARG002
        """Keep ``count`` images."""
        if count >= len(self.pixels):
            return self
        places = remaining(len(self.pixels), count, apart, was)
        return Pixels(self.pixels[places], rows(self.scales, places), rows(self.targets, places), self.form)


@dataclass(frozen=True)
class Composite:
    """P components shared by Q images: x_j = σ(Σ_i w_ij c_i), the paper's Eq. 6, or another form of it.

    ``scales`` are the ranges of components and of their weights stored in eight bits, ``targets`` what a network took
    each image for.

    >>> memory = Composite.draw(torch.Generator().manual_seed(0), 2, (1, 8, 8), torch.float32, images=4)
    >>> memory.images().shape, scalars(memory)
    (torch.Size([4, 1, 8, 8]), 136)
    """

    kind: ClassVar[str] = "composite"
    components: Tensor
    weights: Tensor
    scales: Float16[Tensor, "p 4"] | None = None
    targets: Float16[Tensor, "q k"] | None = None
    form: Form = SQUASHED

    @staticmethod
    def draw(
        generator: Generator, count: int, shape: tuple[int, int, int], dtype: torch.dtype, images: int
    ) -> Composite:
        """Start from components c ~ U(0, 1) and weights w ~ N(0, 1)."""
        components = torch.rand(count, *shape, generator=generator, dtype=dtype)
        return Composite(components, torch.randn(count, images, generator=generator, dtype=dtype))

    def images(self) -> Float[Tensor, "q c h w"]:
        """Mix the components into images."""
        return self.form.decoded(self.numbers())

    def unmade(self) -> Float[Tensor, "q *s"]:
        """Return what each image is made of: its mixture, in the shape of a component."""
        return self.form.mixed(self.numbers())

    def parts(self, count: int) -> Float[Tensor, "p c h w"]:
        """Return the first components, as large as the images."""
        return self.form.enlarged(self.numbers()["components"][:count])

    def numbers(self) -> dict[str, Tensor]:
        """Return what is learned, in float32."""
        return numbers_of(self)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int, images: int, apart: int = 0, was: int = 0) -> Composite:
        """Keep ``images`` images and, by singular values, the ``count`` components nearest to them.

        Images set apart are components, each by itself, and stay such.
        """
        have, made = self.weights.shape
        if count >= have and images >= made:
            return self
        numbers, places = self.numbers(), remaining(made, images, apart, was)
        weights, components = numbers["weights"][:, places], numbers["components"]
        if count < have:
            mixed = (weights[:, apart:].T @ components.flatten(1)).double()
            left, values, right = torch.linalg.svd(mixed, full_matrices=False)
            rank = min(count - apart, len(values))
            nearest = (values[:rank, None] * right[:rank]).to(weights.dtype).reshape(rank, *components.shape[1:])
            unused = components.new_zeros(count - apart - rank, *components.shape[1:])  # of images of few numbers
            components = torch.cat([components[:apart], nearest, unused])
            weights = torch.eye(apart, len(places), dtype=weights.dtype)
            weights = torch.cat([weights, weights.new_zeros(count - apart, len(places))])
            weights[apart : apart + rank, apart:] = left[:, :rank].T
        fewer = {"components": components.contiguous(), "weights": weights.contiguous()}
        kept = formed(Composite, fewer, self.form, rows(self.targets, places))
        assert isinstance(kept, Composite)
        return kept


Kept = Exemplars | Encoded | Pixels | Composite
Learned = Pixels | Composite
TITLES = {
    "exemplars": "stored examples",
    "encoded": "encoded examples",
    "pixels": "free images",
    "composite": "composites",
}
KINDS: dict[str, type[Exemplars] | type[Encoded] | type[Pixels] | type[Composite]] = {
    kind.kind: kind for kind in (Exemplars, Encoded, Pixels, Composite)
}
LEARNED = ("components", "weights", "pixels")
"""The tensors of a memory that are learned; the others say more about them."""


def numbers_of(memory: Learned) -> dict[str, Tensor]:
    """Unpack what is learned of a memory."""
    held = stored(memory)
    named = {name: tensor for name, tensor in held.items() if name in LEARNED}
    return memory.form.loaded(named | ({"scales": held["scales"]} if "scales" in held else {}))


def formed(kind: type[Learned], numbers: dict[str, Tensor], form: Form, targets: Tensor | None = None) -> Learned:
    """Store what was learned.

    >>> formed(Pixels, {"pixels": torch.rand(2, 1, 4, 4)}, Form((8, 8), bits=8)).images().shape
    torch.Size([2, 1, 8, 8])
    """
    named: dict[str, Any] = form.stored(numbers)
    return kind(**named, targets=targets, form=form)


def remaining(total: int, count: int, apart: int, was: int) -> Int64[Tensor, "n"]:
    """Choose which of all images remain: so many of those that were set apart, then the others, in their order.

    >>> remaining(10, 5, apart=1, was=3)
    tensor([0, 3, 4, 5, 6])
    """
    if count >= total:
        return torch.arange(total)
    return torch.cat([torch.arange(apart), torch.arange(was, total), torch.arange(apart, was)])[:count]


def rows(tensor: Tensor | None, places: Int64[Tensor, "n"]) -> Tensor | None:
    """Take some rows of what may not be there."""
    return None if tensor is None else tensor[places]


def stored(memory: Kept) -> dict[str, Tensor]:
    """Name the tensors a memory is made of."""
    named = {entry.name: getattr(memory, entry.name) for entry in fields(memory)}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}


def scalars(memory: Remembered) -> int:
    """Count the stored real numbers, whatever their type: the paper's measure (B_ind = Q·S, B_cm = P·(S+Q))."""
    tensors = stored(memory) if isinstance(memory, Pixels) else memory.tensors()
    return sum(tensor.numel() for tensor in tensors.values())


def nbytes(memory: Remembered) -> int:
    """Count the bytes that the memory of one class takes in a file, its label included."""
    return LABEL_BYTES + sum(tensor.nbytes for tensor in memory.tensors().values())


def count_of(memory: Remembered) -> int:
    """Count the images of one class without making them."""
    match memory:
        case Composite():
            return memory.weights.shape[1]
        case Encoded():
            return len(memory.ends)
        case Pixels():
            return len(memory.pixels)
        case _:
            return len(memory.tensors()["pixels"])
