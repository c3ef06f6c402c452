"""Where batches come from: a buffer, new pictures, or both; as they are, changed a little, or turned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

from ccmcl.augment import changed, changes, kinds, mixed_in, several
from ccmcl.engine import Batch, even, weighed
from ccmcl.values import unit

CHANCES = 1 << 24
"""Even numbers over [0, 1) are drawn as whole ones below this."""


@runtime_checkable
class Source(Protocol):
    """Where batches come from. Drawing is apart from taking: numbers are drawn on the host, ahead of their use."""

    @property
    def count(self) -> int:
        """The images of a batch, each with a number drawn for it."""
        ...

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw the numbers that make a batch, always as many."""
        ...

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Make the batch."""
        ...


@dataclass(frozen=True)
class Replay:
    """Batches from the images of a buffer, with replacement."""

    images: Float[Tensor, "n c h w"]
    labels: Int64[Tensor, "n"] | Float[Tensor, "n k"]
    """the class of each image, or the share of each class"""
    batch: int
    weighting: bool = True

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.batch

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw the places of the images."""
        return torch.randint(len(self.images), (self.batch,), generator=generator)

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, labels and weights."""
        return weighed(self.images, self.labels, drawn, self.weighting)


@dataclass(frozen=True)
class Pictures:
    """Batches of real pictures, each picture at most once a batch."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, "n"]
    batch: int

    @property
    def count(self) -> int:
        """The pictures of a batch."""
        return min(self.batch, len(self.pixels))

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw the places of the pictures."""
        return distinct(len(self.pixels), self.count, generator)

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, labels and weights."""
        images = unit(self.pixels[drawn])
        return images, self.labels[drawn], even(len(drawn), images)


@dataclass(frozen=True)
class Evenly:
    """Batches of pictures or images, as many of every class, however many of it there are; some may come twice.

    >>> source = Evenly(Pictures(torch.zeros(6, 1, 4, 4, dtype=torch.uint8), torch.tensor([5, 7, 5, 5, 5, 5]), 4))
    >>> source.take(source.draw(torch.Generator().manual_seed(0)))[1].sort().values
    tensor([5, 5, 7, 7])
    """

    source: Pictures | Replay

    @property
    def count(self) -> int:
        """The pictures of a batch."""
        return self.source.count

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw the class for each place of a batch, then the picture."""
        places, firsts, sizes = self._by_class
        turn = int(torch.randint(len(sizes), (), generator=generator))  # whose turn it is to come once more
        which = (torch.randperm(self.count, generator=generator) + turn) % len(sizes)
        return places[firsts[which] + torch.randint(1 << 62, (self.count,), generator=generator) % sizes[which]]

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, labels and weights."""
        return self.source.take(drawn)

    @cached_property
    def _by_class(self) -> tuple[Tensor, Tensor, Tensor]:
        labels = self.source.labels.cpu()  # where numbers are drawn
        sizes = labels.bincount()
        sizes = sizes[sizes > 0]
        return labels.argsort(stable=True), sizes.cumsum(0) - sizes, sizes


@dataclass(frozen=True)
class Beside:
    """Batches of new pictures joined with batches from the buffer; the new ones have this ``share`` of the weight."""

    new: Source
    old: Source
    share: float = 0.5

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.new.count + self.old.count

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw for both, the new first."""
        return torch.cat([self.new.draw(generator), self.old.draw(generator)])

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, labels and weights."""
        fresh, replayed = self.new.take(drawn[: self.new.count]), self.old.take(drawn[self.new.count :])
        images, labels = (torch.cat([fresh[part], replayed[part]]) for part in (0, 1))
        return images, labels, torch.cat([self.share * fresh[2], (1 - self.share) * replayed[2]])


@dataclass(frozen=True)
class WithLogits:
    """Batches of new pictures beside stored ones, and with these the logits that were stored.

    ``known`` is 1 for the classes that had logits when an example was stored; ``weight`` goes to keeping them, the
    rest to classifying.
    """

    new: Pictures
    images: Float[Tensor, "n c h w"]
    labels: Int64[Tensor, "n"]
    logits: Float[Tensor, "n k"]
    known: Float[Tensor, "n k"]
    batch: int
    weight: float
    weighting: bool = True

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.new.count + self.batch

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw for both, the new first."""
        return torch.cat([self.new.draw(generator), self._old().draw(generator)])

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, labels, weights, logits, which of those count, and the weight of keeping them."""
        images, places, weights = Beside(self.new, self._old()).take(drawn)
        count = self.new.count
        index = places[count:]
        blank = self.logits.new_zeros(count, self.logits.shape[1])
        return (
            images,
            torch.cat([places[:count], self.labels[index]]),
            (1 - self.weight) * weights,
            torch.cat([blank, self.logits[index]]),
            torch.cat([blank, self.known[index]]),
            self.weight * torch.cat([blank[:, 0], 2 * weights[count:]]),
        )

    def _old(self) -> Replay:
        numbers = torch.arange(len(self.images), device=self.images.device)
        return Replay(self.images, numbers, self.batch, self.weighting)


@dataclass(frozen=True)
class Varied:
    """Batches of another source, each image changed a little; where they have labels alone, mixed as well.

    Then they come with the share of each of the ``outputs`` classes instead of the label.
    """

    source: Source
    outputs: int
    mirrored: bool
    together: bool = False
    """several changes come together, instead of one at a time"""

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.source.count

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw for the other source, then four numbers for each change of each image and four for all of them."""
        drawn, each = self.source.draw(generator), len(kinds(self.mirrored)) if self.together else 1
        return torch.cat([drawn, torch.randint(CHANCES, (4 * each * self.count + 4,), generator=generator)])

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images and the rest."""
        images, labels, weights, *others = self.source.take(drawn[: self.count])
        chance = drawn[self.count :].to(images.dtype) / CHANCES
        each = chance[:-4].reshape(self.count, -1, 4)
        height, width = images.shape[-2:]
        size = (height, width)
        rows = several(each, size, self.mirrored) if self.together else changes(each[:, 0], size, self.mirrored)
        images = changed(images, rows)
        if others:
            return images, labels, weights, *others
        images, targets = mixed_in(images, shares(labels, self.outputs, images), chance[-4:])
        return images, targets, weights


@dataclass(frozen=True)
class Turned:
    """Batches of another source, each image turned by quarters; every class counts as another one in each direction.

    A network that must tell directions apart finds more in few classes than one that need not. Pictures that are not
    square are turned by halves.
    """

    source: Source

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.source.count

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw for the other source, then one number for each image."""
        drawn = self.source.draw(generator)
        return torch.cat([drawn, torch.randint(4, (self.count,), generator=generator)])

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, the share of each class in each direction (upright first), and weights."""
        images, targets, weights = self.source.take(drawn[: -self.count])
        ways = directions(images.shape[-2], images.shape[-1])
        which = drawn[-self.count :] % ways
        turned = images
        for way in range(1, ways):
            other = images.rot90(4 // ways * way, (2, 3))
            turned = torch.where((which == way)[:, None, None, None], other, turned)
        return turned, (F.one_hot(which, ways)[:, :, None] * targets[:, None, :]).flatten(1), weights


@dataclass(frozen=True)
class Taught:
    """Batches of another source, and with them what a ``teacher`` says of the images: logits of the classes it knows.

    ``weight`` goes to keeping these, the rest to classifying. Keeping counts ``temperature`` times: a softmax at that
    temperature has a derivative so much smaller.
    """

    source: Source
    outputs: int
    teacher: Callable[[Tensor], Tensor]
    weight: float
    temperature: float

    @property
    def count(self) -> int:
        """The images of a batch."""
        return self.source.count

    def draw(self, generator: Generator) -> Int64[Tensor, "k"]:
        """Draw for the other source."""
        return self.source.draw(generator)

    def take(self, drawn: Int64[Tensor, "k"]) -> Batch:
        """Return images, shares, weights, logits, which of those count, and the weight of keeping them."""
        images, labels, weights = self.source.take(drawn)
        targets, logits = shares(labels, self.outputs, images), self.teacher(images)
        known = torch.zeros_like(targets)
        known[:, : logits.shape[1]] = 1
        logits = F.pad(logits, (0, self.outputs - logits.shape[1]))
        keep = self.temperature * self.weight * weights
        return images, targets, (1 - self.weight) * weights, logits, known, keep


def directions(height: int, width: int) -> int:
    """Count the directions in which a picture keeps its shape.

    >>> directions(32, 32), directions(20, 30)
    (4, 2)
    """
    return 4 if height == width else 2


def shares(labels: Tensor, outputs: int, like: Tensor) -> Float[Tensor, "n k"]:
    """Turn labels into the share of each class; what is that already is only widened.

    >>> shares(torch.tensor([1]), 3, torch.zeros(1))
    tensor([[0., 1., 0.]])
    """
    if labels.ndim == 1:
        return F.one_hot(labels, outputs).to(like.dtype)
    return F.pad(labels, (0, outputs - labels.shape[1])).to(like.dtype)


def distinct(count: int, size: int, generator: Generator) -> Int64[Tensor, "s"]:
    """Draw ``size`` different numbers below ``count``, evenly.

    >>> len(set(distinct(10, 10, torch.Generator().manual_seed(0)).tolist()))
    10
    """
    if count <= 4 * size:
        return torch.randperm(count, generator=generator)[:size]
    # Sampling positions and dropping repeats costs nothing beside a permutation of tens of thousands.
    seen: dict[int, Any] = {}
    while len(seen) < size:
        seen |= dict.fromkeys(torch.randint(count, (size - len(seen),), generator=generator).tolist())
    return torch.tensor(list(seen), dtype=torch.int64)
