"""The convolution differentiates as PyTorch's own does, to the second order and beyond."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccmcl.convolution import adjoint, convolve, correlate, patches

sizes = st.integers(1, 6)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(sizes, sizes, sizes, sizes, sizes)
def test_it_is_the_library_convolution_with_its_first_derivatives(
    count: int, incoming: int, outgoing: int, height: int, width: int
) -> None:
    x = rand(count, incoming, height, width).requires_grad_()
    kernel = rand(outgoing, incoming, 3, 3, seed=1).requires_grad_()
    y = rand(count, outgoing, height, width, seed=2)
    same(convolve(x, kernel), F.conv2d(x, kernel, padding=1))
    ours = torch.autograd.grad(convolve(x, kernel), (x, kernel), y)
    theirs = torch.autograd.grad(F.conv2d(x, kernel, padding=1), (x, kernel), y)
    for found, expected in zip(ours, theirs, strict=True):
        same(found, expected)
    same(correlate(x, y), theirs[1])
    same(convolve(y, adjoint(kernel)), theirs[0])
    same((patches(x) @ kernel.flatten(1).mT).mT.reshape(y.shape), F.conv2d(x, kernel, padding=1))


def test_derivatives_of_derivatives_are_right() -> None:
    x, kernel = rand(2, 3, 5, 4).requires_grad_(), rand(2, 3, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(convolve, (x, kernel))
    assert torch.autograd.gradgradcheck(correlate, (x, rand(2, 2, 5, 4, seed=2).requires_grad_()))

    def third(conv: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        def value(x: Tensor, kernel: Tensor) -> Tensor:
            return (conv(x, kernel) ** 3).sum()

        by_kernel = torch.func.grad(value, 1)
        by_both = torch.func.grad(lambda x, k: (by_kernel(x, k) ** 2).sum(), 0)
        result: Tensor = torch.func.grad(lambda x, k: (by_both(x, k) ** 2).sum(), 1)(x.detach(), kernel.detach())
        return result

    expected = third(lambda x, k: F.conv2d(x, k, padding=1))
    torch.testing.assert_close(third(convolve), expected, rtol=1e-9, atol=1e-6)
