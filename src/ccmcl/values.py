"""Pictures in eight bits, and as values in [0, 1] to compute with."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def unit(pixels: UInt8[Tensor, "..."], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
    """Bring eight-bit pictures to values in [0, 1].

    >>> unit(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return pixels.to(dtype) / 255


def eight_bit(images: Float[Tensor, "..."]) -> UInt8[Tensor, "..."]:
    """Round images to eight bits; what leaves [0, 1] is cut off.

    >>> eight_bit(torch.tensor([-1.0, 0.5, 1.0]))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def visible(images: Float[Tensor, "q c h w"]) -> UInt8[Tensor, "q c h w"]:
    """Round images to eight bits to be looked at: each is stretched first if it leaves [0, 1].

    >>> visible(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3)).flatten()
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return eight_bit(scaled(images))


def scaled(images: Float[Tensor, "q c h w"]) -> Float[Tensor, "q c h w"]:
    """Stretch each image to [0, 1] if it leaves that interval, as learned images may."""
    low = images.amin((1, 2, 3), keepdim=True)
    high = images.amax((1, 2, 3), keepdim=True)
    outside = (low < 0) | (high > 1)
    return ((images - low) / (high - low).clamp(min=1e-12)).where(outside, images)
