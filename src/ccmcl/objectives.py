"""How far a memory is from the real data: by the gradients on both, or by the features of both."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ccmcl.nets import Params


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


def feature_distance(real: Float[Tensor, "f"], memory: Float[Tensor, "f"]) -> Float[Tensor, ""]:
    """Measure how far apart the mean features of real and of remembered images are: the squared distance.

    >>> feature_distance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(4.)
    """
    return (real - memory).square().sum()


def row_distance(a: Tensor, b: Tensor) -> Float[Tensor, ""]:
    """Compare two gradients of one layer, output node by output node.

    A node whose gradient vanishes on either side (a dead filter) has no direction: it counts as unrelated,
    distance 1, and pulls at nothing, where the bare formula would divide zero by zero.
    """
    a, b = a.flatten(1), b.flatten(1)
    norms = a.square().sum(1) * b.square().sum(1)
    alive = norms > 0
    cosine = (a * b).sum(1) * torch.rsqrt(torch.where(alive, norms, 1.0))
    return (1 - torch.where(alive, cosine, 0.0)).sum()
