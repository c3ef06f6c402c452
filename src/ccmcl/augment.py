"""Pictures a little changed, as a differentiable function of the pictures and of a row of numbers for each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CHANGES = ("colour", "crop", "cutout", "scale", "rotate", "flip")
"""What may happen to a picture, one at a time. The last is for pictures that mean the same in a mirror."""
NUMBERS = 12
"""An affine map by rows (6), brightness, saturation, contrast, and the middle and half the side of what is cut out."""
STILL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
SHIFT, CUT, STRETCH, DEGREES = 1 / 8, 1 / 2, 1.2, 15.0
"""A picture is shifted by up to an eighth, loses a square of half its side, is stretched and turned."""
TOGETHER = 0.5
"""The share of pictures that each change happens to, where several do."""
MIXED = 0.5
"""The share of batches that are mixed."""


def changes(chance: Float[Tensor, "n 4"], size: tuple[int, int], mirrored: bool) -> Float[Tensor, "n 12"]:
    """Choose one change for each of n pictures of so many rows and columns, from numbers that are even over [0, 1).

    >>> changes(torch.rand(5, 4), size=(32, 32), mirrored=True).shape
    torch.Size([5, 12])
    """
    names = kinds(mirrored)
    kind = (chance[:, 0] * len(names)).floor()
    a, b, c = chance[:, 1], chance[:, 2], chance[:, 3]
    table = laid_out({}, a)
    for number, name in enumerate(names):
        table = torch.where((kind == number)[:, None], change(name, a, b, c, size), table)
    return table


def several(chance: Float[Tensor, "n k 4"], size: tuple[int, int], mirrored: bool) -> Float[Tensor, "n 12"]:
    """Choose changes that come together, each of them half of the time, from numbers that are even over [0, 1).

    >>> several(torch.rand(5, len(kinds(True)), 4), size=(32, 32), mirrored=True).shape
    torch.Size([5, 12])
    """
    still = table = laid_out({}, chance[:, 0, 0])
    for name, (whether, a, b, c) in zip(kinds(mirrored), chance.permute(1, 2, 0).unbind(), strict=True):
        happens = whether < TOGETHER if name != "flip" else whether >= 0  # half of the flips are none
        one = torch.where(happens[:, None], change(name, a, b, c, size), still)
        matrix = affine(table) @ affine(one)  # from places in the last picture to places in the first
        table = torch.cat([matrix[:, :2].flatten(1), (table + one - still)[:, 6:]], 1)
    return table


def kinds(mirrored: bool) -> tuple[str, ...]:
    """Name what may happen to a picture.

    >>> kinds(mirrored=False)
    ('colour', 'crop', 'cutout', 'scale', 'rotate')
    """
    return CHANGES if mirrored else CHANGES[:-1]


def change(name: str, a: Tensor, b: Tensor, c: Tensor, size: tuple[int, int]) -> Float[Tensor, "n 12"]:
    """Lay out one kind of change from three numbers for each picture that are even over [0, 1)."""
    height, width = size
    shift_x, shift_y = (2 * whole_shift(number, side) / side for number, side in ((a, width), (b, height)))
    angle = (2 * a - 1) * math.radians(DEGREES)
    wide, high = (STRETCH ** (2 * number - 1) for number in (a, b))
    columns = {
        "colour": {6: (a - 0.5) / 4, 7: 2 * b, 8: c + 0.5},
        "crop": {2: shift_x, 5: shift_y},
        "cutout": {9: 2 * a - 1, 10: 2 * b - 1, 11: torch.full_like(a, CUT)},
        "scale": {0: wide, 4: high},
        "rotate": {0: angle.cos(), 1: -angle.sin(), 3: angle.sin(), 4: angle.cos()},
        "flip": {0: torch.where(a < 0.5, -1.0, 1.0).to(a)},
    }
    return laid_out(columns[name], a)


def laid_out(columns: Mapping[int, Tensor], like: Float[Tensor, "n"]) -> Float[Tensor, "n 12"]:
    """Fill up some columns with those that change nothing."""
    return torch.stack([columns.get(place, torch.full_like(like, value)) for place, value in enumerate(STILL)], 1)


def affine(table: Float[Tensor, "n 12"]) -> Float[Tensor, "n 3 3"]:
    """Take the affine maps out of rows."""
    last = torch.zeros_like(table[:, :3])
    last[:, 2] = 1
    return torch.stack([table[:, :3], table[:, 3:6], last], 1)


def whole_shift(chance: Tensor, side: int) -> Tensor:
    """Choose by how many pixels to shift, from numbers that are even over [0, 1)."""
    reach = max(1, round(SHIFT * side))
    return (chance * (2 * reach + 1)).floor() - reach


def changed(images: Float[Tensor, "n c h w"], table: Float[Tensor, "n 12"]) -> Float[Tensor, "n c h w"]:
    """Change each picture as its row says. Its edge goes on outside; what is cut out is of its mean colour.

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
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    out_x = (places(width, x) - table[:, 9:10]).abs() < table[:, 11:12]
    out_y = (places(height, x) - table[:, 10:11]).abs() < table[:, 11:12]
    return torch.where(out_y[:, None, :, None] & out_x[:, None, None, :], x.mean((2, 3), keepdim=True), x)


def zoomed(images: Float[Tensor, "n c h w"], times: float) -> Float[Tensor, "n c h w"]:
    """Look at images so many times as large. Their edge goes on outside.

    >>> zoomed(torch.tensor([0.0, 0, 9, 9, 0, 0]).expand(1, 1, 6, 6), 2)[0, 0, 0]
    tensor([2.2500, 6.7500, 9.0000, 9.0000, 6.7500, 2.2500])
    """
    if times == 1:
        return images
    scale = images.new_full((len(images),), 1 / times)
    return changed(images, laid_out({0: scale, 4: scale}, scale))


def mixed_in(
    images: Float[Tensor, "n c h w"], targets: Float[Tensor, "n k"], chance: Float[Tensor, "4"]
) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n k"]]:
    """Put a rectangle of another picture into each, and share the targets by area (CutMix); half of the times.

    The others are those half a batch away. The side of the rectangle is the root of an even number, so that its area is
    even over [0, 1] as long as it lies inside.

    >>> images, targets = mixed_in(torch.rand(4, 1, 8, 8), torch.eye(4), torch.rand(4))
    >>> targets.sum(1)
    tensor([1., 1., 1., 1.])
    """
    height, width = images.shape[-2:]
    at_x, at_y, share, whether = chance.to(images.dtype).unbind()
    half = share.sqrt() * (whether < MIXED)
    in_x = (places(width, images) - (2 * at_x - 1)).abs() < half
    in_y = (places(height, images) - (2 * at_y - 1)).abs() < half
    inside = (in_y[:, None] & in_x[None, :]).to(images.dtype)
    away = max(1, len(images) // 2)
    return (
        images + inside * (images.roll(away, 0) - images),
        targets + inside.mean() * (targets.roll(away, 0) - targets),
    )


def places(count: int, like: Tensor) -> Float[Tensor, "n"]:
    """Place the middles of pixels between -1 and 1.

    >>> places(2, torch.zeros(1))
    tensor([-0.5000,  0.5000])
    """
    return (torch.arange(count, device=like.device, dtype=like.dtype) * 2 + 1) / count - 1
