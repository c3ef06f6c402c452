"""The presets: what fills in the choices that are not given, by the shape of the pictures."""

from __future__ import annotations

from typing import Any

from ccmcl.catalogue import CONTINUED

FEWEST_FREQUENCIES, MOST_FREQUENCIES, MOST_CODED = 32, 256, 512
KEPT, KEPT_CODED = 6, 3
"""Of so many pixels, one frequency is kept; of twelve, where a class would have few images otherwise. Coded ones are
cheap: those that are small take next to nothing."""
CODED = {"step": 0.2, "bits": 32, "updates": 0}
"""What free images are by these presets where bytes are counted: frequencies that are coded, as multiples of so much
(pixels are from 0 to 1), of real pictures that stay as they are. So many of them fit that learning adds nothing."""
CODED_BITS = 3
"""What a coded frequency is taken to need before any picture is seen."""
FEW_IMAGES = 24
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
    counted, not numbers, a number takes one, or images are ``CODED``. Pictures in colour are changed in several ways at
    once; of grey ones, too little would be left to tell them by. Beside a memory of pictures too large for frequencies
    a network begins anew.
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
    waves = {"frequencies": "auto", "lens": "yes", "margin": "auto"}
    # A network that goes on would know what is stored smaller by its being blurred, and take all that is sharp for new.
    smaller = {"reduction": -(-max(shape[1:]) // SMALL_SIDE), "continued": "no"}
    stored = waves if frequencies(shape) else smaller
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


def frequencies(shape: tuple[int, int, int], affordable: int = 0, coded: bool = False) -> int:
    """Choose how many frequencies are kept of pictures of a shape, where ``FEW_IMAGES`` of a class could have so many.

    For every six pixels it is one (of three, if they are coded), and a quarter as many of each difference between
    channels; down to one of twelve where a class would have few images otherwise: then another image is worth more
    than what is finer in each. Of pictures that are too large for it, none.

    >>> [frequencies((1, 28, 28), affordable) for affordable in (32, 65, 98, 130, 326)]
    [65, 65, 98, 130, 130]
    >>> [frequencies(shape, 1000) for shape in ((3, 32, 32), (1, 8, 8), (3, 64, 64), (3, 224, 224))]
    [170, 32, 170, 0]
    >>> [frequencies(shape, 1000, coded=True) for shape in ((3, 32, 32), (1, 8, 8), (3, 64, 64), (3, 224, 224))]
    [341, 32, 170, 0]
    """
    channels, height, width = shape
    pixels = height * width
    most = LARGEST_BASIS // (2 * channels * pixels)
    if most < FEWEST_FREQUENCIES:
        return 0
    finest, limit = (KEPT_CODED, MOST_CODED) if coded else (KEPT, MOST_FREQUENCIES)
    wanted = max(pixels // (2 * KEPT), min(affordable, pixels // finest))
    return min(pixels, max(FEWEST_FREQUENCIES, wanted), limit, most)


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
