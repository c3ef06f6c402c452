"""Classes arrive a few at a time: a data set and an order become a stream of experiences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ccmcl.data import Images
from ccmcl.errors import InputError
from ccmcl.loop import generator_for


@dataclass(frozen=True)
class Experience:
    """What is at hand at one time: pictures of a few classes, labelled by the order in which classes arrive."""

    index: int
    classes: tuple[int, ...]
    pixels: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, "n"]

    def of_class(self, label: int) -> UInt8[Tensor, "m c h w"]:
        """Return the pictures of one class."""
        return self.pixels[self.labels == label]


@dataclass(frozen=True)
class Stream:
    """A data set cut into experiences.

    Class number k of a stream is the k-th class to arrive, whatever it is called in the data set, so that
    a head which grows with the classes seen needs no table of translation. Classes of one experience arrive
    together and are numbered in the order of the data set, however they were listed. ``names`` are their names.

    >>> from ccmcl.data import load
    >>> stream = Stream.of(load("digits").train, order=[3, 4, 1], sizes=[1, 2])
    >>> [experience.classes for experience in stream]
    [(0,), (1, 2)]
    >>> stream.names
    ('3', '1', '4')
    """

    images: Images
    order: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(images: Images, order: Sequence[int] | None = None, sizes: Sequence[int] | int = 2) -> Stream:
        """Cut ``images`` into experiences of ``sizes`` classes each (the last takes what is left over)."""
        known = len(images.classes)
        order = tuple(range(known)) if order is None else tuple(order)
        if not order or len(set(order)) != len(order) or not all(0 <= k < known for k in order):
            raise InputError(
                f"The class order {list(order)} does not fit: expected distinct class numbers from 0 to "
                f"{known - 1} ({known} classes are in the data)."
            )
        spelled = experience_sizes(sizes, len(order))
        ends = [sum(spelled[: i + 1]) for i in range(len(spelled))]
        groups = [sorted(order[end - size : end]) for end, size in zip(ends, spelled, strict=True)]
        return Stream(images, tuple(k for group in groups for k in group), spelled)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes in the order of their arrival."""
        return tuple(self.images.classes[k] for k in self.order)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The arrival numbers of the classes of each experience."""
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(tuple(range(end - size, end)) for end, size in zip(ends, self.sizes, strict=True))

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Experience]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Experience:
        index = range(len(self))[index]
        classes = self.groups[index]
        pixels, labels = self.cut(self.images, classes)
        return Experience(index, classes, pixels, labels)

    def cut(self, images: Images, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Take the pictures of some arrival numbers out of ``images``, relabelled by arrival."""
        arrival = torch.full((len(images.classes),), -1)
        for number in classes:
            arrival[self.order[number]] = number
        labels = arrival[images.labels]
        chosen = labels >= 0
        return images.pixels[chosen], labels[chosen]


def experience_sizes(sizes: Sequence[int] | int, classes: int) -> tuple[int, ...]:
    """Spell out how many classes each experience brings.

    >>> experience_sizes(2, 10)
    (2, 2, 2, 2, 2)
    >>> experience_sizes(4, 10)
    (4, 4, 2)
    >>> experience_sizes([1, 2, 7], 10)
    (1, 2, 7)
    """
    if isinstance(sizes, int):
        if sizes < 1:
            raise InputError(f"An experience needs at least one class, not {sizes}.")
        full, rest = divmod(classes, sizes)
        return (sizes,) * full + ((rest,) if rest else ())
    if not sizes or min(sizes) < 1 or sum(sizes) != classes:
        raise InputError(
            f"The experiences {list(sizes)} hold {sum(sizes)} classes, but the stream has {classes}: "
            f"give sizes of at least 1 that add up to {classes}."
        )
    return tuple(sizes)


def class_order(order: str, classes: int, seed: int) -> tuple[int, ...]:
    """Read a class order: ``ascending``, ``random`` (drawn from the seed), or class numbers like ``3,1,4``.

    >>> class_order("ascending", 4, seed=0)
    (0, 1, 2, 3)
    >>> sorted(class_order("random", 4, seed=0))
    [0, 1, 2, 3]
    >>> class_order("3,1", 4, seed=0)
    (3, 1)
    """
    if order == "ascending":
        return tuple(range(classes))
    if order == "random":
        generator = generator_for(seed, "order")
        return tuple(torch.randperm(classes, generator=generator).tolist())
    try:
        return tuple(int(word) for word in order.split(","))
    except ValueError:
        raise InputError(
            f"Cannot read the class order {order!r}: give 'ascending', 'random' or class numbers like '3,1,4'."
        ) from None
