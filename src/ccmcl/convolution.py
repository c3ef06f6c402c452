"""The 3×3 convolution and its gradient as bilinear operations that are each other's derivatives, to any order.

PyTorch differentiates a convolution twice by convolving with whole images as kernels, which is several times
slower than need be. Written as below, every derivative of every order is again an ordinary convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ccmcl.tiles import channels_last, fitting


def convolve(x: Float[Tensor, "n i h w"], kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "n o h w"]:
    """Convolve images with a kernel, at the edge with zeros.

    >>> convolve(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))[0, 0, 1]
    tensor([6., 9., 9., 6.])
    """
    result: Tensor = _Convolve.apply(x, kernel)  # type: ignore[no-untyped-call]
    return result


def convolve_once(x: Float[Tensor, "n i h w"], kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "n o h w"]:
    """The same where nobody differentiates twice: PyTorch's own way there is shorter, unless there are tiles."""
    if fitting(x, len(kernel)):
        return convolve(x, kernel)
    return F.conv2d(channels_last(x), channels_last(kernel), padding=1)


def correlate(x: Float[Tensor, "n i h w"], y: Float[Tensor, "n o h w"]) -> Float[Tensor, "o i 3 3"]:
    """Differentiate ⟨y, convolve(x, k)⟩ by the kernel k: how images and what was made of them go together."""
    result: Tensor = _Correlate.apply(x, y)  # type: ignore[no-untyped-call]
    return result


def adjoint(kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "i o 3 3"]:
    """Turn a kernel k round into k', so that ⟨y, x ∗ k⟩ = ⟨y ∗ k', x⟩ for all images."""
    return kernel.transpose(0, 1).flip(2, 3)


def patches(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n p k"]:
    """Lay out the 3×3 neighbourhood of every pixel as a row, in the order of a kernel's entries.

    >>> patches(torch.arange(16.0).view(1, 1, 4, 4))[0, 5]
    tensor([ 0.,  1.,  2.,  4.,  5.,  6.,  8.,  9., 10.])
    """
    count, channels, height, width = x.shape
    padded = F.pad(x, (1, 1, 1, 1))
    shifted = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return torch.stack(shifted, 2).permute(0, 3, 4, 1, 2).reshape(count, height * width, channels * 9)


class _Convolve(torch.autograd.Function):
    """y = x ∗ k."""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor) -> Tensor:
        if fitting(x, len(kernel)):
            made: Tensor = torch.ops.ccmcl.convolve_tiles(x, kernel)
            return made
        return F.conv2d(channels_last(x), channels_last(kernel), padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, kernel = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return convolve(y, adjoint(kernel)) if wanted[0] else None, correlate(x, y) if wanted[1] else None


class _Correlate(torch.autograd.Function):
    """The gradient of a convolution by its kernel."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        if fitting(x, y.shape[1]):
            made: Tensor = torch.ops.ccmcl.correlate_tiles(x, y)
            return made
        one, kernel = [1, 1], torch.empty(y.shape[1], x.shape[1], 3, 3, dtype=y.dtype, device=y.device)
        found = torch.ops.aten.convolution_backward(
            channels_last(y), channels_last(x), kernel, None, one, one, one, False, [0, 0], 1, [False, True, False]
        )
        result: Tensor = found[1]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, kernel: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return convolve(y, adjoint(kernel)) if wanted[0] else None, convolve(x, kernel) if wanted[1] else None
