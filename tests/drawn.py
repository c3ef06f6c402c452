"""Pictures and parameters drawn for tests of networks."""

from __future__ import annotations

import torch
from torch import Tensor

from ccmcl.nets import Params

Shape = tuple[int, int, int]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, shape: Shape, seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=seeded(seed), dtype=torch.float64)


def shaken(params: Params, seed: int = 0) -> Params:
    """Move every parameter off its start, so that biases and norms have a say."""
    generator = seeded(seed)
    return {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in params.items()
    }
