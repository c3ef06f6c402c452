"""What is remembered of the classes seen: stored pictures, free images, or components and how they mix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from ccmcl.budget import LABEL_BYTES


@runtime_checkable
class Remembered(Protocol):
    """What is remembered of one class: some stored tensors, and the images that a learner sees of them."""

    kind: ClassVar[str]

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the training images."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored, by name."""
        ...

    def shrunk(self, count: int) -> Remembered:
        """Return a memory of the same class with at most ``count`` pictures or components."""
        ...


@dataclass(frozen=True)
class Exemplars:
    """Pictures of the class as they came, in eight bits, and with them the logits a network gave (for BiC).

    >>> Exemplars(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).images().shape
    torch.Size([2, 1, 8, 8])
    """

    kind: ClassVar[str] = "exemplars"
    pixels: UInt8[Tensor, "q c h w"]
    logits: Float[Tensor, "q k"] | None = None

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the pictures with values in [0, 1]."""
        return unit(self.pixels)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int) -> Exemplars:
        """Keep the first ``count`` pictures (they were drawn at random)."""
        return Exemplars(self.pixels[:count], None if self.logits is None else self.logits[:count])


@dataclass(frozen=True)
class Pixels:
    """Free images, every pixel learned by itself (dataset condensation); values may leave [0, 1]."""

    kind: ClassVar[str] = "pixels"
    pixels: Float[Tensor, "q c h w"]

    @staticmethod
    def draw(generator: Generator, count: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Pixels:
        """Start from uniform noise, as many images as are stored."""
        return Pixels(torch.rand(count, *shape, generator=generator, dtype=dtype))

    def images(self) -> Float[Tensor, "q c h w"]:
        """Return the images."""
        return self.pixels

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int) -> Pixels:
        """Keep the first ``count`` images."""
        return Pixels(self.pixels[:count])


@dataclass(frozen=True)
class Composite:
    """P components shared by Q images: x_j = σ(Σ_i w_ij c_i), the paper's Eq. 6.

    >>> memory = Composite.draw(torch.Generator().manual_seed(0), 2, (1, 8, 8), torch.float32, images=4)
    >>> memory.images().shape, scalars(memory)
    (torch.Size([4, 1, 8, 8]), 136)
    """

    kind: ClassVar[str] = "composite"
    components: Float[Tensor, "p c h w"]
    weights: Float[Tensor, "p q"]

    @staticmethod
    def draw(
        generator: Generator, count: int, shape: tuple[int, int, int], dtype: torch.dtype, images: int
    ) -> Composite:
        """Start from components c ~ U(0, 1) and weights w ~ N(0, 1)."""
        components = torch.rand(count, *shape, generator=generator, dtype=dtype)
        return Composite(components, torch.randn(count, images, generator=generator, dtype=dtype))

    def images(self) -> Float[Tensor, "q c h w"]:
        """Mix the components into images with values in (0, 1)."""
        return mixed(self.weights, self.components)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored."""
        return stored(self)

    def shrunk(self, count: int) -> Composite:
        """Keep the first images of the new size and, by singular values, the ``count`` components nearest to them."""
        have, images = self.weights.shape
        if count >= have:
            return self
        weights = self.weights[:, : max(1, images * count // have)]
        mixed = (weights.T @ self.components.flatten(1)).double()
        left, values, right = torch.linalg.svd(mixed, full_matrices=False)
        rank = min(count, len(values))
        return Composite(
            (values[:rank, None] * right[:rank])
            .to(weights.dtype)
            .reshape(rank, *self.components.shape[1:])
            .contiguous(),
            left[:, :rank].T.to(weights.dtype).contiguous(),
        )


def mixed(weights: Float[Tensor, "*k p q"], components: Float[Tensor, "*k p c h w"]) -> Float[Tensor, "*k q c h w"]:
    """Mix components into images, of one class or of several at once."""
    return torch.sigmoid(torch.einsum("...pq,...pchw->...qchw", weights, components))


KINDS: dict[str, type[Exemplars] | type[Pixels] | type[Composite]] = {
    kind.kind: kind for kind in (Exemplars, Pixels, Composite)
}


def unit(pixels: UInt8[Tensor, "..."], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
    """Bring eight-bit pictures to values in [0, 1]."""
    return pixels.to(dtype) / 255


def eight_bit(images: Float[Tensor, "q c h w"]) -> UInt8[Tensor, "q c h w"]:
    """Round images to eight bits, each stretched first if it leaves [0, 1]: good enough to look at.

    >>> eight_bit(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3)).flatten()
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return (scaled(images) * 255).round().to(torch.uint8)


def scaled(images: Float[Tensor, "q c h w"]) -> Float[Tensor, "q c h w"]:
    """Stretch each image to [0, 1] if it leaves that interval, as learned images may."""
    low = images.amin((1, 2, 3), keepdim=True)
    high = images.amax((1, 2, 3), keepdim=True)
    outside = (low < 0) | (high > 1)
    return ((images - low) / (high - low).clamp(min=1e-12)).where(outside, images)


def stored(memory: Exemplars | Pixels | Composite) -> dict[str, Tensor]:
    """Name the tensors a memory is made of."""
    named = {entry.name: getattr(memory, entry.name) for entry in fields(memory)}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def scalars(memory: Remembered) -> int:
    """Count the stored real numbers, whatever their type: the paper's measure (B_ind = Q·S, B_cm = P·(S+Q))."""
    return sum(tensor.numel() for tensor in memory.tensors().values())


def nbytes(memory: Remembered) -> int:
    """Count the bytes that the memory of one class takes in a file, its label included."""
    return LABEL_BYTES + sum(tensor.nbytes for tensor in memory.tensors().values())


@dataclass(frozen=True)
class Memory(Mapping[int, Remembered]):
    """The buffer: what is remembered of each class, by its label. Never changed in place.

    >>> memory = Memory().plus(3, Exemplars(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)))
    >>> memory.count, memory.scalars, memory.nbytes, memory.labels().tolist()
    (2, 128, 132, [3, 3])
    """

    classes: Mapping[int, Remembered] = field(default_factory=dict)

    def __getitem__(self, label: int) -> Remembered:
        return self.classes[label]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.classes))

    def __len__(self) -> int:
        return len(self.classes)

    def plus(self, label: int, memory: Remembered) -> Memory:
        """Add the memory of a class, or replace the one there is."""
        return Memory({**self.classes, label: memory})

    def images(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n c h w"]:
        """Return the images of all classes, in the order of their labels."""
        kept = list(self.values())
        parts = [one for one in kept if isinstance(one, Composite)]
        if len(parts) == len(kept) and len({(one.weights.shape, one.components.shape) for one in parts}) == 1:
            weights = torch.stack([one.weights for one in parts])  # a thousand classes in one stroke
            return mixed(weights, torch.stack([one.components for one in parts])).flatten(0, 1).to(dtype)
        return torch.cat([memory.images().to(dtype) for memory in kept])

    def labels(self) -> Tensor:
        """Return the label of each image."""
        counts = [count_of(memory) for memory in self.values()]
        return torch.tensor(list(self), dtype=torch.int64).repeat_interleave(torch.tensor(counts, dtype=torch.int64))

    @property
    def count(self) -> int:
        """The number of images."""
        return sum(count_of(memory) for memory in self.values())

    @property
    def scalars(self) -> int:
        """The number of stored real numbers."""
        return sum(scalars(memory) for memory in self.values())

    @property
    def nbytes(self) -> int:
        """The exact payload of the file: every stored tensor, labels included."""
        return sum(nbytes(memory) for memory in self.values())


def count_of(memory: Remembered) -> int:
    """Count the images of one class without making them."""
    tensors = memory.tensors()
    return tensors["weights"].shape[1] if "weights" in tensors else len(tensors["pixels"])
