"""One experiment, spelled out: every choice that can change a result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccmcl.budget import BITS, Budget
from ccmcl.catalogue import (
    AMOUNTS,
    ANSWERS,
    CODECS,
    CONTINUED,
    DISTANCES,
    LABELS,
    METHODS,
    NETWORKS,
    OBJECTIVES,
    OPTIMISERS,
    PRECISIONS,
    RECIPES,
    SHAPES,
    STARTS,
)
from ccmcl.errors import InputError, nearest
from ccmcl.presets import CODED, EXPERTS, PRESETS

FORMAT = 3
"""Changes when the same settings no longer mean the same result."""
REVISED = {
    ("recipe", "strong"): 4,
    ("objective", "distribution"): 6,
    ("network", "residual"): 1,
    ("continued", "yes"): 3,
    ("labels", "soft"): 1,
}
"""The same for one value of one setting."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "method": METHODS,
    "condense_optimiser": OPTIMISERS,
    "network": NETWORKS,
    "precision": PRECISIONS,
    "objective": OBJECTIVES,
    "distance": DISTANCES,
    "recipe": RECIPES,
    "start": STARTS,
    "labels": LABELS,
    "codec": CODECS,
    "squash": ANSWERS[1:],
    "turned": ANSWERS[1:],
    "lens": ANSWERS[1:],
    "continued": ANSWERS[1:],
    "filled": ANSWERS[1:],
    "changes": AMOUNTS,
    "mirrored": ANSWERS,
    "looks": ("auto", *AMOUNTS),
}
MOST_OF_ONE_KIND = 64
MOST_IMAGES = 1_000_000
"""for each component, or components for each image"""
MOST_WHOLE = 1 << 128
PLAIN_RATE = 0.02
"""Of a plain network by the strong recipe, and of a memory by gradients."""
LEARNING = {"objective", "distance", "experts", "judged", "condense_batch", "condense_optimiser", "condense_rate"}
"""Who gives one of these wants the memory to be learned."""
BY_EXPERTS = ("expert_steps", "expert_width", "turned")
OF_FREQUENCIES = ("frequencies", "lens", "margin")
BY_GRADIENT = ("outer", "inner", "matching", "training")
POSITIVE = (
    "width",
    "blocks",
    "widening",
    "networks",
    "outer",
    "inner",
    "matching",
    "condense_batch",
    "steps",
    "batch",
    "reduction",
    "expert_steps",
)


def setting(about: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of Experiment with its one line of help; one without a default is filled by the preset."""
    return dataclasses.field(default=default, metadata={"help": about})


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides the result of a run. The command line, files and programs all fill this one.

    >>> experiment = Experiment.of(dataset="mnist", method="composite", budget="20", preset="paper")
    >>> experiment.outer, experiment.steps
    (50, 500)
    >>> experiment.name.rpartition("-")[0]
    'mnist-composite-20-paper-seed0'
    """

    dataset: str = setting("data set: digits, mnist, fashion-mnist, cifar10, svhn, or the path of your own", "digits")
    method: str = setting(f"one of {', '.join(METHODS)}", "composite")
    budget: str = setting(
        "size of the memory: examples as the paper counts ('100') or bytes ('300KiB', '1MB'); '/class' may follow", "20"
    )
    filled: str = setting(
        "the memory fills its budget from the first experience on, and makes room for classes as they come: yes; "
        "or every class has from the start what it will have at the end: no",
        "no",
    )
    preset: str = setting("fills what is not given: best, fast or paper", "fast")
    seed: int = setting("seed of all randomness", 0)
    order: str = setting("order of the classes: ascending, random (by seed), or numbers like 3,1,4", "ascending")
    per_experience: str = setting("classes in each experience: 2, or one number for each like 1,2,7", "2")
    holdout: int = setting("evaluate on this many training images held out, leaving the test set unseen", 0)
    network: str = setting("plain (blocks of one convolution, as in the paper) or residual (stages of two)", "plain")
    width: int = setting("filters of each convolution; of the first, where blocks grow wider", 128)
    blocks: int = setting("blocks of the network (small pictures have room for fewer)", 3)
    widening: int = setting("each block has so many times the filters of the one before", 1)
    networks: int = setting("so many networks learn, each by itself, and judge pictures together", 1)
    precision: str = setting("numbers that convolutions compute with: float32 or bfloat16", "float32")
    ratio: float = setting("images per component, Q/P", 2.0)
    reduction: int = setting("what is stored has 1/this of the resolution; images are enlarged from it", 1)
    frequencies: int | str = setting(
        "what is learned are so many of the lowest frequencies of a picture: a number, auto (one for six pixels inside "
        "the margin, if coded for three; fewer where that would leave few images), or 0 for pixels",
        0,
    )
    lens: str = setting("networks see only these frequencies of any picture: yes or no", "no")
    margin: str = setting(
        "pixels at the edge of pictures of which no frequencies are kept: a number, or auto (as wide as the edge in "
        "which hardly anything varies in the first experience)",
        "0",
    )
    bits: int = setting("bits of a learned number: 32, 16 or 8", 32)
    step: float = setting(
        "learned frequencies are rounded to multiples of this, and coded in as few bits as they need: 0.01 to 10, or 0 "
        "for the same bits for each",
        0.0,
    )
    squash: str = setting("mixtures go through a sigmoid: yes or no", "yes")
    start: str = setting(
        "learned images begin as noise, as real pictures, or as typical ones: noise, real or typical", "noise"
    )
    labels: str = setting("labels of learned images: hard, or soft (what the experts take them for)", "hard")
    codec: str = setting("stored pictures are raw, jpeg or webp", "raw")
    quality: int = setting("quality of jpeg or webp, from 1 to 100", 75)
    objective: str = setting("what is matched: gradient (the paper) or distribution (features)", "gradient")
    distance: str = setting(
        "what of the features: mean (their mean), kernel (all of them), or levels (those of every block)", "mean"
    )
    experts: int = setting(
        "networks trained in each experience, whose features are matched; 0: the one that learns, on its own course", 2
    )
    expert_steps: int = setting("training steps of each such network", 200)
    expert_width: int = setting("filters of each of its convolutions; 0 for as many as the network has that learns", 0)
    turned: str = setting("these networks also tell in what direction a picture is turned: yes or no", "no")
    updates: int = setting("updates of the memory of a class by features; 0 keeps what it starts as", 300)
    judged: float = setting("weight of the cross-entropy under a trained network, beside the features", 0.1)
    continued: str = setting(
        "the network goes on, sees as much of every class, new pictures beside the memory, and keeps to what it was: "
        "yes, or no (learned memories: a new one learns from the memory alone)",
        "no",
    )
    recipe: str = setting("how networks learn: paper (plain SGD), or strong (momentum, changed images, …)", "paper")
    changes: str = setting("how the strong recipe changes pictures: one (way at a time), or several (at once)", "one")
    mirrored: str = setting(
        "pictures mean the same in a mirror: yes, no, or auto (in colour, but not characters)", "auto"
    )
    looks: str = setting(
        "a picture is judged by one look at it, or by several (larger and smaller, too): one, several, or auto "
        "(several at characters)",
        "one",
    )
    outer: int = setting("networks drawn anew while condensing a class, K")
    inner: int = setting("real batches seen by each such network, T")
    matching: int = setting("updates of the memory for each real batch, I")
    training: int = setting("network steps between two real batches, J")
    condense_batch: int = setting("size of a real batch while condensing, B_C")
    condense_optimiser: str = setting(f"rule that updates the memory: {', '.join(OPTIMISERS)}")
    condense_rate: float = setting(
        "its learning rate, γ_C; by features in units of how much a number varies, and times 120/Q of Q > 120 images"
    )
    steps: int = setting("training steps for each experience, S")
    batch: int = setting("size of a training batch, B_T")
    rate: float = setting("learning rate of the network that learns, γ_T")

    @staticmethod
    def of(data_dir: Path | str | None = None, shape: tuple[int, int, int] | None = None, **given: Any) -> Experiment:
        """Fill an experiment from what is given; the preset has the rest, by the shape of the pictures."""
        fields = {field.name: field for field in dataclasses.fields(Experiment)}
        for name in given:
            if name not in fields:
                raise InputError(f"There is no setting {name!r}: {nearest(name, fields)}.")
        preset = given.get("preset", fields["preset"].default)
        if preset not in PRESETS:
            raise InputError(f"There is no preset {preset!r}: {nearest(str(preset), PRESETS)}.")
        dataset = given.get("dataset", fields["dataset"].default)
        shape = shape or SHAPES.get(str(dataset))
        if shape is None:
            from ccmcl.data import shape_of  # only what must be read needs what reads it

            shape = shape_of(dataset, data_dir)
        budget = Budget.parse(str(given.get("budget", fields["budget"].default)))
        filled = PRESETS[preset](shape, given.get("method"), budget.in_bytes)
        if given.get("reduction", 1) != 1 or given.get("frequencies") == 0:  # asked for in pixels
            filled = {name: value for name, value in filled.items() if name not in OF_FREQUENCIES}
        elif given.get("frequencies"):
            filled.pop("reduction", None)
        wanted = {**filled, **given}
        if budget.in_bytes and "bits" in filled and "bits" not in given and given.get("step", 1):
            if wanted.get("method") == "condensation" and wanted.get("frequencies"):
                learned = wanted["start"] == "noise" or LEARNING & given.keys()
                filled |= CODED | ({"updates": filled["updates"]} if learned else {})
        elif given.get("step"):  # numbers that are coded take what they need
            filled.pop("bits", None)
        if given.get("labels") == "soft" or given.get("reduction", 1) != 1:
            filled.pop("continued", None)  # it has no use for them, and would know what is stored by its being blurred
        if "experts" in filled and (given.get("experts") or {**filled, **given}.get("continued") != "yes"):
            filled |= EXPERTS[preset]
        if given.get("network") == "plain" and preset != "paper":  # which learns more slowly
            filled["rate"] = PLAIN_RATE
        if given.get("objective") == "gradient" and "objective" in filled:
            filled["condense_rate"] = PLAIN_RATE  # which has no units then
        made = Experiment(**{**filled, **given})
        ignored = [name for name in BY_EXPERTS if name in given]
        if ignored and "experts" in filled and not {"experts", "objective"} & given.keys() and not made.experts:
            raise InputError(
                f"The preset {preset} trains no experts, so {ignored[0]} would change nothing: "
                "give experts of at least 1."
            )
        ignored = [name for name in BY_GRADIENT if name in given]
        if ignored and "objective" not in given and made.objective != "gradient":
            raise InputError(
                f"The preset {preset} does not match gradients, so {ignored[0]} would change nothing: "
                "give the preset paper or the objective gradient."
            )
        return made

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_type(field.name, getattr(self, field.name), str(field.type))
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                what = name.rpartition("_")[2]
                raise InputError(f"There is no {what} {value!r}: {nearest(value, known)}.")
        if self.bits not in BITS:
            raise InputError(f"The setting bits must be 8, 16 or 32, not {self.bits}.")
        if not 1 <= self.quality <= 100:
            raise InputError(f"The setting quality must be from 1 to 100, not {self.quality}.")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise InputError(f"The setting {name} must be at least 1, not {getattr(self, name)}.")
        for name in ("blocks", "networks"):
            if getattr(self, name) > MOST_OF_ONE_KIND:
                raise InputError(f"The setting {name} must be at most {MOST_OF_ONE_KIND}, not {getattr(self, name)}.")
        if self.frequencies != "auto" and (isinstance(self.frequencies, str) or self.frequencies < 0):
            raise InputError(
                f"The setting frequencies must be auto or a number that is not negative, not {self.frequencies!r}."
            )
        for name in ("seed", "holdout", "training", "experts", "expert_width", "updates"):
            if getattr(self, name) < 0:
                raise InputError(f"The setting {name} must not be negative ({getattr(self, name)}).")
        if self.frequencies and self.reduction > 1:
            raise InputError("What is learned has fewer pixels (reduction) or some frequencies, not both.")
        if not (self.step == 0 or 0.01 <= self.step <= 10):
            raise InputError(f"The setting step must be 0, or from 0.01 to 10, not {self.step}.")
        object.__setattr__(self, "step", float(self.step))
        if self.step and (self.method != "condensation" or not self.frequencies or self.bits != 32):
            raise InputError(
                "Only frequencies of free images can be rounded to multiples of a step: give the method condensation, "
                "frequencies, and no bits; or the step 0."
            )
        if self.margin != "auto" and not re.fullmatch(r"\d{1,4}", self.margin):
            raise InputError(f"The setting margin must be auto or a number of pixels, not {self.margin!r}.")
        if self.margin.strip("0") and not self.frequencies:
            raise InputError("Only of frequencies a margin can be left out: give frequencies, or the margin 0.")
        if self.lens == "yes" and not self.frequencies:
            raise InputError("The setting lens needs to know how many frequencies networks see: give frequencies.")
        if self.continued == "yes" and self.method not in CONTINUED:
            raise InputError(
                f"The method {self.method} goes on in a way of its own: give continued no, or one of the methods "
                f"{', '.join(CONTINUED)}."
            )
        if self.filled == "yes" and self.method in ("finetune", "joint"):
            raise InputError(f"The method {self.method} has no budget to fill: give filled no.")
        if self.labels == "soft" and self.continued == "yes":
            raise InputError(
                "A network that goes on is told by itself what images are taken for, not by soft labels: "
                "give labels hard or continued no."
            )
        if not self.experts and self.labels == "soft":
            raise InputError("Soft labels are what experts take images for: give experts of at least 1.")
        if not self.experts and self.objective == "distribution" and self.continued == "no":
            raise InputError(
                "With experts 0 the memory is drawn by the network that learns, which must go on from experience to "
                "experience then: give continued yes, or experts of at least 1."
            )
        if not 0 <= self.judged <= sys.float_info.max:
            raise InputError(f"The setting judged must not be negative ({self.judged}).")
        object.__setattr__(self, "judged", float(self.judged))
        for name in ("ratio", "condense_rate", "rate"):
            if not 0 < getattr(self, name) <= sys.float_info.max:
                raise InputError(f"The setting {name} must be a positive number, not {getattr(self, name)}.")
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.margin != "auto":
            object.__setattr__(self, "margin", str(int(self.margin)))
        if not 1 / MOST_IMAGES <= self.ratio <= MOST_IMAGES:
            raise InputError(f"The setting ratio must be from {1 / MOST_IMAGES} to {MOST_IMAGES:,}, not {self.ratio}.")
        object.__setattr__(self, "budget", str(Budget.parse(self.budget)))

    def as_dict(self) -> dict[str, Any]:
        """Lay the settings out by name."""
        return dataclasses.asdict(self)

    @property
    def name(self) -> str:
        """The name of the run's folder: what it is about, and a hash of everything.

        A setting that is left at its default has no part in the hash, so that a setting which did not exist when a
        run was made does not change the name of that run.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        chosen = {name: value for name, value in self.as_dict().items() if value != defaults[name]}
        revised = {value: count for (name, value), count in REVISED.items() if chosen.get(name) == value}
        canonical = json.dumps({"format": FORMAT, **revised, **chosen}, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        dataset = re.sub(r"[^A-Za-z0-9-]+", "_", Path(self.dataset).name)[:40].strip("_-") or "data"
        budget = self.budget.replace("/", "_per_")
        return f"{dataset}-{self.method}-{budget}-{self.preset}-seed{self.seed}-{digest}"

    def sizes(self) -> list[int] | int:
        """Read how many classes each experience brings."""
        try:
            sizes = [int(word) for word in self.per_experience.split(",")]
        except ValueError:
            raise InputError(
                f"Cannot read the classes of each experience {self.per_experience!r}: "
                "give '2', or one number for each like '1,2,7'."
            ) from None
        return sizes if len(sizes) > 1 else sizes[0]


def from_dict(values: Mapping[str, Any]) -> Experiment:
    """Undo ``as_dict``."""
    try:
        return Experiment(**values)
    except TypeError as error:
        raise InputError(f"These are not the settings of an experiment of this version ({error}).") from error


def check_type(name: str, value: object, declared: str) -> None:
    """Refuse a value that is not of a setting's type."""
    expected: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (float, int),
        "int | str": (int, str),
    }
    if not isinstance(value, expected[declared]) or isinstance(value, bool):
        raise InputError(f"The setting {name} must be of type {declared}, not {value!r}.")
    if isinstance(value, int) and abs(value) >= MOST_WHOLE:
        raise InputError(f"The setting {name} must be smaller than 2¹²⁸.")
