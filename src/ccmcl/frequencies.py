"""Pictures as a few of their frequencies: many of a picture's numbers say little about it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ccmcl.budget import Layout, coloured
from ccmcl.errors import InputError

MOST_PIXELS = 1 << 20


@dataclass(frozen=True)
class Frequencies:
    """The lowest frequencies of pictures of one shape: ``count`` of the mean of the channels, fewer of the colours.

    They are those of the cosine transform, over rows, columns and channels; the cosines are orthonormal, so that what
    is nearest among pictures of these frequencies is found by leaving out the others.

    >>> few = Frequencies((3, 32, 32), 160)
    >>> few.numbers
    240
    >>> few.images(few.of(torch.rand(5, 3, 32, 32))).shape
    torch.Size([5, 3, 32, 32])
    """

    shape: tuple[int, int, int]
    count: int

    def __post_init__(self) -> None:
        _, height, width = self.shape
        if height * width > MOST_PIXELS:
            raise InputError(f"Pictures of {height}×{width} pixels are too large to be kept as frequencies.")
        if min(self.shape) < 1 or not 1 <= self.count <= height * width:
            raise InputError(
                f"Of pictures of {height}×{width} pixels, from 1 to {height * width} frequencies can be kept, "
                f"not {self.count}."
            )

    @property
    def numbers(self) -> int:
        """The numbers that are kept of a picture."""
        return Layout(frequencies=self.count).small(self.shape)

    def basis(self, like: Tensor) -> Float[Tensor, "d s"]:
        """Lay the cosines out as pictures, one in a row."""
        channels, height, width = self.shape
        rows, columns = (
            cosines(side, like)[torch.tensor(which, device=like.device)]
            for side, which in zip((height, width), lowest(height, width, self.count), strict=True)
        )
        planes = rows[:, :, None] * columns[:, None, :]
        parts = [
            mix[:, None, None] * planes[: coloured(self.count) if number else self.count, None]
            for number, mix in enumerate(cosines(channels, like))
        ]
        return torch.cat(parts).flatten(1)

    def of(self, images: Float[Tensor, "*q c h w"]) -> Float[Tensor, "*q 1 1 d"]:
        """Take the frequencies of images."""
        return (images.flatten(-3) @ self.basis(images).mT)[..., None, None, :]

    def images(self, numbers: Float[Tensor, "*q 1 1 d"]) -> Float[Tensor, "*q c h w"]:
        """Make images of their frequencies."""
        flat = numbers.flatten(-3) @ self.basis(numbers)
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def through(self, images: Float[Tensor, "*q c h w"]) -> Float[Tensor, "*q c h w"]:
        """Take everything else out of images."""
        return self.images(self.of(images))


@functools.cache
def lowest(height: int, width: int, count: int) -> tuple[list[int], list[int]]:
    """Find so many of the lowest frequencies: how often each swings over the rows, and over the columns.

    >>> lowest(4, 4, 3)
    ([0, 0, 1], [0, 1, 0])
    """
    pairs = [(down, across) for down in range(height) for across in range(width)]
    pairs.sort(key=lambda pair: ((pair[0] * width) ** 2 + (pair[1] * height) ** 2, pair))
    rows, columns = zip(*pairs[:count], strict=True)
    return list(rows), list(columns)


def cosines(side: int, like: Tensor) -> Float[Tensor, "k n"]:
    """Lay out the cosines of all frequencies over a line of pixels, orthonormal.

    >>> cosines(2, torch.zeros(1))
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    places = torch.arange(side, device=like.device, dtype=like.dtype)
    waves = torch.cos(math.pi / side * places[:, None] * (places + 0.5)) * math.sqrt(2 / side)
    return torch.where(places[:, None] == 0, math.sqrt(1 / side), waves)
