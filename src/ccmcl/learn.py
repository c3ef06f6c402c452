"""A network is trained, from a memory alone (Algorithm 2) or from new data beside one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl.augment import zoomed
from ccmcl.engine import Batch, descend
from ccmcl.loop import CPU, State, counter, placed, prefixed, resumed, section
from ccmcl.nets import ConvNet, Params
from ccmcl.sources import Source
from ccmcl.values import unit

AHEAD = 50
"""Draws are made for so many steps at a time, so that the device never waits for them."""

MEASURED = 16
"""Batches that a trained network is measured on, where it has to be."""

MOST_AT_ONCE = 512
"""Pictures of 32×32 pixels, or smaller, that go through a network together when it is not trained."""

ZOOM = 1.08
"""Pictures that are looked at several times are so much larger once, and smaller."""

Views = tuple[tuple[float, bool], ...]
"""How pictures are looked at: how many times as large, and whether in a mirror."""
AS_IT_IS: Views = ((1.0, False),)

UNKNOWN = -1e30
"""Takes a class out of a softmax; finite, so that nothing times it is not a number."""


@dataclass(frozen=True)
class Style:
    """What is done beside plain gradient steps on the images as they are."""

    momentum: float = 0.0
    """share of the last step that is taken again"""
    decay: float = 0.0
    """pull of all parameters to zero"""
    cosine: bool = False
    """the learning rate falls to zero along a cosine"""
    warm: float = 0.0
    """it rises over this share of the steps"""
    average: float = 0.0
    """memory of a running mean of the parameters, which is what comes out"""
    varied: bool = False
    """images are changed a little, and mixed, each time they are seen"""
    together: bool = False
    """several of these changes come together, instead of one at a time"""
    mirrored: bool = False
    """images mean the same in a mirror"""
    growing: bool = False
    """a network that begins anew takes so much of the steps as it knows of the classes to come"""
    looks: bool = False
    """a picture is judged by several looks at it: a little larger and a little smaller, too"""

    @property
    def views(self) -> Views:
        """How a picture is looked at to be judged; where that means the same, in a mirror as well."""
        zooms = (1.0, ZOOM, 1 / ZOOM) if self.looks else (1.0,)
        return tuple(product(zooms, (False, True) if self.varied and self.mirrored else (False,)))


PLAIN = Style()
STRONG = Style(momentum=0.9, decay=5e-4, cosine=True, average=0.99, varied=True, growing=True)
RECIPES = {"paper": PLAIN, "strong": STRONG}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    steps: int
    """training steps for each experience [S]"""
    batch: int
    """size of a batch [B_T]"""
    rate: float
    """learning rate of SGD [γ_T]"""
    style: Style = PLAIN


@dataclass(frozen=True)
class Trainer:
    """A job that takes gradient steps: ``start`` makes the parameters, ``source`` the batches, ``gradient`` the rest.

    ``gradient`` returns the gradient of the loss on a batch, and the loss.
    """

    start: Callable[[Generator], Params]
    source: Source
    gradient: Callable[[Params, Batch], tuple[Params, Tensor]]
    total: int
    rate: float
    generator: Generator
    device: torch.device = CPU
    style: Style = PLAIN
    settle: Callable[[Params, Iterable[Tensor]], Params] | None = None
    """adds to trained parameters what is measured on batches, given what is drawn for these"""
    moments: int = 1
    """The parameters are kept at so many moments of the course, evenly apart; at the last of them as they come out."""

    def init(self) -> State:
        """Make the parameters to start from."""
        params = placed(self.start(self.generator), self.device)
        still = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        return {
            "step": counter(0),
            "generator": self.generator.get_state(),
            **prefixed("params", params),
            **(prefixed("velocity", still) if self.style.momentum else {}),
            **(prefixed("average", params) if self.style.average else {}),
        }

    def step(self, state: State) -> tuple[State, Tensor]:
        """Take a gradient step on a batch."""
        generator, params, done = resumed(state), section(state, "params"), int(state["step"])
        if done % AHEAD:
            draws = state["draws"]
        else:
            count = min(AHEAD, self.total - done)
            draws = torch.stack([self.source.draw(generator) for _ in range(count)]).to(self.device)
        gradients, value = self.gradient(params, self.source.take(draws[done % AHEAD]))
        after = {"step": counter(done + 1), "generator": generator.get_state(), "draws": draws}
        met = {name: tensor for name, tensor in state.items() if name.startswith("course.")}
        after |= met | self._moved(state, params, gradients, done)
        if done + 1 in self._marks():
            after |= prefixed(f"course.{done + 1}", section(after, "params"))
        return (self._ended(after) if done + 1 == self.total else after), value

    def _marks(self) -> list[int]:
        """Choose the steps after which the parameters are kept, but for the last."""
        return sorted({self.total * moment // self.moments for moment in range(1, self.moments)} - {0})

    def _moved(self, state: State, params: Params, gradients: Params, done: int) -> State:
        """Step against the gradients in the style asked for."""
        style, rate = self.style, self.rate
        if style.cosine:
            rate *= fallen(done, self.total) * risen(done, self.total, style.warm)
        if style.decay:
            gradients = {name: change + style.decay * params[name] for name, change in gradients.items()}
        after: State = {}
        if style.momentum:
            before = section(state, "velocity")
            gradients = {name: style.momentum * before[name] + change for name, change in gradients.items()}
            after |= prefixed("velocity", gradients)
        params = descend(params, gradients, rate)
        if style.average:
            keep = min(style.average, (1 + done) / (10 + done))  # the first steps are soon forgotten
            mean = {name: keep * old + (1 - keep) * params[name] for name, old in section(state, "average").items()}
            after |= prefixed("average", mean)
        return after | prefixed("params", params)

    def _ended(self, state: State) -> State:
        """Add what comes out to the last state, and measure what is to be measured of it and of the moments before.

        It is a part of the job, so that whoever takes it out of the state finds the same.
        """
        state = state | prefixed(f"course.{self.total}", section(state, "average" if self.style.average else "params"))
        if self.settle is None:
            return state
        for mark in (*self._marks(), self.total):
            generator = resumed(state)
            draws = (self.source.draw(generator).to(self.device) for _ in range(MEASURED))
            state |= prefixed(f"course.{mark}", self.settle(section(state, f"course.{mark}"), draws))
        return state

    def course(self, state: State) -> list[Params]:
        """Take the parameters out of the last state as they were at each moment, those that come out last."""
        return [placed(section(state, f"course.{mark}"), CPU) for mark in (*self._marks(), self.total)]

    def finish(self, state: State) -> Params:
        """Take the parameters out of the last state."""
        return self.course(state)[-1]


def fallen(done: int, total: int) -> float:
    """Say what is left of a learning rate that falls to zero along half a cosine.

    >>> [round(fallen(done, 4), 3) for done in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return (1 + math.cos(math.pi * done / total)) / 2


def risen(done: int, total: int, share: float) -> float:
    """Say how much there is yet of a learning rate that rises evenly over a share of the steps.

    >>> [risen(done, 20, 0.2) for done in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    return min(1.0, (done + 1) / max(1.0, share * total))


@dataclass(frozen=True)
class Distil:
    """Judges by the classification and by how well given logits are kept, weighed by ``weights`` and ``keep``.

    Each image has logits for the classes known when it was judged; ``known`` is 1 for them, and the softmax at the
    given temperature runs over those alone. An image has one label, or a share of each class.
    """

    net: ConvNet
    temperature: float = 2.0

    def __call__(
        self,
        params: Params,
        images: Float[Tensor, "n c h w"],
        labels: Int64[Tensor, "n"] | Float[Tensor, "n k"],
        weights: Float[Tensor, "n"],
        logits: Float[Tensor, "n k"],
        known: Float[Tensor, "n k"],
        keep: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """Compute the weighted sum of both."""
        now = self.net(params, images)
        classification = (F.cross_entropy(now, labels, reduction="none") * weights).sum()
        out = (1 - known) * UNKNOWN
        target = torch.softmax((logits + out) / self.temperature, 1)
        entropy = -(known * target * torch.log_softmax((now + out) / self.temperature, 1)).sum(1)
        return classification + (entropy * keep).sum()

    def widened(self, batch: Batch, outputs: int) -> Batch:
        """No stored example knows the new outputs."""
        images, labels, weights, logits, known, keep = batch
        more = (0, outputs - logits.shape[1])
        labels = labels if labels.ndim == 1 else F.pad(labels, more)
        return images, labels, weights, F.pad(logits, more), F.pad(known, more), keep


@dataclass(frozen=True)
class Shared:
    """Judges by the cross-entropy of shares: each image may be of several classes."""

    net: ConvNet

    def __call__(
        self,
        params: Params,
        images: Float[Tensor, "n c h w"],
        targets: Float[Tensor, "n k"],
        weights: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """Compute the weighted sum."""
        return -((torch.log_softmax(self.net(params, images), 1) * targets).sum(1) * weights).sum()

    def widened(self, batch: Batch, outputs: int) -> Batch:
        """New outputs have no share."""
        images, targets, weights = batch
        return images, F.pad(targets, (0, outputs - targets.shape[1])), weights


def at_once(images: Tensor) -> int:
    """Say how many images may go through a network together: the larger they are, the fewer.

    >>> [at_once(torch.empty(0, 3, side, side)) for side in (28, 32, 96, 224, 2000)]
    [512, 512, 32, 8, 1]
    """
    room = MOST_AT_ONCE * 32 * 32 // max(1, images.shape[-2] * images.shape[-1])
    return min(MOST_AT_ONCE, 1 << max(0, room.bit_length() - 1))


@torch.no_grad()
def logits_of(
    net: ConvNet,
    params: Params,
    pixels: UInt8[Tensor, "n c h w"],
    batch: int | None = None,
    device: torch.device = CPU,
    views: Views = AS_IT_IS,
) -> Float[Tensor, "n k"]:
    """Compute the logits of pictures, a batch at a time: as many as there is room for, if it is not said.

    Of several ``views`` of each picture, it is the logarithm of the mean of their probabilities.
    The last batch is filled up to a power of two: libraries keep something for every shape they ever met, and a stream
    brings another number of pictures with every experience.
    """
    there, dtype = placed(params, device), params["head.bias"].dtype
    logits, batch = [], batch or at_once(pixels)
    for part in torch.split(pixels, batch):
        room = min(batch, 1 << max(0, len(part) - 1).bit_length())
        filled = torch.cat([part, part[:1].expand(room - len(part), *part.shape[1:])]) if 0 < len(part) < room else part
        images = unit(filled.to(device), dtype)
        seen = (zoomed(images.flip(3) if mirror else images, zoom) for zoom, mirror in views)
        found = torch.stack([net(there, view) for view in seen])
        mean = found[0] if len(found) == 1 else found.log_softmax(2).logsumexp(0) - math.log(len(found))
        logits.append(mean[: len(part)].cpu())
    return torch.cat(logits)
