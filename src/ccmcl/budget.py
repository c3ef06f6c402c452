"""How large a memory may be, and what fits: "100" counts examples as the paper does, "300KiB" counts bytes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from ccmcl.errors import InputError

UNITS = {"b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
FLOAT_BYTES = 4
LABEL_BYTES = 4
"""The label of a class is stored once, in four bytes."""
MOST_BYTES = 1 << 36
"""What the images of one class may take while they are learned."""


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

    def exemplars(self, shape: tuple[int, int, int], classes: int, logits: int = 0) -> int:
        """How many eight-bit pictures a class may store, each with ``logits`` numbers beside it."""
        return self._fitting(classes, math.prod(shape) + FLOAT_BYTES * logits, "picture")

    def pixels(self, shape: tuple[int, int, int], classes: int) -> int:
        """How many free images a class may store."""
        return self._affordable(self._fitting(classes, FLOAT_BYTES * math.prod(shape), "image"), 1, math.prod(shape))

    def components(self, shape: tuple[int, int, int], classes: int, ratio: float) -> int:
        """How many components P a class may store together with the weights of Q = ratio·P images.

        In the paper's count P is the share of the buffer, and the weights come on top as its "overhead";
        in bytes P is the largest number for which P·(S+Q) values and the label fit.
        """
        size = math.prod(shape)
        if not self.in_bytes:
            return self._affordable(self._fitting(classes, 0, "component"), ratio, size)
        room = (self.share(classes) - LABEL_BYTES) // FLOAT_BYTES
        count = max(0, room) // size
        count = bisect_right(range(1, count + 1), room, key=lambda p: p * (size + images_of(p, ratio)))
        return self._affordable(self._enough(count, classes, "component"), ratio, size)

    def _fitting(self, classes: int, size: int, noun: str) -> int:
        share = self.share(classes)
        return self._enough((share - LABEL_BYTES) // size if self.in_bytes else share, classes, noun)

    def _affordable(self, count: int, ratio: float, size: int) -> int:
        """Refuse what no machine has room for while it is being learned."""
        if (count + images_of(count, ratio)) * size * FLOAT_BYTES > MOST_BYTES:
            raise InputError(
                f"A budget of {self} needs over {MOST_BYTES >> 30} GiB of memory for one class: give a smaller one."
            )
        return count

    def _enough(self, count: int, classes: int, noun: str) -> int:
        if count < 1:
            each = "" if self.each_class else f" shared by {classes} classes"
            raise InputError(f"A budget of {self}{each} is smaller than one {noun} per class: give a larger one.")
        return count


def images_of(components: int, ratio: float) -> int:
    """How many images Q are mixed from P components (the paper: Q = 2P)."""
    return max(1, round(ratio * components))
