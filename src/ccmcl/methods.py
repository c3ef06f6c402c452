"""The methods of the paper's Table II and two bounds: what each remembers, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ccmcl.budget import LABEL_BYTES, Budget, Layout, images_of
from ccmcl.condense import Condensation, Condenser
from ccmcl.distribution import Courses, Distribution, Matcher
from ccmcl.engine import Batch, Classify, Engine, Judge
from ccmcl.errors import InputError
from ccmcl.forms import Form
from ccmcl.learn import (
    STRONG,
    Beside,
    Distil,
    Pictures,
    Recipe,
    Replay,
    Shared,
    Source,
    Trainer,
    Varied,
    WithLogits,
    distinct,
    logits_of,
    shares,
)
from ccmcl.loop import CPU, Drive, State, checked, generator_for, placed, section
from ccmcl.memory import Composite, Encoded, Exemplars, Learned, Memory, Pixels, Remembered, formed, unit
from ccmcl.nets import ConvNet, Params, outputs_of
from ccmcl.stream import Experience

SPARE_OUTPUTS = 10
EXPERT_RATE = 0.01
SMALLEST_FILE = 64
"""No picture is encoded in fewer bytes, with what is stored beside it."""


@dataclass(frozen=True)
class Shape:
    """What is stored of a class: how small, in what, started from what. The defaults are the paper's."""

    reduction: int = 1
    """pictures and components are stored at 1/this of their resolution"""
    bits: int = 32
    """of a learned number"""
    squash: bool = True
    """mixtures of components go through a sigmoid"""
    real: bool = False
    """what is learned starts from real pictures, not from noise"""
    soft: bool = False
    """each learned image is stored with what the experts take it for"""
    codec: str = "raw"
    """stored pictures are files of this format"""
    quality: int = 75

    def layout(self, targets: int) -> Layout:
        """Lay out what is counted, for labels of so many classes."""
        return Layout(self.reduction, self.bits, targets if self.soft else 0)


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

    @property
    def experts(self) -> int:
        """The networks that are trained in each experience before its classes are condensed."""
        return self.distribution.experts if self.objective == "distribution" or self.shape.soft else 0

    def small(self) -> tuple[int, int, int]:
        """The shape of what is stored of a picture."""
        channels, height, width = self.net.shape
        return channels, -(-height // self.shape.reduction), -(-width // self.shape.reduction)

    def form(self, squash: bool, bits: int = 32) -> Form:
        """How what is stored becomes images."""
        size = None if self.shape.reduction == 1 else self.net.shape[1:]
        return Form(size, squash, bits)

    def outputs(self, seen: int) -> int:
        """The head of a condensing network: all classes of the stream, or tens of them while the end is open."""
        return self.classes or -(-seen // SPARE_OUTPUTS) * SPARE_OUTPUTS

    def sharing(self, seen: int) -> int:
        """The number of classes that share the budget: those declared, or those seen so far."""
        return max(self.classes or 0, seen)


@dataclass(frozen=True)
class Learner:
    """What goes from one experience to the next: the memory and the network."""

    memory: Memory
    params: Params | None = None

    @property
    def seen(self) -> int:
        """The number of classes that the network tells apart."""
        return 0 if self.params is None else outputs_of(self.params)


Meet = Callable[[Plan, Learner, Experience, Drive], Learner]
"""Meets one experience: comes out with a new memory and a new network."""


@dataclass(frozen=True)
class Method:
    """A method by what it does with an experience and how much it keeps."""

    meet: Meet
    about: str
    kinds: tuple[str, ...] = ()
    """what it may remember of a class"""
    logits: bool = False
    """stores logits beside pictures"""
    count: Callable[[Plan, int], int] | None = None
    """how many pictures or components a class may keep when so many classes share the budget"""
    keeps_all: bool = False
    """keeps every picture it has met, so its memory is the data themselves"""


def composite(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Condense each class into components and weights, then learn from the memory alone (the paper's method)."""
    return _condense_and_learn(plan, learner, experience, drive, "composite")


def condensation(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Condense each class into free images, then learn from the memory alone."""
    return _condense_and_learn(plan, learner, experience, drive, "condensation")


def rehearsal(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Go on learning from new pictures and stored ones, half and half; then store some of the new."""
    learner = _made_room(plan, learner, experience, METHODS["rehearsal"])
    params = _go_on(plan, learner, experience, drive)
    return Learner(_store(plan, learner.memory, experience, METHODS["rehearsal"]), params)


def bic(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Rehearse while keeping the stored logits, then correct the bias towards the newest classes."""
    learner = _made_room(plan, learner, experience, METHODS["bic"])
    if learner.params is not None:
        learner = replace(learner, params={k: v for k, v in learner.params.items() if k != "correction"})
    params = _go_on(plan, learner, experience, drive, keep_logits=True)

    def judge(pixels: Tensor) -> Tensor:
        return logits_of(plan.net, params, pixels, device=plan.device)

    memory = _store(plan, learner.memory, experience, METHODS["bic"], judge)
    newest = [label for label in experience.classes if label not in learner.memory]
    if len(learner.memory) and newest:
        params = params | {"correction": _correction(plan, memory, params, newest, experience.index, drive)}
    return Learner(memory, params)


def finetune(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Go on learning from the new pictures alone and remember nothing: the lower bound."""
    return Learner(learner.memory, _go_on(plan, learner, experience, drive))


def joint(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Keep every picture and learn from all of them anew: the upper bound."""
    memory = everything(learner.memory, [experience])
    pixels = torch.cat([kept.tensors()["pixels"] for kept in memory.values()])
    pictures = Pictures(pixels.to(plan.device), memory.labels().to(plan.device), plan.recipe.batch)
    return Learner(memory, _learn(plan, experience, drive, max(memory) + 1, pictures))


def _pictures(plan: Plan, classes: int, logits: int = 0) -> int:
    """Count the pictures that a class may store; of encoded ones in bytes, as many as could be at the very most."""
    if plan.shape.codec != "raw" and plan.budget.in_bytes:
        return max(1, (plan.budget.share(classes) - LABEL_BYTES) // SMALLEST_FILE)
    return plan.budget.exemplars(plan.net.shape, classes, logits, plan.shape.reduction)


METHODS: dict[str, Method] = {
    "composite": Method(
        composite,
        "components and mixing weights, learned (the paper's method)",
        kinds=(Composite.kind,),
        count=lambda plan, classes: plan.budget.components(
            plan.net.shape, classes, plan.ratio, plan.shape.layout(plan.sharing(classes))
        ),
    ),
    "condensation": Method(
        condensation,
        "free images, learned",
        kinds=(Pixels.kind,),
        count=lambda plan, classes: plan.budget.pixels(
            plan.net.shape, classes, plan.shape.layout(plan.sharing(classes))
        ),
    ),
    "rehearsal": Method(
        rehearsal,
        "stored pictures",
        kinds=(Exemplars.kind, Encoded.kind),
        count=_pictures,
    ),
    "bic": Method(
        bic,
        "stored pictures with their logits, bias corrected",
        kinds=(Exemplars.kind, Encoded.kind),
        logits=True,
        count=lambda plan, classes: _pictures(plan, classes, logits=plan.sharing(classes)),
    ),
    "finetune": Method(finetune, "no memory: the lower bound"),
    "joint": Method(joint, "all data at once: the upper bound", kinds=(Exemplars.kind,), keeps_all=True),
}


def everything(memory: Memory, experiences: Iterable[Experience]) -> Memory:
    """Add every picture of some experiences to a memory."""
    for experience in experiences:
        for label in experience.classes:
            pixels = experience.of_class(label)
            if label in memory:
                pixels = torch.cat([memory[label].tensors()["pixels"], pixels])
            memory = memory.plus(label, Exemplars(pixels))
    return memory


def _made_room(plan: Plan, learner: Learner, experience: Experience, method: Method) -> Learner:
    """Shrink what is remembered so that the classes of this experience fit into the budget beside it."""
    assert method.count is not None
    classes = plan.sharing(len(set(learner.memory) | set(experience.classes)))
    count = method.count(plan, classes)
    kept = {label: _fitted(plan, one.shrunk(count), classes) for label, one in learner.memory.items()}
    return replace(learner, memory=Memory(kept))


def _fitted(plan: Plan, kept: Remembered, classes: int) -> Remembered:
    """Keep of encoded pictures, which differ in size, as many as a class may have when so many share the budget."""
    if not isinstance(kept, Encoded) or not plan.budget.in_bytes:
        return kept
    count = kept.within(plan.budget.share(classes) - LABEL_BYTES)
    if count < 1:
        raise InputError(f"A budget of {plan.budget} is smaller than one picture per class: give a larger one.")
    return kept.shrunk(count)


def experts(plan: Plan, learner: Learner, experience: Experience, method: str) -> dict[str, Trainer]:
    """Lay out the jobs that train networks on the real pictures at hand beside what is remembered."""
    if not plan.experts:
        return {}
    before = _made_room(plan, learner, experience, METHODS[method]).memory
    outputs = plan.outputs(max([*before, *experience.classes]) + 1)
    style = replace(STRONG, average=0.0, mirrored=plan.recipe.style.mirrored)
    half = max(1, plan.recipe.batch // 2)
    batch = half if before else plan.recipe.batch
    pictures = Pictures(experience.pixels.to(plan.device), experience.labels.to(plan.device), batch)
    source: Source = pictures
    if before:
        images, labels = before.images().to(plan.device), before.labels().to(plan.device)
        source = Beside(pictures, Replay(images, labels, half, weighting=False))
    source = Varied(source, outputs, style.mirrored)
    return {
        f"expert {experience.index}-{number}": Trainer(
            lambda generator: plan.net.init(generator, outputs),
            source,
            partial(plan.engine.gradient, Shared(plan.net)),
            plan.distribution.expert_steps,
            EXPERT_RATE,
            generator_for(plan.seed, "expert", experience.index, number),
            plan.device,
            style,
        )
        for number in range(plan.experts)
    }


def courses(jobs: Mapping[str, Trainer], states: Mapping[str, State], plan: Plan) -> Courses:
    """Take the experts' networks, before and after, out of their last states."""
    networks = []
    for name, job in jobs.items():
        index, _, number = name.partition(" ")[2].partition("-")
        start = job.start(generator_for(plan.seed, "expert", int(index), int(number)))
        networks.append((placed(start, plan.device), placed(job.finish(states[name]), plan.device)))
    return Courses.of(networks)


def condensers(
    plan: Plan, learner: Learner, experience: Experience, method: str, trained: Courses | None = None
) -> dict[str, Condenser | Matcher]:
    """Lay out the jobs that condense the classes of an experience. Each sees the buffer as it was when it began.

    They depend on nothing but what is given, so that any process can make and do them.
    """
    count_of = METHODS[method].count
    assert count_of is not None
    before = _made_room(plan, learner, experience, METHODS[method]).memory
    outputs = plan.outputs(max([*before, *experience.classes]) + 1)
    count = count_of(plan, plan.sharing(len(set(before) | set(experience.classes))))
    images_before = (before.images() if before else torch.empty(0, *plan.net.shape)).to(plan.device)
    labels_before = (before.labels() if before else torch.empty(0, dtype=torch.int64)).to(plan.device)
    jobs: dict[str, Condenser | Matcher] = {}
    for label in experience.classes:
        others = slice(None) if label not in before else labels_before != label
        generator = generator_for(plan.seed, "condense", experience.index, label)
        pixels = experience.of_class(label)
        if label in before:
            pixels = torch.cat([pixels, as_pixels(before[label])])
        start = _start(plan, method, count, pixels, generator)
        name = f"condense {experience.index}-{label}"
        if plan.objective == "distribution" and trained is not None:
            jobs[name] = Matcher(
                plan.net,
                label,
                pixels.to(plan.device),
                start,
                trained,
                plan.distribution,
                plan.recipe.style.mirrored,
                generator,
                engine=plan.engine,
                device=plan.device,
            )
            continue
        jobs[name] = Condenser(
            plan.net,
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


def _start(plan: Plan, method: str, count: int, pixels: Tensor, generator: Generator) -> Learned:
    """Make what a class is condensed from: noise, or real pictures that components and weights are fitted to."""
    shape, small = plan.shape, plan.small()
    mixing = method == "composite"
    form = plan.form(shape.squash and mixing, shape.bits)
    images = images_of(count, plan.ratio)
    if not shape.real:
        drawn = (
            Composite.draw(generator, count, small, torch.float32, images)
            if mixing
            else Pixels.draw(generator, count, small, torch.float32)
        )
        return formed(type(drawn), drawn.tensors(), form)
    chosen = torch.randint(len(pixels), (count,), generator=generator)
    if count <= len(pixels):
        chosen = distinct(len(pixels), count, generator)
    pictures = reduced(unit(pixels[chosen]), small)
    if not mixing:
        return formed(Pixels, {"pixels": pictures}, form)
    components = torch.logit(pictures, eps=0.01) if shape.squash else pictures
    return formed(Composite, {"components": components, "weights": pairs(count, images, generator)}, form)


def reduced(images: Tensor, small: tuple[int, int, int]) -> Tensor:
    """Make pictures smaller, each pixel the mean of those it stands for."""
    return images if images.shape[-2:] == small[-2:] else F.interpolate(images, size=small[-2:], mode="area")


def pairs(count: int, images: int, generator: Generator) -> Tensor:
    """Weigh components into images: first each by itself, then each with another one, three to one.

    >>> pairs(2, 3, torch.Generator().manual_seed(0)).T
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.7500, 0.2500]])
    """
    weights = torch.zeros(count, images)
    for image in range(images):
        own = image % count
        if image < count or count == 1:
            weights[own, image] = 1.0
        else:
            other = (own + 1 + int(torch.randint(count - 1, (), generator=generator))) % count
            weights[own, image], weights[other, image] = 0.75, 0.25
    return weights


def _condense_and_learn(plan: Plan, learner: Learner, experience: Experience, drive: Drive, method: str) -> Learner:
    """Algorithm 2 for one experience."""
    training = experts(plan, learner, experience, method)
    trained = courses(training, drive(training), plan) if training else None
    jobs = condensers(plan, learner, experience, method, trained)
    memory = _made_room(plan, learner, experience, METHODS[method]).memory
    for name, state in drive(jobs).items():
        learned = jobs[name].finish(state)
        checked(learned.tensors(), "the memory (condense_rate)")
        if plan.shape.soft and trained is not None:
            learned = replace(
                learned, targets=_taken_for(plan, trained, learned, max([*memory, *experience.classes]) + 1)
            )
        memory = memory.plus(jobs[name].label, learned)
    return Learner(memory, _learn(plan, experience, drive, max(memory) + 1, _replay(plan, memory, plan.recipe.batch)))


@torch.no_grad()
def _taken_for(plan: Plan, trained: Courses, learned: Learned, outputs: int) -> Tensor:
    """Say what the experts take images for, on average, among the classes seen so far."""
    images = learned.images().to(plan.device)
    total = torch.zeros(len(images), outputs, device=plan.device)
    for number in range(len(trained)):
        params = {name: tensor[number] for name, tensor in trained.end.items()}
        logits = torch.cat([plan.net(params, part) for part in torch.split(images, 128)])
        total += torch.softmax(logits[:, :outputs], 1)
    return (total / len(trained)).to(torch.float16).cpu()


def _replay(plan: Plan, memory: Memory, batch: int) -> Replay:
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    weighting = plan.engine.weighting and not plan.recipe.style.varied
    soft = [kept.tensors()["targets"] for kept in memory.values() if "targets" in kept.tensors()]
    if soft:
        outputs = max(memory) + 1
        taken = torch.cat([shares(part, outputs, images) for part in soft]).to(plan.device)
        labels = (shares(labels, outputs, images) + taken) / 2
    return Replay(images, labels, batch, weighting)


def _learn(plan: Plan, experience: Experience, drive: Drive, outputs: int, source: Source) -> Params:
    """Train a new network."""
    judge: Judge = Classify(plan.net)
    if isinstance(source, Replay) and source.labels.ndim > 1:
        judge = Shared(plan.net)
    return _train(
        plan, lambda generator: plan.net.init(generator, outputs), source, judge, experience.index, drive, outputs
    )


def _train(
    plan: Plan,
    start: Callable[[Generator], Params],
    source: Source,
    judge: Judge,
    index: int,
    drive: Drive,
    outputs: int,
) -> Params:
    """Train a network from a start to tell so many classes apart, in the experience of this index."""
    style = plan.recipe.style
    if style.varied:
        source = Varied(source, outputs, style.mirrored)
        judge = Shared(plan.net) if isinstance(judge, Classify) else judge
    job = Trainer(
        start,
        source,
        partial(plan.engine.gradient, judge),
        plan.recipe.steps,
        plan.recipe.rate,
        generator_for(plan.seed, "learn", index),
        plan.device,
        style,
    )
    name = f"learn {index}"
    return checked(job.finish(drive({name: job})[name]), "the network")


def _go_on(plan: Plan, learner: Learner, experience: Experience, drive: Drive, keep_logits: bool = False) -> Params:
    """Train the network on, on batches of new pictures, half of each from the buffer where there is one."""
    old, memory, outputs = learner.params, learner.memory, max([learner.seen - 1, *experience.classes]) + 1
    half = max(1, plan.recipe.batch // 2)
    pictures = Pictures(experience.pixels.to(plan.device), experience.labels.to(plan.device), half)
    source: Source = pictures
    judge: Judge = Classify(plan.net)
    if memory and keep_logits:
        past = outputs - len([label for label in experience.classes if label not in memory])
        source, judge = _with_logits(plan, pictures, memory, outputs, past / outputs), Distil(plan.net)
    elif memory:
        source = Beside(pictures, _replay(plan, memory, half))

    def start(generator: Generator) -> Params:
        return plan.net.init(generator, outputs) if old is None else plan.net.grow(old, outputs, generator)

    return _train(plan, start, source, judge, experience.index, drive, outputs)


def _with_logits(plan: Plan, new: Pictures, memory: Memory, outputs: int, weight: float) -> WithLogits:
    """Join batches of new pictures with stored ones and the logits stored beside these."""
    stored = [kept.tensors()["logits"] for kept in memory.values()]
    logits = torch.cat([F.pad(part, (0, outputs - part.shape[1])) for part in stored]).to(plan.device)
    lengths = torch.cat([torch.full((len(part),), part.shape[1]) for part in stored])
    known = (torch.arange(outputs) < lengths[:, None]).to(logits)
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    weighting = plan.engine.weighting and not plan.recipe.style.varied
    return WithLogits(new, images, labels, logits, known, new.batch, weight, weighting)


def _store(
    plan: Plan,
    memory: Memory,
    experience: Experience,
    method: Method,
    judge: Callable[[Tensor], Tensor] | None = None,
) -> Memory:
    """Store random pictures of each class of the experience, with what ``judge`` says of them."""
    assert method.count is not None
    classes = plan.sharing(len(set(memory) | set(experience.classes)))
    count = method.count(plan, classes)
    for label in experience.classes:
        pixels = experience.of_class(label)
        if label in memory:
            pixels = torch.cat([pixels, as_pixels(memory[label])])
        generator = generator_for(plan.seed, "store", experience.index, label)
        chosen = pixels[distinct(len(pixels), min(count, len(pixels)), generator)]
        logits = None if judge is None else judge(chosen)
        memory = memory.plus(label, _fitted(plan, _kept(plan, chosen, logits), classes))
    return memory


def _kept(plan: Plan, pixels: Tensor, logits: Tensor | None) -> Exemplars | Encoded:
    """Store pictures: smaller and encoded, if asked for."""
    shape, form = plan.shape, plan.form(squash=False)
    if shape.reduction > 1:
        pixels = as_eight_bit(reduced(unit(pixels), plan.small()))
    if shape.codec == "raw":
        return Exemplars(pixels, logits, form)
    return Encoded.of(pixels, shape.codec, shape.quality, logits, form)


def _correction(plan: Plan, memory: Memory, params: Params, newest: list[int], index: int, drive: Drive) -> Tensor:
    """Fit one scale and one shift for the newest classes' logits on the buffer; all others keep theirs."""
    images, labels = memory.images(), memory.labels()
    with torch.no_grad():
        logits = torch.cat([plan.net(params, part) for part in torch.split(images, 500)])
    mask = torch.zeros(logits.shape[1])
    mask[newest] = 1.0

    def judge(fit: Params, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits * (1 + (fit["scale"] - 1) * mask) + fit["shift"] * mask, labels)

    def gradient(fit: Params, batch: Batch) -> tuple[Params, Tensor]:
        gradients, value = torch.func.grad_and_value(judge)(fit, *batch)
        return gradients, value

    job = Trainer(
        lambda _: {"scale": torch.ones(()), "shift": torch.zeros(())},
        Answers(logits, labels, plan.recipe.batch),
        gradient,
        plan.recipe.steps,
        plan.recipe.rate,
        generator_for(plan.seed, "correct", index),
    )
    name = f"correct {index}"
    fit = checked(section(drive({name: job})[name], "params"), "the correction")
    return torch.stack([1 + (fit["scale"] - 1) * mask, fit["shift"] * mask])


@dataclass(frozen=True)
class Answers:
    """Batches of logits and labels, with replacement."""

    logits: Tensor
    labels: Tensor
    batch: int

    @property
    def count(self) -> int:
        """The answers of a batch."""
        return self.batch

    def draw(self, generator: Generator) -> Tensor:
        """Draw the places."""
        return torch.randint(len(self.labels), (self.batch,), generator=generator)

    def take(self, drawn: Tensor) -> Batch:
        """Return logits and labels."""
        return self.logits[drawn], self.labels[drawn]


def as_pixels(kept: Remembered) -> Tensor:
    """Turn remembered images back into eight-bit pictures, to be joined with new ones of their class."""
    if isinstance(kept, Exemplars) and kept.form.size is None:
        return kept.pixels
    return as_eight_bit(kept.images())


def as_eight_bit(images: Tensor) -> Tensor:
    """Round images to eight bits."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def plan_steps(method: str, plan: Plan, groups: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """Count the steps of each kind of work that a whole stream takes, for an estimate of the time."""
    learning = {"learn": plan.recipe.steps * len(groups)}
    if method in ("composite", "condensation"):
        each, trained = plan.condensation.outer * plan.condensation.inner, {}
        if plan.objective == "distribution":
            each = plan.distribution.updates
        if plan.experts:
            trained = {"expert": plan.experts * plan.distribution.expert_steps * len(groups)}
        return {**trained, "condense": each * sum(map(len, groups)), **learning}
    if method == "bic":
        return {**learning, "correct": plan.recipe.steps * (len(groups) - 1)}
    return learning


def check(plan: Plan, method: str, classes: int) -> None:
    """Raise an ``InputError`` now if the budget of a method cannot hold so many classes."""
    count = METHODS[method].count
    if count is not None:
        count(plan, plan.sharing(classes))
