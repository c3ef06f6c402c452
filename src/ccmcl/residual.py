"""A deeper network, with shortcuts, that normalises over a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from ccmcl.convolution import convolve_once
from ccmcl.nets import EPS, PRECISIONS, SMALLEST, ConvNet, Params, block_names
from ccmcl.tiles import channels_last, traced

LEFT = 3
"""Pooling leaves at least so many pixels a side."""
WHOLE = 16
"""Pictures of more pixels a side are pooled before the first stage."""


@dataclass(frozen=True)
class ResNet(ConvNet):
    """A convolution, then stages of two more, the second beside a shortcut; then a mean over pixels and a linear layer.

    Each convolution 3×3 is followed by BatchNorm and ReLU, and each stage begins with average pooling 2×2 as long
    as that leaves 3×3 pixels (the first only if pictures have more than 16 a side). Where the network sees only
    some frequencies, and half the pixels a side have all of these, it computes on those. An image keeps its mean
    colour: nothing but the mean colour of all is taken away by the norm.

    Parameters without measurements, as they are in training, normalise by what is in the batch. ``measured`` adds to
    trained ones the mean and the variance of every channel; with these, an image is judged by itself.

    >>> net = ResNet(shape=(1, 8, 8), width=16)
    >>> params = net.init(torch.Generator().manual_seed(0), outputs=2)
    >>> images = torch.rand(5, 1, 8, 8)
    >>> params = net.measured(params, [images])
    >>> bool(torch.allclose(net(params, images)[:1], net(params, images[:1]), atol=1e-6))
    True
    """

    @property
    def mixes(self) -> bool:
        """In training, what is made of an image depends on the others in its batch."""
        return True

    @property
    def blocks(self) -> int:
        """The number of stages: smaller pictures have as many as larger ones."""
        return self.max_blocks

    @property
    def features(self) -> int:
        """The number of values that reach the linear layer."""
        return self.filters(self.blocks - 1)

    @cached_property
    def size(self) -> tuple[int, int]:
        """The pixels that the network computes on."""
        height, width = self.shape[1:] if self.frequencies is None else self.frequencies.inside
        half = -(-height // 2), -(-width // 2)
        smaller = self.frequencies is not None and min(half) >= SMALLEST and self.frequencies.fits(half)
        return half if smaller else (height, width)

    def pooled(self, stage: int, size: tuple[int, int]) -> bool:
        """Say whether a stage that is given images of this size makes them smaller."""
        return min(size) // 2 >= LEFT and (stage > 0 or min(size) > WHOLE)

    def convolutions(self) -> list[tuple[int, int, int]]:
        """For each convolution, how many channels it takes, how many it makes, and on how many pixels."""
        size, channels = self.size, max(1, self.width // 2)
        found = [(self.shape[0], channels, size[0] * size[1])]
        for stage in range(self.blocks):
            if self.pooled(stage, size):
                size = size[0] // 2, size[1] // 2
            filters, pixels = self.filters(stage), size[0] * size[1]
            found += [(channels, filters, pixels), (filters, filters, pixels)]
            channels = filters
        return found

    def kept(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of everything that a trained network consists of, by name."""
        shapes = self.shapes(outputs)
        for layer, (_, filters, _) in enumerate(self.convolutions()):
            shapes |= dict.fromkeys(measurements(layer), (filters,))
        return shapes

    def init(self, generator: Generator, outputs: int, dtype: torch.dtype = torch.float32) -> Params:
        """Draw new parameters: kernels even within one over the root of what they sum up, the others as they were."""
        params = super().init(generator, outputs, dtype)
        for layer, (channels, filters, _) in enumerate(self.convolutions()):
            shape, limit = (filters, channels, 3, 3), (9 * channels) ** -0.5
            params[block_names(layer)[0]] = limit * (2 * torch.rand(shape, generator=generator, dtype=dtype) - 1)
        return params

    def grow(self, params: Params, outputs: int, generator: Generator) -> Params:
        """Add head outputs for classes not seen before, and leave out what was measured: the network goes on."""
        return super().grow({name: params[name] for name in self.shapes(0)}, outputs, generator)

    def measured(self, params: Params, batches: Iterable[Float[Tensor, "n c h w"]]) -> Params:
        """Add the mean and the variance of every channel, over batches of about one size, to trained parameters."""
        means: dict[str, list[Tensor]] = {}
        with torch.no_grad():
            for images in batches:
                found: Params = {}
                for _ in self.passed(params, images, found):
                    pass
                for name, values in found.items():
                    means.setdefault(name, []).append(values)
        return params | {name: torch.stack(values).mean(0) for name, values in means.items()}

    def embed(self, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        """Compute what reaches the linear layer."""
        *_, last = self.passed(params, images)
        return last.mean((2, 3))

    def passed(
        self, params: Params, images: Float[Tensor, "n c h w"], found: Params | None = None
    ) -> Iterator[Float[Tensor, "n f i j"]]:
        """Compute what comes out of each stage; the mean and the variance of every channel on the way are ``found``."""
        x = self._seen(images)
        x = self._layer(params, 0, x, found)
        for stage in range(self.blocks):
            if self.pooled(stage, (x.shape[2], x.shape[3])):
                x = F.avg_pool2d(x, 2)
            x = self._layer(params, 2 * stage + 1, x, found)
            x = x + self._layer(params, 2 * stage + 2, x, found)
            yield x

    def _seen(self, images: Tensor) -> Float[Tensor, "n c h w"]:
        """Take from images what the network sees of them."""
        x = images - 0.5
        return x if self.frequencies is None else self.frequencies.resized(x, self.size)

    def _layer(self, params: Params, layer: int, x: Tensor, found: Params | None) -> Float[Tensor, "n c h w"]:
        """Convolve, normalise and cut off what is negative."""
        kernel, scale, shift = (params[name] for name in block_names(layer))
        half = PRECISIONS[self.precision]
        y = convolve_once(x, kernel) if half is None else convolve_once(x.to(half), kernel.to(half)).to(x.dtype)
        y = channels_last(y)
        names = measurements(layer)
        if found is None and names[0] in params:
            mean, variance = (params[name] for name in names)
        elif found is None and not traced():
            return F.relu(F.batch_norm(y, None, None, scale, shift, training=True, eps=EPS))
        else:
            mean = y.mean((2, 3)).mean(0)
            variance = (y - of_each(mean, y)).square().mean((2, 3)).mean(0)
            if found is not None:
                found |= dict(zip(names, (mean, variance), strict=True))
        if not traced():
            return F.relu(F.batch_norm(y, mean, variance, scale, shift, eps=EPS))
        factor = torch.rsqrt(variance + EPS) * scale
        return F.relu(y * of_each(factor, y) + of_each(shift - mean * factor, y))


def of_each(values: Float[Tensor, "c"], images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c 1 1"]:
    """Lay a number of each channel out for every image.

    What goes back to it is then summed over each image first. Sums over all pixels at once are rounded many times more
    in compiled code, which adds them up one by one.
    """
    return values.expand(len(images), -1)[:, :, None, None]


def measurements(layer: int) -> tuple[str, str]:
    """Name what is measured of a layer: mean and variance."""
    return f"norm{layer}.mean", f"norm{layer}.variance"
