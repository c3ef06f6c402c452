"""A picture as a JPEG or WebP file, and back."""

from __future__ import annotations

import io
import warnings

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from ccmcl.errors import InputError, nearest

FORMATS = {"jpeg": "JPEG", "webp": "WEBP"}
MODES = {1: "L", 3: "RGB"}
LONGEST = {"jpeg": 65_500, "webp": 16_383}
"""The longest side of a picture that can be encoded, in pixels."""


def encode(picture: UInt8[Tensor, "c h w"], codec: str, quality: int) -> bytes:
    """Write a picture as a file of a format at a quality from 1 to 100.

    >>> len(encode(torch.zeros(3, 32, 32, dtype=torch.uint8), "webp", 50)) < 100
    True
    """
    if codec not in FORMATS:
        raise InputError(f"There is no format {codec!r} for pictures: {nearest(codec, FORMATS)}.")
    if len(picture) not in MODES:
        raise InputError(f"A picture of {len(picture)} channels cannot be stored as {codec}: give it 1 or 3.")
    channels_last = picture.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(channels_last[:, :, 0] if len(picture) == 1 else channels_last)
    file = io.BytesIO()
    best = {"method": 6} if codec == "webp" else {"optimize": True}
    image.save(file, FORMATS[codec], quality=quality, **best)
    return file.getvalue()


def decode(file: bytes, shape: tuple[int, int, int]) -> UInt8[Tensor, "c h w"]:
    """Read a picture that must be of this shape; the file is not trusted.

    >>> picture = torch.full((1, 8, 8), 200, dtype=torch.uint8)
    >>> int((decode(encode(picture, "jpeg", 90), (1, 8, 8)).int() - 200).abs().max()) < 5
    True
    """
    channels, height, width = shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Image.open(io.BytesIO(file), formats=list(FORMATS.values())) as image:
                if image.size != (width, height):
                    raise InputError(
                        f"A stored picture is of {image.size[1]}×{image.size[0]} pixels, not {height}×{width}."
                    )
                pixels = np.array(image.convert(MODES[channels]))
    except (OSError, ValueError, KeyError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise InputError("A stored picture is damaged.") from error
    return torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1).contiguous()
