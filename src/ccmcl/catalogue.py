"""What can be asked for by name, and what is known of it without computing anything."""

from __future__ import annotations

from collections.abc import Mapping

_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES: Mapping[str, tuple[str, ...]] = {
    "digits": _DIGITS,
    "mnist": _DIGITS,
    "fashion-mnist": _FASHION,
    "cifar10": _CIFAR,
    "svhn": _DIGITS,
}
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "svhn": (3, 32, 32),
}
METHODS = ("composite", "condensation", "rehearsal", "bic", "finetune", "joint")
CONTINUED = ("composite", "condensation", "rehearsal", "joint")
"""Methods whose network can go on from experience to experience with what all of them go on with."""
OPTIMISERS = ("sgd", "rmsprop", "adam")
COMPILE = ("auto", "on", "off")
DEVICES = ("auto", "cpu", "cuda", "mps")
NETWORKS = ("plain", "residual")
PRECISIONS = ("float32", "bfloat16")
OBJECTIVES = ("gradient", "distribution")
DISTANCES = ("mean", "kernel", "levels")
RECIPES = ("paper", "strong")
STARTS = ("noise", "real", "typical")
LABELS = ("hard", "soft")
CODECS = ("raw", "jpeg", "webp")
ANSWERS = ("auto", "yes", "no")
AMOUNTS = ("one", "several")
