"""Pictures a little changed, as a differentiable function of the pictures and of a row of numbers for each."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

CHANGES = ("colour", "crop", "cutout", "scale", "rotate", "flip")
"""What may happen to a picture, one at a time. The last is for pictures that mean the same in a mirror."""
NUMBERS = 12
"""An affine map by rows (6), brightness, saturation, contrast, and the middle and half the side of what is cut out."""
STILL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
SHIFT, CUT, STRETCH, DEGREES = 1 / 8, 1 / 4, 1.2, 15.0
"""A picture is shifted by up to an eighth, loses a square of half its side, is stretched and turned."""


def draw_changes(count: int, side: int, mirrored: bool, generator: Generator) -> Float[Tensor, "n 12"]:
    """Draw one change for each of ``count`` pictures of ``side`` pixels.

    >>> draw_changes(5, 32, True, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 12])
    """
    kinds = len(CHANGES) if mirrored else len(CHANGES) - 1
    kind = torch.randint(kinds, (count,), generator=generator)
    a, b, c = torch.rand(3, count, generator=generator)
    still = torch.tensor(STILL).expand(count, NUMBERS)
    reach = max(1, round(SHIFT * side))
    shift_x, shift_y = ((number * (2 * reach + 1)).floor() - reach for number in (a, b))
    angle = (2 * a - 1) * math.radians(DEGREES)
    wide, high = (STRETCH ** (2 * number - 1) for number in (a, b))
    one, zero = torch.ones(count), torch.zeros(count)
    rows = {
        "colour": {6: a - 0.5, 7: 2 * b, 8: c + 0.5},
        "crop": {2: 2 * shift_x / side, 5: 2 * shift_y / side},
        "cutout": {9: 2 * a - 1, 10: 2 * b - 1, 11: 2 * CUT * one},
        "scale": {0: wide, 4: high},
        "rotate": {0: angle.cos(), 1: -angle.sin(), 3: angle.sin(), 4: angle.cos()},
        "flip": {0: torch.where(a < 0.5, -one, one), 1: zero},
    }
    table = still.clone()
    for number, name in enumerate(CHANGES[:kinds]):
        for column, values in rows[name].items():
            table[:, column] = torch.where(kind == number, values, table[:, column])
    return table


def changed(images: Float[Tensor, "n c h w"], table: Float[Tensor, "n 12"]) -> Float[Tensor, "n c h w"]:
    """Change each picture as its row says. What comes in from outside, and what is cut out, is 0 (a middle grey).

    >>> images = torch.rand(2, 3, 8, 8)
    >>> bool((changed(images, torch.tensor(STILL).expand(2, 12)) - images).abs().max() < 1e-5)
    True
    """
    count, _, height, width = images.shape
    table = table.to(images.dtype)
    brightness, saturation, contrast = (table[:, column, None, None, None] for column in (6, 7, 8))
    x = images + brightness
    grey = x.mean(1, keepdim=True)
    x = grey + saturation * (x - grey)
    middle = x.mean((1, 2, 3), keepdim=True)
    x = middle + contrast * (x - middle)
    grid = F.affine_grid(table[:, :6].reshape(count, 2, 3), list(images.shape), align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    across = (torch.arange(width, device=x.device, dtype=x.dtype) * 2 + 1) / width - 1
    down = (torch.arange(height, device=x.device, dtype=x.dtype) * 2 + 1) / height - 1
    out_x = (across - table[:, 9:10]).abs() < table[:, 11:12]
    out_y = (down - table[:, 10:11]).abs() < table[:, 11:12]
    return x * ~(out_y[:, None, :, None] & out_x[:, None, None, :])


def draw_mixes(count: int, generator: Generator) -> Float[Tensor, "n 4"]:
    """Draw for each picture a rectangle of which part it takes from its partner: middle and half the sides (CutMix).

    The share that is kept is even over [0, 1]; half of all batches are left alone.

    >>> draw_mixes(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 4])
    """
    at_x, at_y, share = torch.rand(3, generator=generator).tolist()
    mixes = bool(torch.rand((), generator=generator) < 0.5)
    half = math.sqrt(1 - share) if mixes else 0.0
    return torch.tensor([2 * at_x - 1, 2 * at_y - 1, half, half]).expand(count, 4)


def mixed_in(
    images: Float[Tensor, "n c h w"], targets: Float[Tensor, "n k"], mixes: Float[Tensor, "n 4"]
) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n k"]]:
    """Put a rectangle of each picture's neighbour into it, and share the targets by area."""
    height, width = images.shape[-2:]
    mixes = mixes.to(images.dtype)
    across = (torch.arange(width, device=images.device, dtype=images.dtype) * 2 + 1) / width - 1
    down = (torch.arange(height, device=images.device, dtype=images.dtype) * 2 + 1) / height - 1
    in_x = (across - mixes[:, 0:1]).abs() < mixes[:, 2:3]
    in_y = (down - mixes[:, 1:2]).abs() < mixes[:, 3:4]
    inside = (in_y[:, None, :, None] & in_x[:, None, None, :]).to(images.dtype)
    share = inside.mean((1, 2, 3))[:, None]
    return (
        images + inside * (images.roll(1, 0) - images),
        targets + share * (targets.roll(1, 0) - targets),
    )
