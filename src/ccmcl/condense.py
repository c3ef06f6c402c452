"""One class becomes its memory: Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl import optimisers
from ccmcl.engine import Batch, Classify, Engine, Update, descend, even, weighed
from ccmcl.forms import Form
from ccmcl.kinds import Learned, formed
from ccmcl.loop import CPU, State, counter, placed, prefixed, resumed, section
from ccmcl.nets import ConvNet, Params
from ccmcl.values import unit, visible

FORMING_IMAGES = 8
"""Images of a class that are followed while they form."""


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
    engine: Engine = field(default_factory=Engine)
    device: torch.device = CPU

    @property
    def total(self) -> int:
        """The number of inner iterations, K·T."""
        return self.settings.outer * self.settings.inner

    @property
    def size(self) -> int:
        """The pictures of a real batch."""
        return min(self.settings.batch, len(self.pixels))

    def init(self) -> State:
        """Lay out the state: the memory, its optimiser, and the random stream. A network comes with the first step."""
        return begun(self.memory, self.settings.optimiser, self.generator, self.total, self.device)

    def step(self, state: State) -> tuple[State, Tensor]:
        """Match the gradients on one real batch, then train the network on (lines 3 to 17)."""
        settings, generator, done = self.settings, resumed(state), int(state["step"])
        params, draws = section(state, "network"), section(state, "draws")
        tensors, slots = section(state, "memory"), section(state, "optimiser")
        if done % settings.inner == 0:
            params, draws = self._begin(generator)
        now = done % settings.inner

        images = unit(self.pixels[draws["real"][now]], self.dtype)
        label = torch.full((), self.label, device=self.device)
        batch = (images, label.expand(len(images)), even(len(images), images))
        judge = Classify(self.net)
        real, _ = self.engine.gradient(judge, params, batch)

        update = Update(self.net, self.memory.form, settings.optimiser, settings.rate)
        distance = images.new_zeros(())
        for repeat in range(settings.matching):
            if repeat and not self.engine.once:
                real, _ = self.engine.gradient(judge, params, batch)
            tensors, slots, distance = self.engine.update(update, params, real, tensors, slots, label)

        replayed = draws["buffer"][now] if len(self.buffer) else None
        params = self._train(params, real, batch, replayed)
        return {
            "step": counter(done + 1),
            "generator": generator.get_state(),
            **prefixed("network", params),
            **prefixed("draws", draws),
            **prefixed("memory", tensors),
            **prefixed("optimiser", slots),
            **prefixed("forming", section(state, "forming")),
            **forming(done + 1, self.total, self.memory.form, tensors),
        }, distance

    def _begin(self, generator: Generator) -> tuple[Params, dict[str, Tensor]]:
        """Draw a network, and for all its inner iterations the real batches and the samples of the buffer."""
        params = self.net.init(generator, self.outputs, self.dtype)
        real, buffer = [], []
        for _ in range(self.settings.inner):
            real.append(torch.randperm(len(self.pixels), generator=generator)[: self.size])
            if len(self.buffer):
                buffer.append(torch.randint(len(self.buffer), (self.size,), generator=generator))
        draws = {"real": torch.stack(real)} | ({"buffer": torch.stack(buffer)} if buffer else {})
        return placed(params, self.device), placed(draws, self.device)

    def _train(self, params: Params, real: Params, batch: Batch, replayed: Tensor | None) -> Params:
        """Step the network on the real batch joined with as many draws from the buffer.

        Both halves are of one size, so the gradient is the mean of theirs; the real one is there already.
        """
        judge = Classify(self.net)
        past = None
        if replayed is not None:
            past = weighed(self.buffer, self.buffer_labels, replayed, self.engine.weighting)
        for repeat in range(self.settings.training):
            if repeat or not self.engine.reuse:
                both = batch
                if past is not None:
                    images, labels, weights = (torch.cat(pair) for pair in zip(batch, past, strict=True))
                    both = images, labels, weights / 2
                gradient, _ = self.engine.gradient(judge, params, both)
            else:
                gradient = real
                if past is not None:
                    other, _ = self.engine.gradient(judge, params, past)
                    gradient = {name: (real[name] + other[name]) / 2 for name in real}
            params = descend(params, gradient, self.settings.network_rate)
        return params

    def finish(self, state: State) -> Learned:
        """Take the memory out of the last state."""
        return ended(self.memory, state)


def begun(memory: Learned, optimiser: str, generator: Generator, total: int, device: torch.device) -> State:
    """Lay out the state of work of so many steps on a memory, before the first."""
    tensors = placed(memory.numbers(), device)
    return {
        "step": counter(0),
        "generator": generator.get_state(),
        **prefixed("memory", tensors),
        **prefixed("optimiser", optimisers.start(optimiser, tensors)),
        **forming(0, total, memory.form, tensors),
    }


def ended(memory: Learned, state: State) -> Learned:
    """Take what became of a memory out of the last state."""
    return formed(type(memory), placed(section(state, "memory"), CPU), memory.form)


def forming(done: int, total: int, form: Form, tensors: Params) -> State:
    """Keep what the first images look like, at a few moments: how a memory forms can be looked at later."""
    if done not in moments(total):
        return {}
    return {f"forming.{done}": visible(form.images(tensors)[:FORMING_IMAGES])}


def moments(total: int) -> list[int]:
    """Choose when to look at work of so many steps: often at first, as that is when most of it happens.

    >>> moments(60)
    [0, 1, 2, 5, 10, 20, 50, 60]
    """
    early = [digit * 10**power for power in range(len(str(total))) for digit in (1, 2, 5)]
    return [0, *[step for step in early if step < total], total]
