"""The methods of the paper's Table II and two bounds: what each remembers, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ccmcl.condensing import AtHand, as_pixels, at_hand, condensers, courses, leading, taken_for
from ccmcl.engine import Batch, Classify, Judge
from ccmcl.errors import InputError
from ccmcl.forms import enlargeable, reduced
from ccmcl.kinds import Composite, Encoded, Exemplars, Pixels
from ccmcl.learn import Distil, Shared, Trainer, at_once, logits_of
from ccmcl.loop import Drive, checked, generator_for, section
from ccmcl.memory import Memory
from ccmcl.nets import Params, together
from ccmcl.plan import COUNTS, Learner, Plan, apart_of, fitted, lasting, made_room
from ccmcl.sources import Beside, Evenly, Pictures, Replay, Source, WithLogits, shares
from ccmcl.stream import Experience
from ccmcl.training import all_going_on, all_impartial, grown, learning, outputs_after, trainer
from ccmcl.values import eight_bit, unit

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
    condenses: bool = False
    """learns what it remembers"""
    anew: bool = False
    """begins every experience with a new network, unless it is to go on"""
    keeps_all: bool = False
    """keeps every picture it has met, so its memory is the data themselves"""


def composite(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Condense each class into components and weights, and learn from the memory (the paper's method)."""
    return _condense_and_learn(plan, learner, experience, drive, "composite")


def condensation(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Condense each class into free images, and learn from the memory."""
    return _condense_and_learn(plan, learner, experience, drive, "condensation")


def rehearsal(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Go on learning from new pictures and stored ones, half and half; then store some of the new.

    With ``plan.continued`` the network goes on as beside a learned memory: it sees as much of every class, and keeps
    to what it was.
    """
    memory = _store(plan, learner, experience, "rehearsal")  # before any work is lost if nothing fits
    if not plan.continued:
        return Learner(memory, _go_on(plan, learner, experience, drive))
    params = _driven(all_going_on(plan, learner, experience), drive)
    return Learner(memory, all_impartial(plan, params, memory, experience.classes))


def bic(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Rehearse while keeping the stored logits, then correct the bias towards the newest classes."""
    if learner.params is not None:
        learner = replace(learner, params={k: v for k, v in learner.params.items() if k != "correction"})
    outputs = outputs_after(learner, experience)
    if plan.shape.codec != "raw":  # files differ in size: say now, not after all the work, if none fits
        _store(plan, learner, experience, "bic", lambda pixels: torch.zeros(len(pixels), outputs, dtype=torch.float32))
    params = _go_on(plan, learner, experience, drive, keep_logits=True)

    def judge(pixels: Tensor) -> Tensor:
        return logits_of(plan.net, params, pixels, device=plan.device)

    memory = _store(plan, learner, experience, "bic", judge)
    if set(learner.memory) - set(experience.classes):  # else there is nothing to be biased against
        seen = list(experience.classes)
        params = params | {"correction": _correction(plan, memory, params, seen, experience.index, drive)}
    return Learner(memory, params)


def finetune(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Go on learning from the new pictures alone and remember nothing: the lower bound."""
    return Learner(learner.memory, _go_on(plan, learner, experience, drive))


def joint(plan: Plan, learner: Learner, experience: Experience, drive: Drive) -> Learner:
    """Keep every picture and learn from all of them, anew or going on: the upper bound."""
    memory = everything(learner.memory, [experience])
    pixels = torch.cat([as_pixels(kept) for kept in memory.values()]).to(plan.device)
    pictures, outputs = Pictures(pixels, memory.labels().to(plan.device), plan.recipe.batch), max(memory) + 1
    if not plan.continued:
        return Learner(memory, _learn(plan, experience, drive, outputs, pictures))
    judge = Classify(plan.net)
    return Learner(memory, _train(plan, learner, Evenly(pictures), judge, experience.index, drive, outputs))


METHODS: dict[str, Method] = {
    "composite": Method(
        composite,
        "components and mixing weights, learned (the paper's method)",
        kinds=(Composite.kind,),
        condenses=True,
        anew=True,
    ),
    "condensation": Method(
        condensation,
        "free images, learned",
        kinds=(Pixels.kind,),
        condenses=True,
        anew=True,
    ),
    "rehearsal": Method(
        rehearsal,
        "stored pictures",
        kinds=(Exemplars.kind, Encoded.kind),
    ),
    "bic": Method(
        bic,
        "stored pictures with their logits, bias corrected",
        kinds=(Exemplars.kind, Encoded.kind),
        logits=True,
    ),
    "finetune": Method(finetune, "no memory: the lower bound"),
    "joint": Method(joint, "all data at once: the upper bound", kinds=(Exemplars.kind,), anew=True, keeps_all=True),
}


def everything(memory: Memory, experiences: Iterable[Experience]) -> Memory:
    """Add every picture of some experiences to a memory."""
    for experience in experiences:
        for label in experience.classes:
            pixels = experience.of_class(label)
            if label in memory:
                pixels = torch.cat([as_pixels(memory[label]), pixels])
            memory = memory.plus(label, Exemplars(pixels))
    return memory


def _condense_and_learn(plan: Plan, learner: Learner, experience: Experience, drive: Drive, method: str) -> Learner:
    """Algorithm 2 for one experience; a network that goes on learns before or after, beside the new pictures."""
    training = leading(plan, learner, experience)
    states = drive(training) if training else {}
    trained = courses(training, states, plan) if training else None
    jobs = condensers(plan, learner, experience, method, trained)
    room = made_room(plan, learner, experience, method)
    memory, classes = room.memory, plan.sharing(len(set(room.memory) | set(experience.classes)))
    for name, state in drive(jobs).items():
        checked(section(state, "memory"), "the memory (condense_rate)")  # whole numbers are always numbers
        learned = jobs[name].finish(state)
        checked(learned.tensors(), "the memory (condense_rate)")
        if plan.shape.soft and trained is not None:
            learned = replace(
                learned, targets=taken_for(plan, trained, learned, max([*memory, *experience.classes]) + 1)
            )
        memory = memory.plus(jobs[name].label, fitted(plan, learned, classes))
    if not plan.continued:
        replay = _replay(plan, memory, plan.recipe.batch)
        return Learner(memory, _learn(plan, experience, drive, max(memory) + 1, replay))
    if plan.own_course:
        params = together([checked(job.finish(states[name]), "the network") for name, job in training.items()])
    else:
        params = _driven(all_going_on(plan, room, experience), drive)
    return Learner(memory, all_impartial(plan, params, memory, experience.classes))


def begins_anew(plan: Plan, method: str) -> bool:
    """Say whether a method trains a new network in every experience."""
    return METHODS[method].anew and not plan.continued


def _replay(plan: Plan, memory: Memory, batch: int) -> Replay:
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    weighting = _weighting(plan)
    soft = [kept.tensors()["targets"] for kept in memory.values() if "targets" in kept.tensors()]
    if soft:
        outputs = max(memory) + 1
        taken = torch.cat([shares(part, outputs, images) for part in soft]).to(plan.device)
        labels = (shares(labels, outputs, images) + taken) / 2
    return Replay(images, labels, batch, weighting)


def _weighting(plan: Plan) -> bool:
    """Say whether images that are drawn twice may be computed once: each must be seen as it is, and by itself."""
    return plan.engine.weighting and not plan.recipe.style.varied and not plan.net.mixes


def _learn(plan: Plan, experience: Experience, drive: Drive, outputs: int, source: Source) -> Params:
    """Train a new network."""
    judge: Judge = Classify(plan.net)
    if isinstance(source, Replay) and source.labels.ndim > 1:
        judge = Shared(plan.net)
    plan = replace(plan, recipe=replace(plan.recipe, steps=plan.steps(outputs)))
    return _train(plan, Learner(Memory()), source, judge, experience.index, drive, outputs)


def _train(
    plan: Plan, learner: Learner, source: Source, judge: Judge, index: int, drive: Drive, outputs: int
) -> Params:
    """Train each network from where it is, or a new one, to tell so many classes apart, in the experience."""
    jobs = {}
    for member in range(plan.networks):
        start = grown(plan, learner.network(member), outputs)
        jobs[learning(index, member)] = trainer(plan, start, source, judge, index, outputs, member=member)
    return _driven(jobs, drive)


def _driven(jobs: Mapping[str, Trainer], drive: Drive) -> Params:
    """Have networks trained, one after the other, each with all there is to compute with, and take them out."""
    return together([checked(job.finish(drive({name: job})[name]), "the network") for name, job in jobs.items()])


def _go_on(plan: Plan, learner: Learner, experience: Experience, drive: Drive, keep_logits: bool = False) -> Params:
    """Train the network on, on batches of new pictures, half of each from the buffer where there is one."""
    memory, outputs = learner.memory, outputs_after(learner, experience)
    half = max(1, plan.recipe.batch // 2)
    pictures = Pictures(experience.pixels.to(plan.device), experience.labels.to(plan.device), half)
    source: Source = pictures
    judge: Judge = Classify(plan.net)
    if memory and keep_logits:
        weight = (outputs - len(experience.classes)) / outputs
        source, judge = _with_logits(plan, pictures, memory, outputs, weight), Distil(plan.net)
    elif memory:
        source = Beside(pictures, _replay(plan, memory, half))
    return _train(plan, learner, source, judge, experience.index, drive, outputs)


def _with_logits(plan: Plan, new: Pictures, memory: Memory, outputs: int, weight: float) -> WithLogits:
    """Join batches of new pictures with stored ones and the logits stored beside these."""
    stored = [kept.tensors()["logits"] for kept in memory.values()]
    logits = torch.cat([F.pad(part, (0, outputs - part.shape[1])) for part in stored]).to(plan.device)
    lengths = torch.cat([torch.full((len(part),), part.shape[1]) for part in stored])
    known = (torch.arange(outputs) < lengths[:, None]).to(logits)
    images, labels = memory.images().to(plan.device), memory.labels().to(plan.device)
    return WithLogits(new, images, labels, logits, known, new.batch, weight, _weighting(plan))


def _store(
    plan: Plan,
    learner: Learner,
    experience: Experience,
    method: str,
    judge: Callable[[Tensor], Tensor] | None = None,
) -> Memory:
    """Make room, and store random pictures of each class of the experience, with what ``judge`` says of them."""
    memory = made_room(plan, learner, experience, method).memory
    classes = plan.sharing(len(set(memory) | set(experience.classes)))
    count = COUNTS[method](plan, classes)
    for label in experience.classes:
        hand = at_hand(plan, memory, experience, label)
        generator = generator_for(plan.seed, "store", experience.index, label)
        some = min(count, len(hand.pixels))
        kept = _kept(plan, hand, hand.chosen(some, apart_of(plan, some, learned=False), generator))
        if judge is not None:
            kept = replace(kept, logits=judge(as_pixels(kept)))
        memory = memory.plus(label, fitted(plan, lasting(plan, kept), classes))
    return memory


def _kept(plan: Plan, hand: AtHand, places: Tensor) -> Exemplars | Encoded:
    """Store some of the pictures at hand; those that are stored already stay what they are, to the last bit."""
    before, is_old = hand.kept, places >= hand.new
    if not isinstance(before, Exemplars | Encoded) or before.form != plan.form() or not is_old.any():
        return _stored(plan, hand.pixels[places])
    old = replace(before, logits=None).only(hand.stored(places[is_old]))
    if is_old.all():
        return old
    order = torch.cat([(~is_old).nonzero().flatten(), is_old.nonzero().flatten()]).argsort()
    return _stored(plan, hand.pixels[places[~is_old]]).joined(old).only(order)


def _stored(plan: Plan, pixels: Tensor) -> Exemplars | Encoded:
    """Store pictures: smaller and encoded, if asked for."""
    shape, form = plan.shape, plan.form()
    if shape.reduction > 1:
        pixels = eight_bit(reduced(unit(pixels), plan.small()))
    if shape.codec == "raw":
        return Exemplars(pixels, form=form)
    return Encoded.of(pixels, shape.codec, shape.quality, form=form)


def _correction(plan: Plan, memory: Memory, params: Params, newest: list[int], index: int, drive: Drive) -> Tensor:
    """Fit one scale and one shift for the logits of the classes just learned on the buffer; all others keep theirs."""
    images, labels = memory.images(), memory.labels()
    with torch.no_grad():
        logits = torch.cat([plan.net(params, part) for part in torch.split(images, at_once(images))])
    mask = logits.new_zeros(logits.shape[1])
    mask[newest] = 1.0

    def judge(fit: Params, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits * (1 + (fit["scale"] - 1) * mask) + fit["shift"] * mask, labels)

    def gradient(fit: Params, batch: Batch) -> tuple[Params, Tensor]:
        gradients, value = torch.func.grad_and_value(judge)(fit, *batch)
        return gradients, value

    job = Trainer(
        lambda _: {"scale": logits.new_ones(()), "shift": logits.new_zeros(())},
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


def plan_steps(method: str, plan: Plan, groups: tuple[tuple[int, ...], ...], seen: int = 0) -> dict[str, int]:
    """Count the steps of each kind of work that a stream takes after the classes ``seen``, to estimate the time."""
    known = [max(seen, *(label + 1 for label in group)) for group in groups]
    anew = begins_anew(plan, method)
    learning = {"learn": plan.networks * sum(plan.steps(count) if anew else plan.recipe.steps for count in known)}
    if METHODS[method].condenses:
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
    if method in COUNTS:
        COUNTS[method](plan, plan.sharing(classes))
    if plan.form().size is not None and not enlargeable(plan.small()[1:], plan.net.shape[1:]):
        raise InputError(
            "Pictures with such long sides cannot be enlarged again from so many pixels: give a larger reduction."
        )
