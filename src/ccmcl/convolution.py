"""The 3×3 convolution as three bilinear operations that are each other's derivatives, to any order.

PyTorch differentiates a convolution twice by convolving with whole images as kernels, which is several times
slower than need be. Written as below, every derivative of every order is again an ordinary convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def convolve(x: Float[Tensor, "n i h w"], kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "n o h w"]:
    """Convolve images with a kernel, at the edge with zeros.

    >>> convolve(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))[0, 0, 1]
    tensor([6., 9., 9., 6.])
    """
    result: Tensor = _Convolve.apply(x, kernel)  # type: ignore[no-untyped-call]
    return result


def patches(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n p k"]:
    """Lay out the 3×3 neighbourhood of every pixel as a row, in the order of a kernel's entries.

    >>> patches(torch.arange(16.0).view(1, 1, 4, 4))[0, 5]
    tensor([ 0.,  1.,  2.,  4.,  5.,  6.,  8.,  9., 10.])
    """
    count, channels, height, width = x.shape
    padded = F.pad(x, (1, 1, 1, 1))
    shifted = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return torch.stack(shifted, 2).permute(0, 3, 4, 1, 2).reshape(count, height * width, channels * 9)


def channels_last(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Lay images out with the channels of a pixel side by side in memory."""
    return x.contiguous(memory_format=torch.channels_last)


class _Convolve(torch.autograd.Function):
    """y = x ∗ k."""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor) -> Tensor:
        return F.conv2d(x, kernel, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, kernel = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        first = _Spread.apply(y, kernel) if wanted[0] else None  # type: ignore[no-untyped-call]
        return first, _Correlate.apply(x, y) if wanted[1] else None  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """The gradient by the images: what each pixel of y owes to x."""

    @staticmethod
    def forward(y: Tensor, kernel: Tensor) -> Tensor:
        shape = (len(y), kernel.shape[1], *y.shape[2:])
        return _backward(y, channels_last(y.new_empty(shape)), kernel, images=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        y, kernel = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        first = _Convolve.apply(x, kernel) if wanted[0] else None  # type: ignore[no-untyped-call]
        return first, _Correlate.apply(x, y) if wanted[1] else None  # type: ignore[no-untyped-call]


class _Correlate(torch.autograd.Function):
    """The gradient by the kernel: how x and y go together."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return _backward(y, x, y.new_empty(y.shape[1], x.shape[1], 3, 3), images=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, kernel: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        first = _Spread.apply(y, kernel) if wanted[0] else None  # type: ignore[no-untyped-call]
        return first, _Convolve.apply(x, kernel) if wanted[1] else None  # type: ignore[no-untyped-call]


def _backward(y: Tensor, x: Tensor, kernel: Tensor, images: bool) -> Tensor:
    """One half of the library's own first derivative; the tensor that is asked for gives no more than its shape."""
    one = [1, 1]
    mask = [images, not images, False]
    found = torch.ops.aten.convolution_backward(y, x, kernel, None, one, one, one, False, [0, 0], 1, mask)
    result: Tensor = found[0 if images else 1]
    return result
