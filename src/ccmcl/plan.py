"""What a method needs to know, what goes from one experience to the next, and what fits into the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from ccmcl.budget import COUNT_BYTES, LABEL_BYTES, TARGET_BYTES, Budget, Layout, images_of
from ccmcl.coding import beside, bits_of
from ccmcl.condense import Condensation
from ccmcl.distribution import Distribution
from ccmcl.encoding import LONGEST, MODES
from ccmcl.engine import Engine
from ccmcl.errors import InputError
from ccmcl.forms import Form
from ccmcl.frequencies import Frequencies
from ccmcl.kinds import Composite, Encoded, Pixels, Remembered, count_of, nbytes
from ccmcl.learn import Recipe
from ccmcl.loop import CPU
from ccmcl.memory import Memory
from ccmcl.nets import ConvNet, Params, members_of, outputs_of
from ccmcl.sources import distinct
from ccmcl.stream import Experience

SPARE_OUTPUTS = 10
ONE_IN = 8
"""Of so many remembered images of a class, one is set apart where networks go on."""
SMALLEST_FILE = 30
"""No picture is encoded in fewer bytes."""
FEWEST_BITS = 0.25
"""Of pictures that show anything, a coded number takes no fewer."""
SPARE = 1.02
"""So many times as many images are learned as seem to fit once they are coded; what does not fit is left out."""
CHANNELS = tuple(MODES)
"""Of pictures that can be encoded."""


@dataclass(frozen=True)
class Shape:
    """What is stored of a class: how small, in what, started from what. The defaults are the paper's."""

    reduction: int = 1
    """pictures and components are stored at 1/this of their resolution"""
    bits: int = 32
    """of a learned number"""
    squash: bool = True
    """mixtures of components go through a sigmoid"""
    start: str = "noise"
    """what is learned starts from noise, from real pictures, or from those nearest to the centres of clusters"""
    soft: bool = False
    """each learned image is stored with what the experts take it for"""
    frequencies: int = 0
    """what is learned are so many frequencies of a picture, not its pixels"""
    codec: str = "raw"
    """stored pictures are files of this format"""
    quality: int = 75
    margin: int = 0
    """of the edge of pictures, so wide, no frequencies are kept"""
    step: float = 0.0
    """learned numbers are multiples of this, and coded in as few bits as they need"""

    def layout(self, targets: int) -> Layout:
        """Lay out what is counted, for labels of so many classes."""
        return Layout(self.reduction, self.bits, targets if self.soft else 0, self.frequencies)


@dataclass(frozen=True)
class Plan:
    """All that a method needs to know beside the data. ``classes`` is None where the stream is open-ended."""

    net: ConvNet
    budget: Budget
    ratio: float
    condensation: Condensation
    recipe: Recipe
    seed: int
    classes: int | None = None
    engine: Engine = field(default_factory=Engine)
    device: torch.device = CPU
    shape: Shape = Shape()
    objective: str = "gradient"
    distribution: Distribution = Distribution()  # noqa: RUF009
    continued: bool = False
    """a network that learns from a learned memory goes on, with new pictures beside it"""
    networks: int = 1
    """so many networks learn, each by itself, and judge pictures together"""
    filled: bool = False
    """the memory fills the budget from the first experience on, and makes room for classes as they come"""

    @property
    def experts(self) -> int:
        """The networks that are trained in each experience before its classes are condensed."""
        return self.distribution.experts if self.objective == "distribution" or self.shape.soft else 0

    @property
    def own_course(self) -> bool:
        """The network that learns shows the way itself, as it was at some moments of its course."""
        return self.continued and self.objective == "distribution" and not self.distribution.experts

    @property
    def coded(self) -> bool:
        """What is learned of a class takes as many bytes as it happens to need, of which only so many may be used."""
        return bool(self.shape.step) and self.budget.in_bytes

    @property
    def condensing(self) -> ConvNet:
        """What the networks are like whose gradients are matched: each image by itself, in a few blocks."""
        return ConvNet(**{field.name: getattr(self.net, field.name) for field in fields(ConvNet)})

    @property
    def expert(self) -> ConvNet:
        """What those are like whose features are matched."""
        if self.own_course:
            return self.net
        return replace(self.condensing, width=self.distribution.width or self.net.width)

    def small(self) -> tuple[int, int, int]:
        """The shape of a picture that is stored smaller."""
        channels, height, width = self.net.shape
        return channels, -(-height // self.shape.reduction), -(-width // self.shape.reduction)

    def form(self) -> Form:
        """How stored pictures become images."""
        return Form(None if self.shape.reduction == 1 else self.net.shape[1:])

    def learned(self, method: str) -> Form:
        """How what is learned becomes images."""
        shape = self.shape
        frequencies = Frequencies(self.net.shape, shape.frequencies, shape.margin) if shape.frequencies else None
        size = None if frequencies else self.form().size
        return Form(size, shape.squash and method == "composite", shape.bits, frequencies, shape.step)

    def outputs(self, seen: int) -> int:
        """The head of a condensing network: all classes of the stream, or tens of them while the end is open."""
        return self.classes or -(-seen // SPARE_OUTPUTS) * SPARE_OUTPUTS

    def steps(self, outputs: int) -> int:
        """The steps of a network that begins anew and is to tell so many classes apart."""
        if not self.recipe.style.growing or self.classes is None:
            return self.recipe.steps
        return max(1, -(-self.recipe.steps * min(outputs, self.classes) // self.classes))

    def sharing(self, seen: int) -> int:
        """The number of classes that share the budget: those declared, or those seen so far."""
        return seen if self.filled else self.known(seen)

    def known(self, seen: int) -> int:
        """The number of classes that a stored answer may be about: those declared, or those seen so far."""
        return max(self.classes or 0, seen)


@dataclass(frozen=True)
class Learner:
    """What goes from one experience to the next: the memory and the network, or several of them together."""

    memory: Memory
    params: Params | None = None

    @property
    def seen(self) -> int:
        """The number of classes that the network tells apart."""
        return 0 if self.params is None else outputs_of(self.params)

    def network(self, member: int) -> Params | None:
        """One of the networks; None if there is none yet."""
        return None if self.params is None else members_of(self.params)[member]


def components(plan: Plan, classes: int) -> int:
    """Count the components that a class may keep when so many classes share the budget."""
    return plan.budget.components(plan.net.shape, classes, plan.ratio, plan.shape.layout(plan.known(classes)))


def free_images(plan: Plan, classes: int) -> int:
    """Count the free images; of those that are coded, which differ in size, as many as could be at the very most."""
    layout = plan.shape.layout(plan.known(classes))
    if not plan.coded:
        return plan.budget.pixels(plan.net.shape, classes, layout)
    bits, room = FEWEST_BITS * layout.small(plan.net.shape), plan.budget.room(plan.net.shape, classes)
    if 8 * (room - LABEL_BYTES - COUNT_BYTES) < bits:
        raise too_small(plan)
    return plan.budget.affordable(int(8 * room / bits), plan.net.shape, classes, lambda count: int(bits * count) // 8)


def pictures(plan: Plan, classes: int, logits: int = 0) -> int:
    """Count the stored pictures; of encoded ones, which differ in size, as many as could be at the very most."""
    if plan.shape.codec == "raw":
        return plan.budget.exemplars(plan.net.shape, classes, logits, plan.shape.reduction)
    if plan.net.shape[0] not in CHANNELS:
        raise InputError(f"Pictures of {plan.net.shape[0]} channels cannot be stored as {plan.shape.codec}.")
    if max(plan.small()[1:]) > LONGEST[plan.shape.codec]:
        raise InputError(
            f"Pictures with sides of more than {LONGEST[plan.shape.codec]:,} pixels cannot be stored as "
            f"{plan.shape.codec}: give a reduction."
        )
    room = plan.budget.room(plan.net.shape, classes)
    if room < SMALLEST_FILE + LABEL_BYTES:
        raise too_small(plan)
    return plan.budget.affordable(room // SMALLEST_FILE, plan.net.shape, classes, lambda count: SMALLEST_FILE * count)


def with_logits(plan: Plan, classes: int) -> int:
    """Count the stored pictures that have logits beside them."""
    return pictures(plan, classes, logits=plan.known(classes))


def set_apart(plan: Plan, kept: Remembered) -> int:
    """Count the images of a class, the first ones, that no network is shown which goes on.

    They are real pictures, in the form of the others: where memories are learned, they stay what they began as. So a
    network can be asked, later, what it takes pictures of that class for.
    """
    learned = isinstance(kept, Pixels | Composite)
    components = len(kept.components) if isinstance(kept, Composite) else count_of(kept)
    return apart_of(plan, min(components, count_of(kept)), learned)


def apart_of(plan: Plan, stored: int, learned: bool) -> int:
    """Count those to be set apart of so many images, or components."""
    if not plan.continued or (learned and (plan.objective != "distribution" or plan.shape.start == "noise")):
        return 0
    return stored // ONE_IN


def chosen(fresh: int, every: int, count: int, apart: int, generator: Generator, was: int = 0) -> Int64[Tensor, "n"]:
    """Choose so many of ``every`` picture of a class, the first of them to be set ``apart``.

    Those are among the first ``fresh``, which no network was shown that goes on, and come nowhere else. Of new ones
    they are one in eight; of those that were set apart before, so many as there ``was``, all may stay so. Where
    pictures are few, some come more than once.

    >>> chosen(16, 20, 10, 2, Generator().manual_seed(0)).unique().shape
    torch.Size([10])
    """
    most = min(apart, max(1, (fresh - was) // ONE_IN + was))
    away = distinct(fresh, most, generator) if apart else torch.empty(0, dtype=torch.int64)
    others, wanted = others_than(away, every), count - apart
    if not len(others):
        others = away
    if wanted <= len(others):
        others = others[distinct(len(others), wanted, generator)]
    else:  # all of them, again and again
        rounds = [torch.randperm(len(others), generator=generator) for _ in range(-(-wanted // len(others)))]
        others = others[torch.cat(rounds)[:wanted]]
    return torch.cat([away[torch.arange(apart) % max(1, len(away))], others])


def others_than(away: Int64[Tensor, "m"], every: int) -> Int64[Tensor, "n"]:
    """Name all places but some.

    >>> others_than(torch.tensor([0, 2]), 4)
    tensor([1, 3])
    """
    left = torch.ones(every, dtype=torch.bool)
    left[away] = False
    return left.nonzero().flatten()


COUNTS: dict[str, Callable[[Plan, int], int]] = {
    "composite": components,
    "condensation": free_images,
    "rehearsal": pictures,
    "bic": with_logits,
}
"""How many pictures or components a class may keep by each method when so many classes share the budget."""


def made_room(plan: Plan, learner: Learner, experience: Experience, method: str) -> Learner:
    """Shrink what is remembered so that the classes of this experience fit into the budget beside it."""
    classes = plan.sharing(len(set(learner.memory) | set(experience.classes)))
    count = COUNTS[method](plan, classes)
    kept = {label: fitted(plan, fewer(plan, one, count), classes) for label, one in learner.memory.items()}
    return replace(learner, memory=Memory(kept))


def fewer(plan: Plan, kept: Remembered, count: int) -> Remembered:
    """Keep so many pictures, images or components of a class. Of those set apart, it keeps as large a part."""
    images, was = images_of(count, plan.ratio), set_apart(plan, kept)
    stored = min(count, images) if isinstance(kept, Composite) else count
    apart = apart_of(plan, stored, isinstance(kept, Pixels | Composite))
    return kept.shrunk(count, images, min(apart, was), was)


def fitted(plan: Plan, kept: Remembered, classes: int) -> Remembered:
    """Keep of what differs in size, files and coded images, what a class may have when so many share the budget."""
    if isinstance(kept, Encoded):
        return kept.only(fitting(plan, kept, classes))
    if not plan.coded or not isinstance(kept, Pixels) or not kept.form.step:
        return kept
    room, total = plan.budget.room(plan.net.shape, classes), count_of(kept)
    if nbytes(kept) <= room:
        return kept
    count = max(1, kept.within(room))  # about so many
    while nbytes(some := fewer(plan, kept, count)) > room:
        if count == 1:
            raise too_small(plan)
        count = max(1, count - max(1, count * (nbytes(some) - room) // nbytes(some)))
    while more := count * (room - nbytes(some)) // nbytes(some):
        larger = fewer(plan, kept, min(total, count + more))
        if nbytes(larger) > room:
            break
        some, count = larger, count_of(larger)
    return some


def expected(plan: Plan, like: Pixels, classes: int) -> float:
    """Say of how many images like these a class has room when so many share the budget."""
    room = plan.budget.room(plan.net.shape, classes) - LABEL_BYTES - COUNT_BYTES
    each = float(bits_of(like.pixels.flatten(1).int()).mean()) / 8
    each += TARGET_BYTES * plan.known(classes) * plan.shape.soft
    room -= beside(int(room / each) + 1, like.pixels[0].numel())
    return max(0.0, room / each)


def lasting(plan: Plan, kept: Remembered) -> Remembered:
    """Put those encoded pictures first that fit beside all classes that are to come, or say now that none does."""
    if not isinstance(kept, Encoded) or not plan.filled or plan.classes is None:
        return kept
    last = fitting(plan, kept, plan.classes)
    return kept.only(torch.cat([last, others_than(last, len(kept.ends))]))


def fitting(plan: Plan, kept: Encoded, classes: int) -> Int64[Tensor, "n"]:
    """Choose the encoded pictures that a class may have when so many share the budget.

    In the paper's count a byte of a file is a number, as it is of a picture; logits are not counted.
    """
    room, place = plan.budget.room(plan.net.shape, classes), kept.ends.element_size()
    if plan.budget.in_bytes:
        places = kept.within(room - LABEL_BYTES, place + (0 if kept.logits is None else kept.logits[0].nbytes))
    else:
        places = kept.within(room, 1)
    if not len(places):
        raise too_small(plan)
    return places


def too_small(plan: Plan) -> InputError:
    """Say that a budget does not do."""
    return InputError(f"A budget of {plan.budget} is smaller than one picture per class: give a larger one.")
