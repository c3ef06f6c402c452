"""How far a memory is from the real data: by the gradients on both, or by the features of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ccmcl.nets import Params

WIDTHS = (0.25, 0.5, 1.0, 2.0)
SCALE = 100.0
"""Brings the discrepancy to the size of the other distances, so that the same weight of cross-entropy goes with it."""

VANISHED = 1e-24
"""The derivative of one over the root of less than this squared length is more than float32 can hold."""

DEAD, TINY = 1e-2, 1e-6
"""Features that vary less than this share of the others, or not at all, are not blown up to their size."""


def matched(params: Params) -> list[str]:
    """Name the layers that are compared: those with a weight matrix or kernel. Biases and norms are left out."""
    return [name for name, tensor in params.items() if tensor.ndim >= 2 and name != "correction"]


def gradient_distance(real: Params, memory: Params) -> Float[Tensor, ""]:
    """Sum D(A, B) = Σ_i (1 − A_i·B_i / ‖A_i‖‖B_i‖) over the layers, i running over the output nodes (Eq. 4).

    >>> a = {"head.weight": torch.tensor([[1.0, 0.0], [1.0, 1.0]])}
    >>> b = {"head.weight": torch.tensor([[0.0, 2.0], [3.0, 3.0]])}
    >>> round(gradient_distance(a, b).item(), 6)
    1.0
    """
    return torch.stack([row_distance(real[name], memory[name]) for name in memory]).sum()


def mean_distance(real: Float[Tensor, "n f"], memory: Float[Tensor, "m f"]) -> Float[Tensor, ""]:
    """Measure how far apart the mean features of real and of remembered images are: the squared distance.

    >>> mean_distance(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0], [1.0, 5.0]]))
    tensor(4.)
    """
    return (real.mean(0) - memory.mean(0)).square().sum()


def kernel_distance(real: Float[Tensor, "n f"], memory: Float[Tensor, "m f"]) -> Float[Tensor, ""]:
    """Measure how far apart features lie as clouds, not only their middles: the maximum mean discrepancy.

    Features are compared by bells of several widths, in units of the mean squared distance between both clouds.

    >>> cloud = torch.tensor([[0.0, 1.0], [1.0, 0.0], [4.0, 4.0]])
    >>> kernel_distance(cloud, cloud).item(), round(kernel_distance(cloud, cloud + 9).item())
    (0.0, 114)
    """
    apart = squared_distances(real, memory)
    unit = apart.detach().mean() + TINY

    def alike(distances: Tensor) -> Tensor:
        return torch.stack([torch.exp(-distances / (width * unit)) for width in WIDTHS]).mean()

    inside = alike(squared_distances(real, real)) + alike(squared_distances(memory, memory))
    return SCALE * (inside - 2 * alike(apart))


def level_distance(real: Float[Tensor, "n f"], memory: Float[Tensor, "m f"], sizes: Sequence[int]) -> Float[Tensor, ""]:
    """Add up the distances of clouds over levels of so many features; each is measured by how much it varies.

    >>> cloud = torch.tensor([[0.0, 1.0, 7.0], [1.0, 0.0, 9.0], [4.0, 4.0, 2.0]])
    >>> level_distance(cloud, cloud, [1, 2]).item()
    0.0
    """
    total = real.new_zeros(())
    for ours, theirs in zip(*(torch.split(x, list(sizes), dim=1) for x in (real, memory)), strict=True):
        mean, deviation = ours.mean(0), ours.std(0, correction=0)
        unit = deviation + DEAD * deviation.mean() + TINY  # what hardly ever varies tells little
        total = total + kernel_distance((ours - mean) / unit, (theirs - mean) / unit)
    return total


def squared_distances(a: Float[Tensor, "n f"], b: Float[Tensor, "m f"]) -> Float[Tensor, "n m"]:
    """Measure the squared distance of each row from each."""
    return F.relu(a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.mT)  # rounding must not make it negative


Compared = Callable[[Tensor, Tensor, Sequence[int]], Tensor]
DISTANCES: dict[str, Compared] = {
    "mean": lambda real, memory, _: mean_distance(real, memory),
    "kernel": lambda real, memory, _: kernel_distance(real, memory),
    "levels": level_distance,
}


def row_distance(a: Tensor, b: Tensor) -> Float[Tensor, ""]:
    """Compare two gradients of one layer, output node by output node.

    A node whose gradient vanishes on either side (a dead filter) has no direction: it counts as unrelated,
    distance 1, and pulls at nothing, where the bare formula would divide zero by zero.
    """
    a, b = a.flatten(1), b.flatten(1)
    squares = a.square().sum(1), b.square().sum(1)
    alive = torch.minimum(*squares) > VANISHED
    one, other = (torch.rsqrt(torch.where(alive, square, 1.0)) for square in squares)
    cosine = (a * b).sum(1) * one * other
    return (1 - torch.where(alive, cosine, 0.0)).sum()
