"""The presets: what fills in the choices that are not given, by the shape of the pictures."""

from __future__ import annotations

from typing import Any

from ccmcl.budget import COLOURS
from ccmcl.catalogue import CONTINUED

FEWEST_FREQUENCIES, MOST_FREQUENCIES = 32, 256
KEPT = 12
"""Of so many numbers of a picture, one is kept."""
LARGEST_BASIS = 1 << 22
"""numbers that frequencies, laid out as pictures, may take in all"""
SMALL_SIDE = 64
"""Pictures too large for frequencies are stored with sides of at most this."""
SMALL_PICTURE = 16
"""Pictures with sides up to this have little to be seen in them, and a small network does."""


def paper(shape: tuple[int, int, int], method: str | None = None, in_bytes: bool = False) -> dict[str, Any]:  # noqa: ARG001
    """The paper's Table I; the larger K and S are for colour pictures (SVHN and CIFAR10), as in its text."""
    colour = shape[0] > 1
    return {
        "outer": 100 if colour else 50,
        "inner": 10,
        "matching": 10,
        "training": 1,
        "condense_batch": 256,
        "condense_optimiser": "rmsprop",
        "condense_rate": 0.01,
        "steps": 1000 if colour else 500,
        "batch": 128,
        "rate": 0.01,
    }


def best(shape: tuple[int, int, int], method: str | None = None, in_bytes: bool = False) -> dict[str, Any]:
    """Meant for the highest accuracy within 45 minutes on two cores, on a real data set.

    Whatever learns is a residual network, by the strong recipe. What is remembered are a picture's lowest frequencies,
    and networks see no others. The network goes on from experience to experience, with new pictures beside the memory
    (that of rehearsal and joint training too), and what it sees in pictures while it learns them is what their memory
    is made to show. A memory has all of its room from the start, and makes room as classes come. Where bytes are
    counted, not numbers, a number takes one. Pictures in colour are changed in several ways at once; of grey ones, too
    little would be left to tell them by.
    """
    learner = {
        **paper(shape),
        "recipe": "strong",
        "changes": "several" if shape[0] > 1 else "one",
        "looks": "auto",
        "network": "residual",
        "width": 64 if min(shape[1:]) > SMALL_PICTURE else 16,
        "widening": 2,
        "steps": 1000,
        "rate": 0.05,
    }
    if method in CONTINUED or method is None:
        learner["continued"] = "yes"
    if method not in ("finetune", "joint"):
        learner["filled"] = "yes"
    if method not in (None, "composite", "condensation"):
        return learner
    few = frequencies(shape)
    waves = {"frequencies": few, "lens": "yes", "margin": "auto"}
    stored = waves if few else {"reduction": -(-max(shape[1:]) // SMALL_SIDE)}
    return learner | {
        "method": "condensation",
        **stored,
        "bits": 8 if in_bytes else 32,
        "squash": "no",
        "start": "real",
        "objective": "distribution",
        "distance": "levels",
        "experts": 0,
        "updates": 200,
        "judged": 0.0,
        "condense_batch": 128,
        "condense_optimiser": "adam",
        "condense_rate": 0.02,
    }


def fast(shape: tuple[int, int, int], method: str | None = None, in_bytes: bool = False) -> dict[str, Any]:
    """The same, meant for about 5 minutes: a smaller network, and less of everything.

    With so few steps, pictures that are changed in several ways at once are more than a network can take in.
    """
    less = {"updates": 100, "condense_batch": 64, "outer": 1, "steps": 300}
    found = best(shape, method, in_bytes)
    return (
        found
        | {"width": min(32, found["width"]), "changes": "one", "looks": "one"}
        | {name: value for name, value in less.items() if name in found}
    )


def frequencies(shape: tuple[int, int, int]) -> int:
    """Choose how many frequencies are kept of pictures of a shape: a twelfth of their numbers, the colours' included.

    Of pictures that are too large for it, none.

    >>> [frequencies(shape) for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 64, 64), (3, 224, 224))]
    [170, 65, 32, 170, 0]
    """
    channels, height, width = shape
    pixels = height * width
    room = LARGEST_BASIS // (2 * channels * pixels)
    if room < FEWEST_FREQUENCIES:
        return 0
    wanted = channels * pixels * COLOURS // (KEPT * (COLOURS + channels - 1))
    return min(pixels, max(FEWEST_FREQUENCIES, wanted), MOST_FREQUENCIES, room)


EXPERTS = {
    "best": {"experts": 2, "expert_steps": 200, "expert_width": 32},
    "fast": {"experts": 2, "expert_steps": 50, "expert_width": 16},
}
"""What shows the way by these presets where the network that learns does not."""
PRESETS = {"best": best, "fast": fast, "paper": paper}
BY_PRESET = frozenset(
    name for fill in PRESETS.values() for shape in ((1, 8, 8), (1, 2000, 2000)) for name in fill(shape)
) | frozenset(EXPERTS["best"])
"""Settings that presets may differ in."""
