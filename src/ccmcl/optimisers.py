"""Update rules as pure functions over named tensors, so that their state is data."""

from __future__ import annotations

import torch
from torch import Tensor

from ccmcl.catalogue import OPTIMISERS
from ccmcl.errors import InputError, nearest

Tensors = dict[str, Tensor]


def start(name: str, tensors: Tensors) -> Tensors:
    """Make the state of an optimiser before its first update."""
    if name not in OPTIMISERS:
        raise InputError(f"There is no optimiser {name!r}: {nearest(name, OPTIMISERS)}.")
    kinds = {"sgd": (), "rmsprop": ("square",), "adam": ("square", "mean")}[name]
    state = {f"{kind}.{key}": torch.zeros_like(tensor) for kind in kinds for key, tensor in tensors.items()}
    if name == "adam":
        device = next(iter(tensors.values())).device
        state["count"] = torch.zeros((), dtype=torch.int64, device=device)
    return state


def update(
    name: str, rate: float | Tensor, tensors: Tensors, gradients: Tensors, state: Tensors
) -> tuple[Tensors, Tensors]:
    """Take one step against the gradients.

    ``rmsprop`` divides by the root of a running mean of squares (decay 0.9, ε 1e-7: the values of the
    authors' program), ``adam`` has its usual constants.

    >>> tensors = {"x": torch.tensor([1.0])}
    >>> after, _ = update("sgd", 0.1, tensors, {"x": torch.tensor([2.0])}, start("sgd", tensors))
    >>> after["x"]
    tensor([0.8000])
    """
    state = dict(state)
    updated = {}
    if name == "adam":
        state["count"] = state["count"] + 1
    for key, tensor in tensors.items():
        gradient = gradients[key].contiguous()
        if name == "sgd":
            change = gradient
        elif name == "rmsprop":
            square = 0.9 * state[f"square.{key}"] + 0.1 * gradient.square()
            state[f"square.{key}"] = square
            change = gradient / (square.sqrt() + 1e-7)
        else:
            mean = 0.9 * state[f"mean.{key}"] + 0.1 * gradient
            square = 0.999 * state[f"square.{key}"] + 0.001 * gradient.square()
            state |= {f"mean.{key}": mean, f"square.{key}": square}
            count = state["count"].to(tensor.dtype)
            change = mean / (1 - 0.9**count) / ((square / (1 - 0.999**count)).sqrt() + 1e-8)
        updated[key] = tensor - rate * change
    return updated, state
