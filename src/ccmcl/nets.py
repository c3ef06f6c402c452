"""The paper's ConvNet as a pure function of its parameters, with a head that grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from ccmcl.convolution import convolve, patches
from ccmcl.errors import InputError, nearest
from ccmcl.frequencies import Frequencies
from ccmcl.tiles import channels_last

Params = dict[str, Tensor]
T = TypeVar("T")
SMALLEST = 4
MOST_PARAMETERS = 1 << 32
EPS = 1e-5
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
FEW_CHANNELS = 3
"""Up to so many input channels, a block normalises by the statistics of its patches."""


@dataclass(frozen=True)
class ConvNet:
    """Blocks of [convolution 3×3 → InstanceNorm → ReLU → average pooling 2×2], then one linear layer.

    The convolutions have no bias: the norm that follows would take it away again, and its gradient is zero.
    Parameters live in a plain dictionary and every method is a pure function of them, so that a network can
    be differentiated with ``torch.func``, saved as tensors, or thrown away. A block needs at least 4×4
    pixels to normalise over; smaller pictures get fewer blocks than asked for. With ``precision`` bfloat16 the
    convolutions between the blocks are computed in 16 bits, everything else as ever.

    >>> net = ConvNet(shape=(1, 8, 8), width=16)
    >>> params = net.init(torch.Generator().manual_seed(0), outputs=2)
    >>> net(params, torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 2])
    """

    shape: tuple[int, int, int]
    width: int = 128
    max_blocks: int = 3
    precision: str = "float32"
    centred: bool = False
    """take away each image's mean colour first, so that the padding of its edge is of that colour"""
    frequencies: Frequencies | None = None
    """see these of an image, and nothing else of it"""
    widening: int = 1
    """each block has so many times the filters of the one before"""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"There is no precision {self.precision!r}: {nearest(self.precision, PRECISIONS)}.")
        if min(self.shape[1:]) < SMALLEST:
            raise InputError(
                f"Pictures of {self.shape[1]}×{self.shape[2]} pixels are too small for the network: "
                f"it needs at least {SMALLEST}×{SMALLEST}. Enlarge them first."
            )
        if min(self.width, self.max_blocks, self.widening) < 1:
            raise InputError(
                "A network needs width, blocks and widening of at least 1, "
                f"not {self.width}, {self.max_blocks}, {self.widening}."
            )

        if sum(math.prod(shape) for shape in self.shapes(1).values()) > MOST_PARAMETERS:
            raise InputError(f"A network of width {self.width} does not fit into memory: give a smaller width.")

    @property
    def blocks(self) -> int:
        """The number of blocks that the picture has room for."""
        fitting = 0
        side = min(self.shape[1:])
        while side >= SMALLEST and fitting < self.max_blocks:
            side, fitting = side // 2, fitting + 1
        return fitting

    @property
    def features(self) -> int:
        """The number of values that reach the linear layer."""
        return self.filters(self.blocks - 1) * (self.shape[1] >> self.blocks) * (self.shape[2] >> self.blocks)

    def filters(self, block: int) -> int:
        """The number of filters of a block's convolution."""
        return self.width * int(self.widening**block)

    @property
    def mixes(self) -> bool:
        """In training, what is made of an image depends on the others in its batch."""
        return False

    def convolutions(self) -> list[tuple[int, int, int]]:
        """For each convolution, how many channels it takes, how many it makes, and on how many pixels."""
        channels, height, width = self.shape
        found = []
        for block in range(self.blocks):
            found.append((channels, self.filters(block), height * width))
            channels, height, width = self.filters(block), height // 2, width // 2
        return found

    def shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for block, (channels, filters, _) in enumerate(self.convolutions()):
            kernel, scale, shift = block_names(block)
            shapes |= {kernel: (filters, channels, 3, 3), scale: (filters,), shift: (filters,)}
        return shapes | {"head.weight": (outputs, self.features), "head.bias": (outputs,)}

    def kept(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of everything that a trained network consists of, by name."""
        return self.shapes(outputs)

    def init(self, generator: Generator, outputs: int, dtype: torch.dtype = torch.float32) -> Params:
        """Draw new parameters: Glorot-uniform weights, biases 0, norms 1 and 0 (as the authors' program has it)."""
        params: Params = {}
        for name, shape in self.shapes(outputs).items():
            if name.endswith(".weight"):
                params[name] = _glorot(shape, generator, dtype)
            else:
                params[name] = torch.full(shape, 1.0 if name.endswith(".scale") else 0.0, dtype=dtype)
        return params

    def grow(self, params: Params, outputs: int, generator: Generator) -> Params:
        """Add head outputs for classes not seen before; those already there keep their weights."""
        weight, bias = params["head.weight"], params["head.bias"]
        added = outputs - len(weight)
        if added <= 0:
            return params
        limit = (6 / (outputs + self.features)) ** 0.5
        rows = (2 * torch.rand(added, self.features, generator=generator, dtype=weight.dtype) - 1) * limit
        return params | {
            "head.weight": torch.cat([weight, rows]),
            "head.bias": torch.cat([bias, bias.new_zeros(added)]),
        }

    def embed(self, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        """Compute what reaches the linear layer. Channels last: pooling is many times faster in that layout."""
        *_, last = self.passed(params, images)
        return last.flatten(1)

    def levels(self, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n l"]:
        """Compute the mean of each channel after every block, those of the first block first."""
        return torch.cat([x.mean((2, 3)) for x in self.passed(params, images)], 1)

    def passed(self, params: Params, images: Float[Tensor, "n c h w"]) -> Iterator[Float[Tensor, "n f i j"]]:
        """Compute what comes out of each block."""
        x = images if self.frequencies is None else self.frequencies.through(images)
        x = x - x.mean((2, 3), keepdim=True) if self.centred else x
        for block in range(self.blocks):
            kernel, scale, shift = (params[name] for name in block_names(block))
            x = F.avg_pool2d(F.relu(normed_convolution(x, kernel, scale, shift, self.precision)), 2)
            yield x

    def __call__(self, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        """Compute the logits, corrected where ``params`` hold a correction (BiC's scale and shift per output).

        Of several networks ``together``, it is the logarithm of the mean of their probabilities.
        """
        members = members_of(params)
        if len(members) > 1:
            said = torch.stack([self(one, images) for one in members]).log_softmax(2)
            logits = said.logsumexp(0) - math.log(len(members))
        else:
            logits = F.linear(self.embed(params, images), params["head.weight"], params["head.bias"])
        if "correction" in params:
            scale, shift = params["correction"]
            logits = logits * scale + shift
        return logits


def block_names(block: int) -> tuple[str, str, str]:
    """Name the parameters of a block: kernel, scale and shift."""
    return f"conv{block}.weight", f"norm{block}.scale", f"norm{block}.shift"


def normed_convolution(
    x: Float[Tensor, "n c h w"],
    kernel: Float[Tensor, "o c 3 3"],
    scale: Float[Tensor, "o"],
    shift: Float[Tensor, "o"],
    precision: str = "float32",
) -> Float[Tensor, "n o h w"]:
    """Convolve, then normalise every channel of every image by itself.

    Of few input channels, mean and variance of what a kernel w gives over an image follow from its patches alone:
    the variance is wᵀCw, C being the covariance of the patches. So the norm goes into the kernel, and the largest
    tensor of the whole network is written once and never read for its statistics.
    """
    if x.shape[1] > FEW_CHANNELS:
        half = PRECISIONS[precision]
        y = convolve(x, kernel) if half is None else convolve(x.to(half), kernel.to(half)).to(x.dtype)
        return instance_norm(channels_last(y), scale, shift)
    count, _, height, width = x.shape
    rows, flat = patches(x), kernel.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    covariance = rows.mT @ rows / (height * width)
    variance = F.relu((flat @ covariance * flat).sum(-1))  # rounding must not make it negative
    inward = flat * (torch.rsqrt(variance + EPS) * scale)[:, :, None]
    # The shift rides along as one more entry of the patch, which is always 1.
    rows = torch.cat([rows, rows.new_ones(count, height * width, 1)], 2)
    inward = torch.cat([inward, shift[:, None].expand(count, -1, 1)], 2)
    return (rows @ inward.mT).view(count, height, width, len(kernel)).permute(0, 3, 1, 2)


def instance_norm(
    x: Float[Tensor, "n c h w"], scale: Float[Tensor, "c"], shift: Float[Tensor, "c"]
) -> Float[Tensor, "n c h w"]:
    """Normalise every channel of every image by itself. Written out, so that it differentiates twice and compiles.

    >>> x = instance_norm(torch.rand(2, 3, 8, 8), torch.ones(3), torch.zeros(3))
    >>> bool(x.mean((2, 3)).abs().max() < 1e-5)
    True
    """
    centred = x - x.mean((2, 3), keepdim=True)
    variance = centred.square().mean((2, 3), keepdim=True)
    return centred * (torch.rsqrt(variance + EPS) * scale[:, None, None]) + shift[:, None, None]


def together(members: Sequence[dict[str, T]]) -> dict[str, T]:
    """Put the parameters of some networks into one dictionary, those of the first under their own names.

    >>> sorted(together([{"head.bias": torch.zeros(2)}] * 3))
    ['1.head.bias', '2.head.bias', 'head.bias']
    """
    first, *others = members
    return first | {f"{number}.{name}": one[name] for number, one in enumerate(others, 1) for name in one}


def members_of(params: Params) -> list[Params]:
    """Undo ``together``; a correction of what they say together is left out."""
    found: dict[int, Params] = {0: {}}
    for name, tensor in params.items():
        number, _, rest = name.partition(".")
        if number.isdecimal():
            found.setdefault(int(number), {})[rest] = tensor
        elif name != "correction":
            found[0][name] = tensor
    return [found[number] for number in sorted(found)]


def outputs_of(params: Params) -> int:
    """Return how many classes the head tells apart."""
    return len(params["head.bias"])


def _glorot(shape: tuple[int, ...], generator: Generator, dtype: torch.dtype) -> Tensor:
    receptive = 9 if len(shape) == 4 else 1
    limit: float = (6 / ((shape[0] + shape[1]) * receptive)) ** 0.5
    return limit * (2 * torch.rand(shape, generator=generator, dtype=dtype) - 1)
