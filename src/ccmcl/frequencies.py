"""Pictures as a few of their frequencies: many of a picture's numbers say little about it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ccmcl.budget import Layout, coloured
from ccmcl.errors import InputError

MOST_PIXELS = 1 << 20
MOST_BASIS = 1 << 28
"""Numbers that the cosines may take, laid out as pictures."""
QUIET = 0.001
"""In a quiet edge there is no more of all variance than this."""
FEW = 100
"""Fewer pictures do not show what varies."""
AT_ONCE = 64
"""Pictures that are looked at together for that."""


@dataclass(frozen=True)
class Frequencies:
    """The lowest frequencies of pictures of one shape: ``count`` of the mean of the channels, fewer of the colours.

    They are those of the cosine transform, over rows, columns and channels; the cosines are orthonormal, so that what
    is nearest among pictures of these frequencies is found by leaving out the others. Of the edge of pictures, so many
    pixels wide as the ``margin``, nothing is kept: what is beside it goes on there.

    >>> few = Frequencies((3, 32, 32), 160)
    >>> few.numbers
    240
    >>> few.images(few.of(torch.rand(5, 3, 32, 32))).shape
    torch.Size([5, 3, 32, 32])
    """

    shape: tuple[int, int, int]
    count: int
    margin: int = 0

    def __post_init__(self) -> None:
        _, height, width = self.shape
        if height * width > MOST_PIXELS:
            raise InputError(f"Pictures of {height}×{width} pixels are too large to be kept as frequencies.")
        if self.margin < 0 or min(self.inside) < 1:
            raise InputError(f"Pictures of {height}×{width} pixels cannot have a margin of {self.margin}.")
        most = self.inside[0] * self.inside[1]
        if self.shape[0] < 1 or not 1 <= self.count <= most:
            within = f" inside a margin of {self.margin}" if self.margin else ""
            raise InputError(
                f"Of pictures of {height}×{width} pixels, from 1 to {most} frequencies can be kept{within}, "
                f"not {self.count}."
            )
        if self.numbers * math.prod(self.shape) > MOST_BASIS:
            raise InputError(
                f"{self.count} frequencies of pictures of {height}×{width} pixels take over {MOST_BASIS >> 28} GiB to "
                "lay out: keep fewer."
            )

    @property
    def inside(self) -> tuple[int, int]:
        """The pixels inside the margin."""
        return self.shape[1] - 2 * self.margin, self.shape[2] - 2 * self.margin

    @property
    def numbers(self) -> int:
        """The numbers that are kept of a picture."""
        return Layout(frequencies=self.count).small(self.shape)

    def basis(self, like: Tensor, size: tuple[int, int] | None = None) -> Float[Tensor, "d s"]:
        """Lay the cosines out as the insides of pictures, one in a row; of another size, if one is given."""
        channels, (height, width) = self.shape[0], self.inside
        rows, columns = (
            cosines(made, like, which) * math.sqrt(made / side)
            for side, made, which in zip(
                (height, width), size or (height, width), lowest(height, width, self.count), strict=True
            )
        )
        planes = rows[:, :, None] * columns[:, None, :]
        parts = [
            mix[:, None, None] * planes[: coloured(self.count) if number else self.count, None]
            for number, mix in enumerate(cosines(channels, like))
        ]
        return torch.cat(parts).flatten(1)

    def of(self, images: Float[Tensor, "*q c h w"]) -> Float[Tensor, "*q 1 1 d"]:
        """Take the frequencies of images."""
        height, width = self.inside
        inner = images.narrow(-2, self.margin, height).narrow(-1, self.margin, width)
        return (inner.flatten(-3) @ self.basis(images).mT)[..., None, None, :]

    def images(self, numbers: Float[Tensor, "*q 1 1 d"]) -> Float[Tensor, "*q c h w"]:
        """Make images of their frequencies."""
        flat = numbers.flatten(-3) @ self.basis(numbers)
        inner = flat.reshape(*flat.shape[:-1], self.shape[0], *self.inside)
        for dimension, side in zip((-2, -1), self.inside, strict=True) if self.margin else ():
            places = torch.arange(-self.margin, side + self.margin, device=flat.device).clamp(0, side - 1)
            inner = inner.index_select(dimension, places)
        return inner

    def through(self, images: Float[Tensor, "*q c h w"]) -> Float[Tensor, "*q c h w"]:
        """Take everything else out of images."""
        return self.images(self.of(images))

    def fits(self, size: tuple[int, int]) -> bool:
        """Say whether pictures of this size have all these frequencies."""
        rows, columns = lowest(*self.inside, self.count)
        return max(rows) < size[0] and max(columns) < size[1]

    def resized(self, images: Float[Tensor, "n c h w"], size: tuple[int, int]) -> Float[Tensor, "n c i j"]:
        """Take everything else out of images, and lay out what is left on fewer pixels; nothing more is lost.

        >>> few, images = Frequencies((1, 8, 8), 6), torch.rand(2, 1, 8, 8)
        >>> small = few.resized(images, (4, 4))
        >>> bool((small.mean((2, 3)) - images.mean((2, 3))).abs().max() < 1e-6)
        True
        """
        if not self.fits(size):
            raise InputError(f"Pictures of {size[0]}×{size[1]} pixels do not have all of {self.count} frequencies.")
        flat = self.of(images).flatten(-3) @ self.basis(images, size)
        return flat.reshape(len(images), self.shape[0], *size)


def quiet_edge(pixels: UInt8[Tensor, "n c h w"]) -> int:
    """Tell how wide the edge of pictures is in which hardly anything varies: at most a quarter of a side.

    A few pictures do not show it.

    >>> pixels = torch.zeros(100, 1, 20, 20, dtype=torch.uint8)
    >>> pixels[:50, 0, 3:15, 4:16] = 255
    >>> quiet_edge(pixels), quiet_edge(pixels[1:])
    (3, 0)
    """
    if len(pixels) < FEW:
        return 0
    sums, squares = torch.zeros(2, *pixels.shape[1:], dtype=torch.int64)
    for part in torch.split(pixels, AT_ONCE):
        some = part.to(torch.int64)  # in whole numbers, so exactly
        sums += some.sum(0)
        squares += some.square_().sum(0)
    varies = (len(pixels) * squares - sums.square()).sum(0)
    height, width = varies.shape
    total, edge = int(varies.sum()), 0
    if not total:
        return 0
    while 4 * (edge + 1) <= min(height, width):
        inside = int(varies[edge + 1 : height - edge - 1, edge + 1 : width - edge - 1].sum())
        if total - inside > QUIET * total:
            break
        edge += 1
    return edge


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


def cosines(side: int, like: Tensor, which: Sequence[int] | None = None) -> Float[Tensor, "k n"]:
    """Lay out the cosines of frequencies, of all or of those named, over a line of pixels, orthonormal.

    >>> cosines(2, torch.zeros(1))
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    places = torch.arange(side, device=like.device, dtype=like.dtype)
    swings = (places if which is None else torch.tensor(which, device=like.device, dtype=like.dtype))[:, None]
    waves = torch.cos(math.pi / side * swings * (places + 0.5)) * math.sqrt(2 / side)
    return torch.where(swings == 0, math.sqrt(1 / side), waves)
