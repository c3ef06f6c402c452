"""The methods of the paper's Table II and two bounds: what each remembers, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ccmcl.budget import Budget, images_of
from ccmcl.condense import Condensation, Condenser
from ccmcl.engine import Batch, Classify, Engine, Judge
from ccmcl.learn import Beside, Distil, Pictures, Recipe, Replay, Source, Trainer, WithLogits, distinct, logits_of
from ccmcl.loop import CPU, Drive, checked, generator_for, placed, section
from ccmcl.memory import Composite, Exemplars, Learned, Memory, Pixels, Remembered
from ccmcl.nets import ConvNet, Params, outputs_of
from ccmcl.stream import Experience

SPARE_OUTPUTS = 10


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
    stored: frozenset[str] = frozenset()
    """the names of the tensors that it stores of a class"""
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


METHODS: dict[str, Method] = {
    "composite": Method(
        composite,
        "components and mixing weights, learned (the paper's method)",
        stored=frozenset({"components", "weights"}),
        count=lambda plan, classes: plan.budget.components(plan.net.shape, classes, plan.ratio),
    ),
    "condensation": Method(
        condensation,
        "free images, learned",
        stored=frozenset({"pixels"}),
        count=lambda plan, classes: plan.budget.pixels(plan.net.shape, classes),
    ),
    "rehearsal": Method(
        rehearsal,
        "stored pictures",
        stored=frozenset({"pixels"}),
        count=lambda plan, classes: plan.budget.exemplars(plan.net.shape, classes),
    ),
    "bic": Method(
        bic,
        "stored pictures with their logits, bias corrected",
        stored=frozenset({"pixels", "logits"}),
        count=lambda plan, classes: plan.budget.exemplars(plan.net.shape, classes, logits=plan.sharing(classes)),
    ),
    "finetune": Method(finetune, "no memory: the lower bound"),
    "joint": Method(joint, "all data at once: the upper bound", stored=frozenset({"pixels"}), keeps_all=True),
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
    return replace(learner, memory=Memory({label: kept.shrunk(count) for label, kept in learner.memory.items()}))


def condensers(plan: Plan, learner: Learner, experience: Experience, method: str) -> dict[str, Condenser]:
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
    jobs = {}
    for label in experience.classes:
        others = slice(None) if label not in before else labels_before != label
        generator = generator_for(plan.seed, "condense", experience.index, label)
        pixels = experience.of_class(label)
        if label in before:
            pixels = torch.cat([pixels, as_pixels(before[label])])
        start: Learned
        if method == "composite":
            images = images_of(count, plan.ratio)
            start = Composite.draw(generator, count, plan.net.shape, torch.float32, images)
        else:
            start = Pixels.draw(generator, count, plan.net.shape, torch.float32)
        jobs[f"condense {experience.index}-{label}"] = Condenser(
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


def _condense_and_learn(plan: Plan, learner: Learner, experience: Experience, drive: Drive, method: str) -> Learner:
    """Algorithm 2 for one experience."""
    jobs = condensers(plan, learner, experience, method)
    memory = _made_room(plan, learner, experience, METHODS[method]).memory
    for name, state in drive(jobs).items():
        learned = jobs[name].finish(state)
        checked(learned.tensors(), "the memory (condense_rate)")
        memory = memory.plus(jobs[name].label, learned)
    return Learner(memory, _learn(plan, experience, drive, max(memory) + 1, _replay(plan, memory, plan.recipe.batch)))


def _replay(plan: Plan, memory: Memory, batch: int) -> Replay:
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    return Replay(images, labels, batch, plan.engine.weighting)


def _learn(plan: Plan, experience: Experience, drive: Drive, outputs: int, source: Source) -> Params:
    """Train a new network."""
    return _train(
        plan,
        lambda generator: plan.net.init(generator, outputs),
        source,
        Classify(plan.net),
        experience.index,
        drive,
    )


def _train(
    plan: Plan, start: Callable[[Generator], Params], source: Source, judge: Judge, index: int, drive: Drive
) -> Params:
    """Train a network from a start, in the experience of this index."""
    job = Trainer(
        start,
        source,
        partial(plan.engine.gradient, judge),
        plan.recipe.steps,
        plan.recipe.rate,
        generator_for(plan.seed, "learn", index),
        plan.device,
    )
    name = f"learn {index}"
    return checked(placed(section(drive({name: job})[name], "params"), CPU), "the network")


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

    return _train(plan, start, source, judge, experience.index, drive)


def _with_logits(plan: Plan, new: Pictures, memory: Memory, outputs: int, weight: float) -> WithLogits:
    """Join batches of new pictures with stored ones and the logits stored beside these."""
    stored = [kept.tensors()["logits"] for kept in memory.values()]
    logits = torch.cat([F.pad(part, (0, outputs - part.shape[1])) for part in stored]).to(plan.device)
    lengths = torch.cat([torch.full((len(part),), part.shape[1]) for part in stored])
    known = (torch.arange(outputs) < lengths[:, None]).to(logits)
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    return WithLogits(new, images, labels, logits, known, new.batch, weight, plan.engine.weighting)


def _store(
    plan: Plan,
    memory: Memory,
    experience: Experience,
    method: Method,
    judge: Callable[[Tensor], Tensor] | None = None,
) -> Memory:
    """Store random pictures of each class of the experience, with what ``judge`` says of them."""
    assert method.count is not None
    count = method.count(plan, plan.sharing(len(set(memory) | set(experience.classes))))
    for label in experience.classes:
        pixels = experience.of_class(label)
        if label in memory:
            pixels = torch.cat([pixels, as_pixels(memory[label])])
        generator = generator_for(plan.seed, "store", experience.index, label)
        chosen = pixels[distinct(len(pixels), min(count, len(pixels)), generator)]
        memory = memory.plus(label, Exemplars(chosen, None if judge is None else judge(chosen)))
    return memory


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

    def draw(self, generator: Generator) -> Tensor:
        """Draw the places."""
        return torch.randint(len(self.labels), (self.batch,), generator=generator)

    def take(self, drawn: Tensor) -> Batch:
        """Return logits and labels."""
        return self.logits[drawn], self.labels[drawn]


def as_pixels(kept: Remembered) -> Tensor:
    """Turn remembered images back into eight-bit pictures, to be joined with new ones of their class."""
    tensors = kept.tensors()
    if "pixels" in tensors and tensors["pixels"].dtype == torch.uint8:
        return tensors["pixels"]
    return (kept.images().clamp(0, 1) * 255).round().to(torch.uint8)


def plan_steps(method: str, plan: Plan, groups: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """Count the steps of each kind of work that a whole stream takes, for an estimate of the time."""
    learning = {"learn": plan.recipe.steps * len(groups)}
    if method in ("composite", "condensation"):
        each = plan.condensation.outer * plan.condensation.inner
        return {"condense": each * sum(map(len, groups)), **learning}
    if method == "bic":
        return {**learning, "correct": plan.recipe.steps * (len(groups) - 1)}
    return learning


def check(plan: Plan, method: str, classes: int) -> None:
    """Raise an ``InputError`` now if the budget of a method cannot hold so many classes."""
    count = METHODS[method].count
    if count is not None:
        count(plan, plan.sharing(classes))
