"""How large a memory may be, and what fits: "100" counts examples as the paper does, "300KiB" counts bytes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ccmcl.errors import InputError

UNITS = {"b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
FLOAT_BYTES = 4
LABEL_BYTES = 4
"""The label of a class is stored once, in four bytes."""
COUNT_BYTES = 4
"""So is the number of images that are coded together."""
MOST_BYTES = 1 << 36
"""What the images of one class may take while they are learned."""
SEEN_BYTES = 1 << 30
"""What the learned images of all classes may take where they are seen, unless as many whole ones fit the budget."""
MOST_DECODED = 4 * 2**30
"""What a memory may decode to, however small it is: a few bytes that become terabytes are an attack or a mistake."""
MOST_GROWTH = 256
"""How many times as large as itself it may become beyond that."""
MOST_SHOWN = 100
"""Components, or images, of a class that people look at."""
BITS = (32, 16, 8)
SCALE_BYTES = TARGET_BYTES = 2
"""The ranges of what is stored in eight bits, and soft labels, are in 16 bits."""
PAPER_RATIO = 2.0
"""Images for each component in the paper."""
COLOURS = 4
"""Of the differences between channels 1/this as many frequencies are kept as of their mean: eyes see them coarsely,
and there is less in them."""


@dataclass(frozen=True)
class Layout:
    """What is stored of a learned image or component beside its number: how small, in how many bits, with what labels.

    >>> Layout(reduction=2).small((3, 32, 32))
    768
    """

    reduction: int = 1
    bits: int = 32
    targets: int = 0
    """the numbers of a soft label"""
    frequencies: int = 0
    """kept of a picture, instead of its pixels"""

    def small(self, shape: tuple[int, int, int]) -> int:
        """Count the pixels of a picture made smaller, times its channels; or its frequencies."""
        channels, height, width = shape
        if self.frequencies:
            return self.frequencies + (channels - 1) * coloured(self.frequencies)
        return channels * -(-height // self.reduction) * -(-width // self.reduction)

    def numbers(self, rows: int, row: int, images: int, parts: int) -> int:
        """Count what is stored: ``rows`` of so many numbers, in ``parts`` with ranges, and soft labels of images."""
        return rows * (row + (2 * parts if self.bits == 8 else 0)) + images * self.targets

    def size(self, rows: int, row: int, images: int, parts: int) -> int:
        """Count the bytes of the same, with the label of the class."""
        scales = 2 * parts * SCALE_BYTES if self.bits == 8 else 0
        return LABEL_BYTES + rows * (row * self.bits // 8 + scales) + images * self.targets * TARGET_BYTES


PLAIN = Layout()
Measure = Callable[[int, int, int, int], int]
"""Counts rows of so many numbers, of so many images, in parts with ranges: as numbers, or as bytes."""


@dataclass(frozen=True)
class Budget:
    """A limit that a memory keeps: a number of examples or of bytes, for the whole stream or for each class.

    >>> Budget.parse("100").components((3, 32, 32), classes=10, ratio=2)
    10
    >>> Budget.parse("300KiB").components((3, 32, 32), classes=10, ratio=2)
    2
    >>> Budget.parse("30KiB/class").exemplars((3, 32, 32), classes=1000)
    9
    """

    amount: int
    in_bytes: bool = False
    each_class: bool = False

    @staticmethod
    def parse(text: str) -> Budget:
        """Read a budget as a user writes it."""
        found = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)\s*(/\s*class)?\s*", text.lower())
        if not found or (found[2] and found[2] not in UNITS) or (not found[2] and "." in found[1]):
            raise InputError(
                f"Cannot read the budget {text!r}: give a number of examples like '100', or bytes like '300KiB' "
                "('/class' may follow)."
            )
        budget = Budget(
            int(Fraction(found[1]) * UNITS.get(found[2], 1)),
            in_bytes=bool(found[2]),
            each_class=bool(found[3]),
        )
        if budget.amount < 1:
            raise InputError(
                f"A budget of {text.strip()!r} leaves nothing to remember: give at least one example a class."
            )
        return budget

    def __str__(self) -> str:
        unit = "B" if self.in_bytes else ""
        return f"{self.amount}{unit}{'/class' if self.each_class else ''}"

    def share(self, classes: int) -> int:
        """The part of the budget that one of ``classes`` classes may use."""
        return self.amount if self.each_class else self.amount // classes

    def exemplars(self, shape: tuple[int, int, int], classes: int, logits: int = 0, reduction: int = 1) -> int:
        """How many eight-bit pictures a class may store, each with ``logits`` numbers beside it.

        In the paper's count a picture made smaller is so much of an example as it has pixels; logits are not counted.
        """
        small = Layout(reduction).small(shape)
        if self.in_bytes:
            count = (self.share(classes) - LABEL_BYTES) // (small + FLOAT_BYTES * logits)
        else:
            count = self.room(shape, classes) // small
        return self.affordable(self._enough(count, classes, "picture"), shape, classes, lambda q: small * q)

    def pixels(self, shape: tuple[int, int, int], classes: int, layout: Layout = PLAIN) -> int:
        """How many free images a class may store."""
        small = layout.small(shape)

        def needed(measure: Measure, q: int) -> int:
            return measure(q, small, q, 1)

        return self._learnable(needed, layout, shape, classes, None)

    def components(self, shape: tuple[int, int, int], classes: int, ratio: float, layout: Layout = PLAIN) -> int:
        """How many components P a class may store together with the weights of Q = ratio·P images.

        In the paper's count and shape P is the share of the buffer, and the weights of up to 2P images come on top as
        its "overhead". In other shapes and in bytes, P is the largest number for which all that is stored fits.
        """
        small = layout.small(shape)

        def needed(measure: Measure, p: int) -> int:
            return measure(p, small + images_of(p, ratio), images_of(p, ratio), 2)

        return self._learnable(needed, layout, shape, classes, ratio)

    def room(self, shape: tuple[int, int, int], classes: int) -> int:
        """What one of ``classes`` classes may use: bytes, or numbers as the paper counts them.

        >>> Budget.parse("15").room((1, 8, 8), classes=10)
        96
        """
        whole = self.amount * (1 if self.in_bytes else math.prod(shape))
        return whole if self.each_class else whole // classes

    def affordable(
        self,
        count: int,
        shape: tuple[int, int, int],
        classes: int,
        stored: Callable[[int], int],
        ratio: float | None = None,
    ) -> int:
        """Keep to what there is room for where images are seen, and to what is taken for a memory when it is read.

        A few numbers of a large picture take little room in a file, and much as a picture. So many of a class take so
        many bytes as ``stored``; with a ``ratio`` they are components.

        >>> Budget.parse("600MiB").affordable(100_000, (3, 128, 128), 10, lambda count: 63 * count)
        2184
        """
        size = math.prod(shape)
        images = max(int(PAPER_RATIO) * self.room(shape, classes) // size, SEEN_BYTES // (FLOAT_BYTES * size * classes))
        count = min(count, max(1, int(images / (ratio or 1))))

        def seen(count: int) -> int:
            made = seen_of(images_of(count, ratio), count) if ratio else count
            return FLOAT_BYTES * size * classes * made

        if seen(count) > max(MOST_DECODED, MOST_GROWTH * classes * stored(count)):
            count = bisect_right(range(1, count + 1), MOST_DECODED, key=seen)
            if not count:
                raise InputError(
                    f"Of {classes} classes, one image each would take over {MOST_DECODED >> 30} GiB when it is decoded."
                )
        return count

    def _learnable(
        self,
        needed: Callable[[Measure, int], int],
        layout: Layout,
        shape: tuple[int, int, int],
        classes: int,
        ratio: float | None,
    ) -> int:
        """How many fit of what is learned; what no machine has room for while it is, is refused."""
        noun, room = "component" if ratio else "image", self.room(shape, classes)
        if not self.in_bytes and layout == Layout(bits=layout.bits) and (ratio or 1) <= PAPER_RATIO:
            count = self.share(classes)  # of whole pictures, whatever their numbers are stored in
        else:
            measure = layout.size if self.in_bytes else layout.numbers
            count = bisect_right(range(1, min(room, MOST_BYTES) + 1), room, key=lambda n: needed(measure, n))
        count = self._enough(count, classes, noun)
        count = self.affordable(count, shape, classes, lambda n: needed(layout.size, n), ratio)
        if (count + images_of(count, ratio or 1)) * math.prod(shape) * FLOAT_BYTES > MOST_BYTES:
            raise InputError(
                f"A budget of {self} needs over {MOST_BYTES >> 30} GiB of memory for one class: give a smaller one."
            )
        return count

    def _enough(self, count: int, classes: int, noun: str) -> int:
        if count < 1:
            each = "" if self.each_class else f" shared by {classes} classes"
            raise InputError(f"A budget of {self}{each} is smaller than one {noun} per class: give a larger one.")
        return count


def coloured(frequencies: int) -> int:
    """How many frequencies are kept of each difference between channels, beside those of their mean."""
    return -(-frequencies // COLOURS)


def seen_of(images: int, components: int = 0) -> int:
    """Count what people may look at: the images, and the first components."""
    return images + min(components, MOST_SHOWN)


def images_of(components: int, ratio: float) -> int:
    """How many images Q are mixed from P components (the paper: Q = 2P)."""
    return max(1, round(ratio * components))
