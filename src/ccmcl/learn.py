"""A network is trained, from a memory alone (Algorithm 2) or from new data beside one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl import engine
from ccmcl.engine import descend, draw, even
from ccmcl.loop import State, counter, prefixed, resumed, section
from ccmcl.memory import unit
from ccmcl.nets import ConvNet, Params

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    steps: int
    """training steps for each experience [S]"""
    batch: int
    """size of a batch [B_T]"""
    rate: float
    """learning rate of plain SGD [γ_T]"""


@dataclass(frozen=True)
class Trainer:
    """A job that takes gradient steps: ``start`` makes the parameters, ``draw`` a batch, ``loss`` judges them."""

    start: Callable[[Generator], Params]
    draw: Callable[[Generator], Batch]
    loss: Callable[..., Tensor]
    total: int
    rate: float
    generator: Generator

    def init(self) -> State:
        """Make the parameters to start from."""
        params = self.start(self.generator)
        return {"step": counter(0), "generator": self.generator.get_state(), **prefixed("params", params)}

    def step(self, state: State) -> tuple[State, float]:
        """Draw a batch and take a gradient step on it."""
        generator, params = resumed(state), section(state, "params")
        batch = self.draw(generator)

        def judge(params: Params) -> Tensor:
            return self.loss(params, *batch)

        gradients, value = torch.func.grad_and_value(judge)(params)
        params = descend(params, gradients, self.rate)
        done = counter(int(state["step"]) + 1)
        return {"step": done, "generator": generator.get_state(), **prefixed("params", params)}, value.item()


def classify(net: ConvNet) -> Callable[..., Tensor]:
    """Judge parameters by the cross-entropy on weighted images."""

    def judge(params: Params, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return engine.loss(net, params, images, labels, weights)

    return judge


def from_images(
    images: Float[Tensor, "n c h w"], labels: Int64[Tensor, "n"], batch: int
) -> Callable[[Generator], Batch]:
    """Draw batches from the images of a buffer, with replacement."""
    return lambda generator: draw(images, labels, batch, generator)


def from_pixels(
    pixels: UInt8[Tensor, "n c h w"], labels: Int64[Tensor, "n"], batch: int
) -> Callable[[Generator], Batch]:
    """Draw batches of real pictures, each picture at most once a batch."""

    def draw_pictures(generator: Generator) -> Batch:
        # Sampling positions and dropping repeats costs nothing beside a permutation of tens of thousands.
        size = min(batch, len(pixels))
        chosen = distinct(len(pixels), size, generator)
        images = unit(pixels[chosen])
        return images, labels[chosen], even(size, images)

    return draw_pictures


def beside(new: Callable[[Generator], Batch], old: Callable[[Generator], Batch]) -> Callable[[Generator], Batch]:
    """Join batches of new pictures with batches from the buffer, half and half."""

    def draw_both(generator: Generator) -> Batch:
        images, labels, weights = new(generator)
        replayed = old(generator)
        return (
            torch.cat([images, replayed[0]]),
            torch.cat([labels, replayed[1]]),
            torch.cat([weights, replayed[2]]) / 2,
        )

    return draw_both


def distinct(count: int, size: int, generator: Generator) -> Int64[Tensor, "s"]:
    """Draw ``size`` different numbers below ``count``, evenly.

    >>> len(set(distinct(10, 10, torch.Generator().manual_seed(0)).tolist()))
    10
    """
    if count <= 4 * size:
        return torch.randperm(count, generator=generator)[:size]
    seen: dict[int, Any] = {}
    while len(seen) < size:
        seen |= dict.fromkeys(torch.randint(count, (size - len(seen),), generator=generator).tolist())
    return torch.tensor(list(seen))


def distil(net: ConvNet, weight: float, temperature: float = 2.0) -> Callable[..., Tensor]:
    """Judge parameters by their classification and by how well they keep stored logits, ``weight`` to the latter.

    Each stored example has logits for the classes known when it was stored; ``known`` marks them, and the
    softmax at the given temperature runs over those alone.
    """

    def judge(params: Params, images: Tensor, labels: Tensor, weights: Tensor, logits: Tensor, known: Tensor) -> Tensor:
        now = net(params, images)
        classification = (F.cross_entropy(now, labels, reduction="none") * weights).sum()
        replayed = now[-len(logits) :].masked_fill(~known, -torch.inf)
        target = torch.softmax(logits.masked_fill(~known, -torch.inf) / temperature, 1)
        entropy = -torch.where(known, target * torch.log_softmax(replayed / temperature, 1), 0.0).sum(1)
        share = weights[-len(logits) :]
        distillation = (entropy * share).sum() / share.sum()
        return (1 - weight) * classification + weight * distillation

    return judge


@torch.no_grad()
def logits_of(net: ConvNet, params: Params, pixels: UInt8[Tensor, "n c h w"], batch: int = 500) -> Float[Tensor, "n k"]:
    """Compute the logits of pictures, a batch at a time."""
    parts = [net(params, unit(part, params["head.bias"].dtype)) for part in torch.split(pixels, batch)]
    return torch.cat(parts)
