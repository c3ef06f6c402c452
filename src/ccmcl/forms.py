"""How stored numbers become images: unpacked from their bits, mixed, squashed, enlarged."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float16, Int16, UInt8
from torch import Tensor

from ccmcl.budget import BITS
from ccmcl.coding import FURTHEST
from ccmcl.errors import InputError
from ccmcl.frequencies import Frequencies

Tensors = dict[str, Tensor]
LEVELS = 255
MIDDLE = 0.5
"""The frequencies of a picture are those of what it has more or less than this."""
EDGE = 0.01
"""Black and white are so far from the ends of a sigmoid."""
MOST_WEIGHTS = 1 << 26
"""Numbers of a matrix that enlarges lines of pixels; it has those of both sides in its own."""
SMALLEST_STEP = 2.0**-20
"""Components that hardly vary still have levels to round to."""
FINEST, COARSEST = 2.0**-10, 2.0**4
"""What numbers may be rounded to multiples of, where they are."""


@dataclass(frozen=True)
class Form:
    """What images are made of their numbers by. A memory is learned as float32 numbers, seen through its form.

    ``size`` is the height and width of the images where they are stored smaller; ``squash`` sends the mixtures through
    a sigmoid; ``bits`` is what a number is stored in: 32, 16, or 8 with a range of its own for each component. With
    ``frequencies`` the numbers are these and no pixels. With a ``step`` numbers are whole multiples of it, which a file
    has in as few bits as they need.

    >>> form = Form(size=(8, 8), bits=8)
    >>> numbers = {"components": torch.rand(2, 1, 4, 4), "weights": torch.rand(2, 3)}
    >>> form.images(numbers).shape
    torch.Size([3, 1, 8, 8])
    >>> {name: tensor.dtype for name, tensor in form.stored(numbers).items()}
    {'components': torch.uint8, 'weights': torch.uint8, 'scales': torch.float16}
    """

    size: tuple[int, int] | None = None
    squash: bool = False
    bits: int = 32
    frequencies: Frequencies | None = None
    step: float = 0.0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InputError(f"Numbers are stored in 8, 16 or 32 bits, not in {self.bits}.")
        object.__setattr__(self, "step", float(self.step))
        if not (self.step == 0 or FINEST <= self.step <= COARSEST):
            raise InputError(f"Numbers are rounded to multiples of {FINEST:g} to {COARSEST:g}, not of {self.step:g}.")

    def images(self, numbers: Tensors, kept: Tensors | None = None) -> Float[Tensor, "q c h w"]:
        """Make images of numbers being learned, as they will be once stored; the gradient passes the rounding.

        ``kept`` are the numbers as ``rounded`` gives them: compiled code must be handed these, because a compiler
        takes a cast to fewer bits and back for nothing.
        """
        kept = self.rounded(numbers) if kept is None else kept
        numbers = {name: kept[name] + (x - x.detach()) if name in kept else x for name, x in numbers.items()}
        return self.decoded(numbers)

    @torch.no_grad()
    def rounded(self, numbers: Tensors) -> Tensors:
        """Round numbers as storing them would; nothing where they are stored as they are."""
        return {} if self.bits == 32 and not self.step else self.loaded(self.stored(numbers))

    def decoded(self, numbers: Tensors) -> Float[Tensor, "*k q c h w"]:
        """Make images of numbers as they are, of one class or of several at once."""
        x = self.mixed(numbers)
        if self.frequencies is not None and self.squash:
            return torch.sigmoid(self.frequencies.images(x))
        return self.enlarged(torch.sigmoid(x) if self.squash else x)

    def mixed(self, numbers: Tensors) -> Float[Tensor, "*k q a b c"]:
        """Mix components, if there are any."""
        if "weights" not in numbers:
            return numbers["pixels"]
        return torch.einsum("...pq,...pchw->...qchw", numbers["weights"], numbers["components"])

    def encoded(self, images: Float[Tensor, "q c h w"], small: tuple[int, int, int]) -> Float[Tensor, "q *s"]:
        """Find the numbers of which images are made that are near to these, in the shape in which they are stored."""
        if self.frequencies is not None:
            return self.frequencies.of(torch.logit(images, eps=EDGE) if self.squash else images - MIDDLE)
        x = reduced(images, small)
        return torch.logit(x, eps=EDGE) if self.squash else x

    def enlarged(self, x: Float[Tensor, "*k q a b c"]) -> Float[Tensor, "*k q channels height width"]:
        """Bring images to their size."""
        if self.frequencies is not None:
            return self.frequencies.images(x) + MIDDLE
        if self.size is None or x.shape[-2:] == self.size:
            return x
        rows, columns = (between(small, large, x) for small, large in zip(x.shape[-2:], self.size, strict=True))
        return rows @ x @ columns.mT

    def stored(self, numbers: Tensors) -> Tensors:
        """Round numbers to what is stored of them."""
        if self.step:
            return {name: multiples(tensor, self.step) for name, tensor in numbers.items()}
        if self.bits == 32:
            return numbers
        if self.bits == 16:
            return {name: tensor.to(torch.float16) for name, tensor in numbers.items()}
        codes, scales = {}, []
        for name, tensor in numbers.items():
            codes[name], scale = packed(tensor)
            scales.append(scale)
        return {**codes, "scales": torch.cat(scales, 1)}

    def loaded(self, stored: Tensors) -> Tensors:
        """Undo ``stored``, but for what the rounding took."""
        dtype = torch.float32
        if self.step:
            return {name: tensor.to(dtype) * self.step for name, tensor in stored.items()}
        if self.bits == 16:
            return {name: tensor.to(dtype) for name, tensor in stored.items()}
        if self.bits == 32:
            return stored
        names = [name for name in stored if name != "scales"]
        parts = torch.split(stored["scales"], 2, dim=1)
        return {name: unpacked(stored[name], scale, dtype) for name, scale in zip(names, parts, strict=True)}


def reduced(images: Tensor, small: tuple[int, int, int]) -> Tensor:
    """Make pictures smaller, each pixel the mean of those it stands for."""
    return images if images.shape[-2:] == small[-2:] else F.interpolate(images, size=small[-2:], mode="area")


def enlargeable(small: tuple[int, int], large: tuple[int, int]) -> bool:
    """Say whether images of a size can be brought to another one, which is no smaller.

    >>> enlargeable((16, 16), (32, 32)), enlargeable((32, 32), (16, 16)), enlargeable((1, 30_000), (1, 60_000))
    (True, False, False)
    """
    return all(few <= many and few * many <= MOST_WEIGHTS for few, many in zip(small, large, strict=True))


def between(small: int, large: int, like: Tensor) -> Float[Tensor, "large small"]:
    """Make the matrix that enlarges a line of pixels, each new one on the line between its neighbours (bilinear).

    A product of matrices has the same derivative, to the last bit, whenever and wherever it is computed.

    >>> between(2, 4, torch.zeros(1))
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.0000, 1.0000]])
    """
    places = ((torch.arange(large, device=like.device, dtype=like.dtype) + 0.5) * (small / large) - 0.5).clamp(
        0, small - 1
    )
    return (1 - (places[:, None] - torch.arange(small, device=like.device, dtype=like.dtype)).abs()).clamp(min=0)


def multiples(numbers: Float[Tensor, "p *n"], step: float) -> Int16[Tensor, "p *n"]:
    """Round numbers to whole multiples of a step, and say which.

    >>> multiples(torch.tensor([[-0.31, 0.1, 1e9]]), 0.2)
    tensor([[   -2,     0, 32767]], dtype=torch.int16)
    """
    return (numbers / step).round().clamp(-FURTHEST, FURTHEST).to(torch.int16)


def packed(numbers: Float[Tensor, "p *n"]) -> tuple[UInt8[Tensor, "p *n"], Float16[Tensor, "p 2"]]:
    """Round the numbers of each row to one of 256 levels between its smallest and its largest.

    >>> codes, scales = packed(torch.tensor([[0.0, 0.5, 1.0], [7.0, 7.0, 7.0]]))
    >>> unpacked(codes, scales).round(decimals=2)
    tensor([[0.0000, 0.5000, 1.0000],
            [7.0000, 7.0000, 7.0000]])
    """
    rows = numbers.flatten(1)
    low = rows.amin(1).to(torch.float16)
    step = ((rows.amax(1) - low) / LEVELS).clamp(min=SMALLEST_STEP).to(torch.float16)
    codes = ((rows - low[:, None]) / step[:, None].to(rows.dtype)).round().clamp(0, LEVELS)
    return codes.to(torch.uint8).reshape(numbers.shape), torch.stack([low, step], 1)


def unpacked(
    codes: UInt8[Tensor, "p *n"], scales: Float16[Tensor, "p 2"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "p *n"]:
    """Undo ``packed``, but for what the rounding took."""
    low, step = (scale.to(dtype)[:, None] for scale in scales.unbind(1))
    return (low + step * codes.flatten(1).to(dtype)).reshape(codes.shape)
