"""One class becomes its memory: Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl import optimisers
from ccmcl.engine import Learned, descend, draw, even, loss_gradient, match
from ccmcl.loop import State, counter, prefixed, resumed, section
from ccmcl.memory import unit
from ccmcl.nets import ConvNet, Params


@dataclass(frozen=True)
class Condensation:
    """How a class is condensed; the paper's symbols in brackets."""

    outer: int
    """networks drawn anew [K]"""
    inner: int
    """real batches seen by each network [T]"""
    matching: int
    """updates of the memory for each real batch [I]"""
    training: int
    """steps of the network between two real batches [J]"""
    batch: int
    """size of a real batch [B_C]"""
    optimiser: str
    """rule that updates the memory [opt_C]"""
    rate: float
    """its learning rate [γ_C]"""
    network_rate: float
    """learning rate of the condensing network [γ_T]"""


@dataclass(frozen=True)
class Condenser:
    """A job that learns the memory of one class, a step being one inner iteration of Algorithm 1.

    ``pixels`` are the real pictures of the class, ``memory`` is where it starts, ``buffer`` and
    ``buffer_labels`` the images of the classes remembered before, as they were when the experience began.
    ``outputs`` is the size of the condensing network's head: it is thrown away, so it may have room to spare.
    """

    net: ConvNet
    outputs: int
    label: int
    pixels: UInt8[Tensor, "n c h w"]
    memory: Learned
    buffer: Float[Tensor, "m c h w"]
    buffer_labels: Int64[Tensor, "m"]
    settings: Condensation
    generator: Generator
    dtype: torch.dtype = torch.float32

    @property
    def total(self) -> int:
        """The number of inner iterations, K·T."""
        return self.settings.outer * self.settings.inner

    def init(self) -> State:
        """Lay out the state: the memory, its optimiser, and the random stream. A network comes with the first step."""
        tensors = self.memory.tensors()
        return {
            "step": counter(0),
            "generator": self.generator.get_state(),
            **prefixed("memory", tensors),
            **prefixed("optimiser", optimisers.start(self.settings.optimiser, tensors)),
        }

    def step(self, state: State) -> tuple[State, float]:
        """Match the gradients on one real batch, then train the network on (lines 3 to 17)."""
        settings, generator, done = self.settings, resumed(state), int(state["step"])
        params = section(state, "network")
        tensors, slots = section(state, "memory"), section(state, "optimiser")
        if done % settings.inner == 0:
            params = self.net.init(generator, self.outputs, self.dtype)

        chosen = torch.randperm(len(self.pixels), generator=generator)[: settings.batch]
        images = unit(self.pixels[chosen], self.dtype)
        labels = torch.full((len(images),), self.label)
        real = loss_gradient(self.net, params, images, labels, even(len(images), images))

        distance = torch.tensor(0.0)
        for _ in range(settings.matching):
            gradients, distance = match(self.net, params, real, type(self.memory), tensors, self.label)
            tensors, slots = optimisers.update(settings.optimiser, settings.rate, tensors, gradients, slots)

        params = self._train(params, real, (images, labels), generator)
        return {
            "step": counter(done + 1),
            "generator": generator.get_state(),
            **prefixed("network", params),
            **prefixed("memory", tensors),
            **prefixed("optimiser", slots),
        }, distance.item()

    def _train(self, params: Params, real: Params, batch: tuple[Tensor, Tensor], generator: Generator) -> Params:
        """Step the network on the real batch joined with as many draws from the buffer.

        Both halves are of one size, so the gradient is the mean of theirs; the real one is there already.
        """
        images, labels = batch
        replayed = draw(self.buffer, self.buffer_labels, len(images), generator) if len(self.buffer) else None
        for repeat in range(self.settings.training):
            if repeat:
                real = loss_gradient(self.net, params, images, labels, even(len(images), images))
            gradient = real
            if replayed is not None:
                past = loss_gradient(self.net, params, *replayed)
                gradient = {name: (real[name] + past[name]) / 2 for name in real}
            params = descend(params, gradient, self.settings.network_rate)
        return params

    def finish(self, state: State) -> Learned:
        """Take the memory out of the last state."""
        return type(self.memory)(**section(state, "memory"))
