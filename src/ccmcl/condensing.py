"""The jobs of an experience whose classes are condensed: networks that show the way, then each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Generator, Tensor

from ccmcl.budget import images_of
from ccmcl.condense import Condenser
from ccmcl.distribution import Courses, Matcher
from ccmcl.engine import capacity, widened
from ccmcl.forms import Form
from ccmcl.kinds import Composite, Exemplars, Learned, Pixels, Remembered, formed
from ccmcl.learn import STRONG, Shared, Trainer
from ccmcl.loop import State, checked, generator_for, placed
from ccmcl.memory import Memory
from ccmcl.nets import outputs_of
from ccmcl.plan import (
    COUNTS,
    SPARE,
    Learner,
    Plan,
    apart_of,
    chosen,
    expected,
    made_room,
    others_than,
    set_apart,
    too_small,
)
from ccmcl.sources import Source, Turned, Varied, directions
from ccmcl.stream import Experience
from ccmcl.threads import limited
from ccmcl.training import all_going_on, balanced
from ccmcl.values import eight_bit, unit

LOOKED_AT = 200
"""Pictures of a class that show how many bytes one takes."""


@limited(1)  # with more, what is remembered would be decoded to other last bits
def leading(plan: Plan, learner: Learner, experience: Experience) -> dict[str, Trainer]:
    """Lay out the jobs that train the networks which show the way: some experts, or the very ones that learn."""
    if plan.coded:  # before any work is lost if nothing fits
        last = plan.known(len(set(learner.memory) | set(experience.classes)))
        for label in experience.classes:
            hand = AtHand(pixels := experience.of_class(label), len(pixels))
            if expected(plan, looked_at(plan, hand), last) < 1:
                raise too_small(plan)
    if plan.own_course:
        return all_going_on(plan, learner, experience)
    return experts(plan, learner, experience)


def experts(plan: Plan, learner: Learner, experience: Experience) -> dict[str, Trainer]:
    """Lay out the jobs that train networks on the real pictures at hand beside what is remembered.

    They see about as much of every class, whether it is new or remembered.
    """
    if not plan.experts:
        return {}
    before = learner.memory
    outputs = plan.outputs(max([*before, *experience.classes]) + 1)
    style = replace(STRONG, average=0.0, mirrored=plan.recipe.style.mirrored)
    source: Source = Varied(balanced(plan, before, experience), outputs, style.mirrored)
    if plan.distribution.turned:
        source, outputs = Turned(source), outputs * directions(*plan.expert.shape[1:])
    return {
        f"expert {experience.index}-{number}": Trainer(
            lambda generator: plan.expert.init(generator, outputs),
            source,
            partial(plan.engine.gradient, Shared(plan.expert)),
            plan.distribution.expert_steps,
            plan.condensation.network_rate,
            generator_for(plan.seed, "expert", experience.index, number),
            plan.device,
            style,
        )
        for number in range(plan.experts)
    }


def courses(jobs: Mapping[str, Trainer], states: Mapping[str, State], plan: Plan) -> Courses:
    """Take the networks that show the way out of their last states: experts before and after, or on their course."""
    if plan.own_course:
        course = [checked(one, "the network") for name in jobs for one in jobs[name].course(states[name])]
        if plan.engine.graphs is not None:  # compiled once, not for every number of classes
            course = [widened(one, capacity(outputs_of(one))) for one in course]
        return Courses.through([placed(one, plan.device) for one in course])
    networks = []
    for name, job in jobs.items():
        index, _, number = name.partition(" ")[2].partition("-")
        start = job.start(generator_for(plan.seed, "expert", int(index), int(number)))
        networks.append((placed(start, plan.device), placed(job.finish(states[name]), plan.device)))
    return Courses.of(networks)


@limited(1)
def condensers(
    plan: Plan,
    learner: Learner,
    experience: Experience,
    method: str,
    trained: Courses | None = None,
    only: str | None = None,
) -> dict[str, Condenser | Matcher]:
    """Lay out the jobs that condense the classes of an experience. Each sees the buffer as it was when it began.

    They depend on nothing but what is given, so that any process can make and do them, or ``only`` one of them.
    """
    before = made_room(plan, learner, experience, method).memory
    outputs = plan.outputs(max([*before, *experience.classes]) + 1)
    classes = plan.sharing(len(set(before) | set(experience.classes)))
    count = COUNTS[method](plan, classes)
    images_before = (before.images() if before else torch.empty(0, *plan.net.shape)).to(plan.device)
    labels_before = (before.labels() if before else torch.empty(0, dtype=torch.int64)).to(plan.device)
    jobs: dict[str, Condenser | Matcher] = {}
    for label in experience.classes:
        name = f"condense {experience.index}-{label}"
        if only is not None and name != only:
            continue
        others = slice(None) if label not in before else labels_before != label
        generator = generator_for(plan.seed, "condense", experience.index, label)
        hand = at_hand(plan, before, experience, label)
        some = min(count, fitting_of(plan, hand, classes)) if plan.coded else count
        pixels, start = hand.pixels, starting(plan, method, some, hand, generator)
        if plan.objective == "distribution" and trained is not None:
            jobs[name] = Matcher(
                plan.expert,
                label,
                pixels.to(plan.device),
                start,
                trained,
                plan.distribution,
                plan.recipe.style.mirrored,
                generator,
                engine=plan.engine,
                device=plan.device,
                fixed=set_apart(plan, start),
            )
            continue
        jobs[name] = Condenser(
            plan.condensing,
            outputs,
            label,
            pixels.to(plan.device),
            start,
            images_before[others],
            labels_before[others],
            plan.condensation,
            generator,
            engine=plan.engine,
            device=plan.device,
        )
    return jobs


@dataclass(frozen=True)
class AtHand:
    """Pictures of a class: new ones, then what is remembered of it, so much of which was set apart."""

    pixels: Tensor
    new: int
    was: int = 0
    kept: Remembered | None = None
    places: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """which of the images that are kept these are"""

    def chosen(self, count: int, apart: int, generator: Generator) -> Tensor:
        """Choose so many, the first to be set apart: real ones that no network was shown after their own experience."""
        return chosen(self.new + self.was, len(self.pixels), count, apart, generator, self.was)

    def stored(self, places: Tensor) -> Tensor:
        """Say which of the images that are kept some of the pictures are."""
        return self.places[places - self.new]

    def encoded(self, places: Tensor, form: Form, small: tuple[int, int, int]) -> Tensor:
        """Turn pictures into the numbers that a memory is made of; those that are remembered so stay what they are.

        (Made larger and smaller again, a picture would be blurred a little more each time that its class comes.)
        """
        found = form.encoded(unit(self.pixels[places]), small)
        if isinstance(self.kept, Pixels | Composite) and self.kept.form == form:
            old = places >= self.new
            found[old] = self.kept.unmade()[self.stored(places[old])]
        return found


def at_hand(plan: Plan, memory: Memory, experience: Experience, label: int) -> AtHand:
    """Put pictures of a class together."""
    pixels = experience.of_class(label)
    if label not in memory:
        return AtHand(pixels, len(pixels))
    kept = memory[label]
    images, apart = as_pixels(kept), set_apart(plan, kept)
    away: dict[bytes, int] = {}  # a class of few pictures has some of them more than once
    for place, image in enumerate(images[:apart].numpy()):
        away.setdefault(image.tobytes(), place)
    places = torch.tensor([*away.values(), *range(apart, len(images))], dtype=torch.int64)
    return AtHand(torch.cat([pixels, images[places]]), len(pixels), len(away), kept, places)


def fitting_of(plan: Plan, hand: AtHand, classes: int) -> int:
    """Say how many of the pictures at hand to begin with: a few more than a class has room for once they are coded."""
    return max(1, min(len(hand.pixels), int(SPARE * expected(plan, looked_at(plan, hand), classes))))


def looked_at(plan: Plan, hand: AtHand) -> Pixels:
    """Code a few pictures, or what else a memory begins as, to see how many bytes one takes."""
    form, every = plan.learned("condensation"), len(hand.pixels)
    if plan.shape.start == "noise" and form.frequencies is not None:
        small = (1, 1, form.frequencies.numbers)
        numbers = Pixels.draw(Generator().manual_seed(0), LOOKED_AT, small, torch.float32).pixels
    else:
        numbers = hand.encoded(torch.arange(0, every, -(-every // LOOKED_AT)), form, plan.small())
    like = formed(Pixels, {"pixels": numbers}, form)
    assert isinstance(like, Pixels)
    return like


def starting(plan: Plan, method: str, count: int, hand: AtHand, generator: Generator) -> Learned:
    """Make what a class is condensed from: noise, or real pictures, each by itself and in pairs.

    Those to be set apart come first.
    """
    shape, form, small = plan.shape, plan.learned(method), plan.small()
    mixing = method == "composite"
    images = images_of(count, plan.ratio)
    if shape.start == "noise":
        if form.frequencies is not None:
            small = (1, 1, form.frequencies.numbers)
        drawn = (
            Composite.draw(generator, count, small, torch.float32, images)
            if mixing
            else Pixels.draw(generator, count, small, torch.float32)
        )
        return formed(type(drawn), drawn.tensors(), form)
    apart = apart_of(plan, min(count, images) if mixing else count, learned=True)
    every = len(hand.pixels)
    if shape.start == "typical" and count < every:
        away = hand.chosen(apart, apart, generator)
        found = typical(hand.encoded(others_than(away, every), form, small), count - apart, generator)
        pictures = torch.cat([hand.encoded(away, form, small), found])
    else:
        pictures = hand.encoded(hand.chosen(count, apart, generator), form, small)
    if not mixing:
        return formed(Pixels, {"pixels": pictures}, form)
    return formed(Composite, {"components": pictures, "weights": pairs(count, images, generator, apart)}, form)


def typical(pictures: Tensor, count: int, generator: Generator) -> Tensor:
    """Choose the pictures nearest to the centres of so many clusters, the largest cluster first.

    >>> line = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1]).reshape(5, 1, 1, 1)
    >>> typical(line, 2, torch.Generator().manual_seed(0)).flatten()
    tensor([0.1000, 5.0000])
    """
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]  # it takes a while to load
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rows = pictures.flatten(1)
    seed = int(torch.randint(1 << 31, (), generator=generator))
    with threadpool_limits(1):  # sums over threads would be rounded otherwise
        found = KMeans(count, n_init=1, max_iter=50, random_state=seed).fit(rows.double().numpy())
        distances = found.transform(rows.double().numpy())
    sizes = torch.bincount(torch.from_numpy(found.labels_).long(), minlength=count)
    order = sizes.argsort(descending=True, stable=True)
    nearest, taken = [], set[int]()
    for centre in order.tolist():
        ranked = torch.from_numpy(distances[:, centre]).argsort(stable=True).tolist()
        nearest.append(next(place for place in ranked if place not in taken))
        taken.add(nearest[-1])
    return pictures[torch.tensor(nearest)]


def pairs(count: int, images: int, generator: Generator, apart: int = 0) -> Tensor:
    """Weigh components into images: first each by itself, then each with another one, three to one.

    The first ones, which are set ``apart``, are mixed with none.

    >>> pairs(2, 3, torch.Generator().manual_seed(0)).T
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.7500, 0.2500]])
    """
    weights = torch.zeros(count, images, dtype=torch.float32)
    for image in range(images):
        own, mixed = image % count, count - apart
        if image < count or count == 1:
            weights[own, image] = 1.0
        else:
            own = (image - count) % mixed
            other = (own + 1 + int(torch.randint(mixed - 1, (), generator=generator))) % mixed
            weights[apart + own, image], weights[apart + other, image] = 0.75, 0.25
    return weights


@torch.no_grad()
def taken_for(plan: Plan, trained: Courses, learned: Learned, outputs: int) -> Tensor:
    """Say what the experts take images for, on average, among the classes seen so far."""
    images = learned.images().to(plan.device)
    total = torch.zeros(len(images), outputs, device=plan.device)
    for number in range(len(trained)):
        params = {name: tensor[number] for name, tensor in trained.end.items()}
        logits = torch.cat([plan.expert(params, part) for part in torch.split(images, 128)])
        total += torch.softmax(logits[:, :outputs], 1)
    return (total / len(trained)).to(torch.float16).cpu()


def as_pixels(kept: Remembered) -> Tensor:
    """Turn remembered images back into eight-bit pictures, to be joined with new ones of their class."""
    if isinstance(kept, Exemplars) and kept.form.size is None:
        return kept.pixels
    return eight_bit(kept.images())
