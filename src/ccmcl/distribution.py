"""One class becomes its memory by another road: networks see the same features as in real pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl import optimisers
from ccmcl.augment import changed, changes
from ccmcl.condense import begun, ended, forming
from ccmcl.engine import Engine
from ccmcl.forms import Form
from ccmcl.kinds import Learned, count_of
from ccmcl.learn import AHEAD, fallen
from ccmcl.loop import CPU, State, counter, placed, prefixed, resumed, section
from ccmcl.nets import ConvNet, Params
from ccmcl.objectives import DEAD, DISTANCES, TINY
from ccmcl.sources import CHANCES
from ccmcl.values import unit

FEW = 120
"""Of Q images, if that is more than so many, each is moved at this / Q of the rate: many images show what a class is
like nearly right from the start, and what moves them is more and more the chance of what is drawn."""
VARYING = 1000
"""Pictures that show how much a number varies."""
AT_ONCE = 64
"""Pictures that are looked at together for that."""


@dataclass(frozen=True)
class Distribution:
    """How features are matched."""

    experts: int = 2
    """networks trained in each experience, for all its classes; 0 for the one that learns, as it was on its course"""
    expert_steps: int = 200
    """steps that each is trained for"""
    updates: int = 300
    """updates of the memory of a class"""
    batch: int = 64
    """real pictures, and remembered images, seen in each"""
    optimiser: str = "adam"
    """rule that updates the memory"""
    rate: float = 0.005
    """its learning rate at first, in units of how much a number varies, for few images; it falls along a cosine"""
    turned: bool = False
    """the networks also tell in what direction a picture is turned"""
    judged: float = 0.1
    """weight of the cross-entropy under the network whose features are matched, at the end of its line"""
    distance: str = "mean"
    """what of the features is matched: their mean, the whole cloud, or clouds at every level of the network"""
    width: int = 0
    """filters of the networks' convolutions, 0 for as many as the one has that learns"""


@dataclass(frozen=True)
class Courses:
    """Some networks, each parameter with the networks along its front.

    Of each there is what it was before it was trained and after, or, where both are one, what it is met as.
    """

    start: Params
    end: Params

    @staticmethod
    def of(networks: Sequence[tuple[Params, Params]]) -> Courses:
        """Set networks, before and after, side by side."""
        starts, ends = zip(*networks, strict=True)
        return Courses(beside(starts), beside(ends))

    @staticmethod
    def through(networks: Sequence[Params]) -> Courses:
        """Set networks side by side that are met as they are: one network, say, at some moments of its training."""
        met = beside(networks)
        return Courses(met, met)

    def __len__(self) -> int:
        return len(self.end["head.bias"])

    def at(self, which: Int64[Tensor, ""], along: Float[Tensor, ""]) -> tuple[Params, Params]:
        """Take a network on the line between its beginning and its end, and the end."""
        chosen = which.reshape(1)
        end = {name: tensor.index_select(0, chosen)[0] for name, tensor in self.end.items()}
        if self.start is self.end:
            return end, end
        start = {name: tensor.index_select(0, chosen)[0] for name, tensor in self.start.items()}
        return {name: start[name] + along * (end[name] - start[name]) for name in end}, end


def beside(networks: Sequence[Params]) -> Params:
    """Stack the parameters of networks."""
    return {name: torch.stack([network[name] for network in networks]) for name in networks[0]}


@dataclass(frozen=True)
class Features:
    """What a network sees in each of some pictures, changed as its row says."""

    net: ConvNet
    distance: str = "mean"

    def __call__(
        self, params: Params, images: Float[Tensor, "n c h w"], table: Float[Tensor, "n 12"]
    ) -> Float[Tensor, "n f"]:
        """Compute what a distance compares: what reaches the last layer, or the means of every block."""
        see = self.net.levels if self.distance == "levels" else self.net.embed
        return see(params, changed(images, table))


@dataclass(frozen=True)
class Draw:
    """Where images should go: numbers → images → changed → features → distance, and what a network takes them for.

    It is of the images that are drawn alone, and so compiled once, however many a class has.
    """

    net: ConvNet
    form: Form
    judged: float
    distance: str

    def __call__(
        self,
        line: Params,
        trained: Params,
        real: Float[Tensor, "n f"],
        tensors: Params,
        kept: Params,
        together: Float[Tensor, "m 12"],
        apart: Float[Tensor, "m 12"],
        label: Int64[Tensor, ""],
    ) -> tuple[Params, Float[Tensor, ""]]:
        """Return the gradient of the loss by the numbers, and the loss."""

        def loss(numbers: Params) -> Tensor:
            images = self.form.images(numbers, kept)
            sizes = [self.net.filters(block) for block in range(self.net.blocks)]
            distance = DISTANCES[self.distance](real, Features(self.net, self.distance)(line, images, together), sizes)
            if not self.judged:
                return distance
            taken = self.net(trained, changed(images, apart))
            return distance + self.judged * F.cross_entropy(taken, label.expand(len(taken)))

        gradients, value = torch.func.grad_and_value(loss)(tensors)
        return gradients, value


def drawn(form: Form, tensors: Params, only: Int64[Tensor, "m"]) -> tuple[Params, Params]:
    """Take of a memory what some of its images are made of, and what that is rounded to."""
    if "weights" not in tensors:
        some = {name: tensor.index_select(0, only) for name, tensor in tensors.items()}
        return some, form.rounded(some)

    def mixing(named: Params) -> Params:
        return named and {**named, "weights": named["weights"].index_select(1, only)}

    return mixing(tensors), mixing(form.rounded(tensors))  # the weights of a component have one range


def of_all(tensors: Params, gradients: Params, only: Int64[Tensor, "m"]) -> Params:
    """Lay gradients of what was drawn out over the whole memory; the rest of it has none."""
    whole = {}
    for name, tensor in tensors.items():
        if name == "components":
            whole[name] = gradients[name]
        else:
            whole[name] = torch.zeros_like(tensor).index_copy(int(name == "weights"), only, gradients[name])
    return whole


@dataclass(frozen=True)
class Matcher:
    """A job that learns the memory of one class by the features that trained networks find in it.

    Every step takes one of the networks at random, on the line from its beginning to its end where it has one, changes
    real and remembered images in the same random way, and draws their features together. ``courses`` are the networks,
    shared by the classes of an experience.
    """

    net: ConvNet
    label: int
    pixels: UInt8[Tensor, "n c h w"]
    memory: Learned
    courses: Courses
    settings: Distribution
    mirrored: bool
    generator: Generator
    engine: Engine = field(default_factory=Engine)
    device: torch.device = CPU
    fixed: int = 0
    """so many images, the first ones, stay as they are; of components, those they are"""

    @property
    def total(self) -> int:
        """The number of updates."""
        return self.settings.updates

    @cached_property
    def units(self) -> Params:
        """What each number of the memory is moved in: how much it varies from one real picture to another.

        The highest frequencies of a picture are a hundred times smaller than the lowest. Moved alike, they would soon
        be noise by which a network tells what is remembered from what is real.
        """
        numbers = placed(self.memory.numbers(), self.device)
        name, stored = next((name, tensor) for name, tensor in numbers.items() if name != "weights")
        _, channels, height, width = stored.shape
        real = torch.cat(
            [
                self.memory.form.encoded(unit(some), (channels, height, width))
                for some in torch.split(self.pixels[:VARYING], AT_ONCE)
            ]
        )
        spread, mean = torch.std_mean(real, 0, correction=0)
        spread = torch.maximum(spread, (stored - mean).abs().mean(0))  # what begins as noise has a way to go
        found = {name: spread + DEAD * spread.mean() + TINY}
        if "weights" in numbers:
            found["weights"] = numbers["weights"].square().mean().sqrt() + TINY
        return found

    def init(self) -> State:
        """Lay out the state: the memory, its optimiser, and the random stream."""
        return begun(self.memory, self.settings.optimiser, self.generator, self.total, self.device)

    def step(self, state: State) -> tuple[State, Tensor]:
        """Update the memory once."""
        settings, generator, done = self.settings, resumed(state), int(state["step"])
        tensors, slots, draws = section(state, "memory"), section(state, "optimiser"), section(state, "draws")
        now = done % AHEAD
        if now == 0:
            draws = placed(self._drawn(generator, min(AHEAD, self.total - done)), self.device)
        line, end = self.courses.at(draws["which"][now], draws["chance"][now, 0] / CHANCES)

        images = unit(self.pixels[draws["real"][now]])
        chance = draws["chance"][now, 1:].to(images.dtype).reshape(-1, 4) / CHANCES
        height, width = images.shape[-2:]
        both = changes(chance[:1], (height, width), self.mirrored)
        real = self.engine.features(Features(self.net, settings.distance), self.net, line, images, both)
        apart = changes(chance[1:], (height, width), self.mirrored)
        gradients, value = self.engine.run(
            Draw(self.net, self.memory.form, settings.judged, settings.distance),
            line,
            end,
            real,
            *drawn(self.memory.form, tensors, draws["images"][now]),
            both.expand(len(apart), -1).contiguous(),
            apart,
            torch.full((), self.label, device=self.device),
        )
        gradients = of_all(tensors, gradients, draws["images"][now])
        tensors, slots = self._moved(tensors, gradients, slots, fallen(done, self.total))
        return {
            "step": counter(done + 1),
            "generator": generator.get_state(),
            **prefixed("draws", draws),
            **prefixed("memory", tensors),
            **prefixed("optimiser", slots),
            **prefixed("forming", section(state, "forming")),
            **forming(done + 1, self.total, self.memory.form, tensors),
        }, value

    def _moved(self, tensors: Params, gradients: Params, slots: Params, left: float) -> tuple[Params, Params]:
        """Move numbers against their gradients, in units of how much each varies; so much of the rate is left."""
        settings, units = self.settings, self.units
        rate = settings.rate * min(1.0, FEW / count_of(self.memory))
        within = {name: tensor / units[name] for name, tensor in tensors.items()}
        gradients = {name: gradient * units[name] for name, gradient in gradients.items()}
        falling = rate * torch.full((), left, device=self.device)
        moved, slots = optimisers.update(settings.optimiser, falling, within, gradients, slots)
        return self._with_fixed({name: tensor * units[name] for name, tensor in moved.items()}), slots

    @cached_property
    def _start(self) -> Params:
        return placed(self.memory.numbers(), self.device)

    def _with_fixed(self, tensors: Params) -> Params:
        """Put back what is to stay: numbers, and all weights of images or components that are set apart."""
        count, found = self.fixed, {}
        for name, tensor in tensors.items() if count else ():
            start = self._start[name]
            if name == "weights":
                tensor = torch.cat([start[:, :count], tensor[:, count:]], 1)
            found[name] = torch.cat([start[:count], tensor[count:]])
        return found or tensors

    def _drawn(self, generator: Generator, count: int) -> dict[str, Tensor]:
        """Draw for some steps: the network, where on its line, the real pictures, and how images are changed."""
        images = count_of(self.memory)
        size, seen = (min(self.settings.batch, all_of_them) for all_of_them in (len(self.pixels), images))
        return {
            "which": torch.randint(len(self.courses), (count,), generator=generator),
            "real": torch.randint(len(self.pixels), (count, size), generator=generator),
            "images": torch.stack([torch.randperm(images, generator=generator)[:seen] for _ in range(count)]),
            "chance": torch.randint(CHANCES, (count, 1 + 4 + 4 * seen), generator=generator),
        }

    def finish(self, state: State) -> Learned:
        """Take the memory out of the last state."""
        return ended(self.memory, state)
