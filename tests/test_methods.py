from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ccmcl.budget import Budget
from ccmcl.compute import operations
from ccmcl.condense import Condensation
from ccmcl.condensing import as_pixels
from ccmcl.data import load
from ccmcl.distribution import Distribution
from ccmcl.errors import InputError
from ccmcl.kinds import Composite, Exemplars, Pixels, count_of, formed
from ccmcl.learn import RECIPES, Recipe, Trainer
from ccmcl.loop import Job, State, drive
from ccmcl.memory import Memory
from ccmcl.methods import METHODS, begins_anew, everything, plan_steps
from ccmcl.nets import ConvNet, members_of, outputs_of
from ccmcl.plan import COUNTS, Learner, Plan, Shape, chosen, fewer, set_apart
from ccmcl.residual import ResNet
from ccmcl.sources import Beside, Evenly, Replay, Taught
from ccmcl.stream import Experience, Stream
from ccmcl.training import apart, going_on, impartial, share_of_new

PLAN = Plan(
    ConvNet((1, 8, 8), 8),
    Budget.parse("20"),
    2.0,
    Condensation(1, 2, 2, 1, 32, "rmsprop", 0.1, 0.01),
    Recipe(10, 32, 0.05),
    seed=0,
    classes=10,
)


def stream() -> Stream:
    return Stream.of(load("digits").train)


def met(method: str, plan: Plan = PLAN, experiences: int = 2) -> list[Learner]:
    """What the learner is after each of some experiences."""
    learner, history = Learner(Memory()), []
    for index in range(experiences):
        learner = METHODS[method].meet(plan, learner, stream()[index], drive)
        history.append(learner)
    return history


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", [ConvNet, ResNet])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_method_tells_apart_the_classes_seen(method: str, network: type[ConvNet], recipe: str) -> None:
    """What it keeps of its network is all that the network consists of, and BiC's correction."""
    plan = replace(PLAN, net=network((1, 8, 8), 8), recipe=Recipe(10, 32, 0.05, RECIPES[recipe]))
    for index, learner in enumerate(met(method, plan)):
        assert learner.params is not None
        assert outputs_of(learner.params) == 2 * (index + 1)
        shapes = {name: tuple(tensor.shape) for name, tensor in learner.params.items() if name != "correction"}
        assert shapes == plan.net.kept(2 * (index + 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, net=ResNet((1, 8, 8), 8), continued=True)], ids=["paper", "on"])
def test_several_networks_differ_and_judge_together(method: str, plan: Plan) -> None:
    if plan.continued and method in ("bic", "finetune"):
        return
    alone = met(method, plan)
    images = load("digits").test.pixels[:40].float() / 255
    for one, several in zip(alone, met(method, replace(plan, networks=3)), strict=True):
        assert one.params is not None
        assert several.params is not None
        members = members_of(several.params)
        assert len(members) == 3
        assert all(member.keys() == members[0].keys() for member in members)
        assert not torch.equal(members[1]["head.weight"], members[2]["head.weight"])
        if method != "bic":  # whose stored logits are those of all of them
            assert same(members[0], one.params)
        plain = {name: tensor for name, tensor in several.params.items() if name != "correction"}
        mean = torch.stack([torch.softmax(plan.net(member, images), 1) for member in members]).mean(0)
        torch.testing.assert_close(torch.softmax(plan.net(plain, images), 1), mean)
        if "correction" in several.params:
            scale, shift = several.params["correction"]
            torch.testing.assert_close(plan.net(several.params, images), plan.net(plain, images) * scale + shift)


def test_several_networks_take_so_many_times_the_steps_and_operations() -> None:
    groups = ((0, 1), (2, 3))
    for method in METHODS:
        one, three = (
            (plan_steps(method, plan, groups)["learn"], operations(plan, method, groups)[0])
            for plan in (PLAN, replace(PLAN, networks=3))
        )
        assert three == (3 * one[0], 3 * one[1])


def test_a_network_that_mixes_images_sees_every_draw() -> None:
    """Weights in the place of images that are drawn twice would leave images of weight 0 a part in the others."""
    taken = []

    def watching(jobs: Mapping[str, Job]) -> dict[str, State]:
        for job in jobs.values():
            if isinstance(job, Trainer):
                images = job.source.take(job.source.draw(torch.Generator()))[0]
                taken.extend([job.source.count, len(images)])
        return drive(jobs)

    plan = replace(PLAN, net=ResNet((1, 8, 8), 8))
    METHODS["condensation"].meet(plan, Learner(Memory()), stream()[0], watching)
    assert taken == [32, 32]  # of four images
    taken.clear()
    METHODS["condensation"].meet(PLAN, Learner(Memory()), stream()[0], watching)
    assert taken == [32, 4]


@pytest.mark.parametrize(
    ("method", "kind", "images"),
    [
        ("composite", Composite, 4),
        ("condensation", Pixels, 2),
        ("rehearsal", Exemplars, 2),
        ("bic", Exemplars, 2),
    ],
)
def test_each_class_is_remembered_in_its_kind_and_number(method: str, kind: type, images: int) -> None:
    memory = met(method)[-1].memory
    assert list(memory) == [0, 1, 2, 3]
    assert all(isinstance(kept, kind) and len(kept.images()) == images for kept in memory.values())


def test_finetune_remembers_nothing_and_joint_everything() -> None:
    assert len(met("finetune")[-1].memory) == 0
    seen = torch.isin(stream().images.labels, torch.arange(4))
    assert met("joint")[-1].memory.count == int(seen.sum())


def test_rehearsal_stores_different_pictures_of_the_class() -> None:
    memory = met("rehearsal", replace(PLAN, budget=Budget.parse("100")), experiences=1)[0].memory
    for label in (0, 1):
        pictures = {tuple(p.flatten().tolist()) for p in stream()[0].of_class(label)}
        stored = [tuple(p.flatten().tolist()) for p in memory[label].tensors()["pixels"]]
        assert len(set(stored)) == 10
        assert set(stored) <= pictures


def test_without_a_past_rehearsal_and_bic_are_finetuning() -> None:
    first = met("finetune", experiences=1)[0].params
    assert first is not None
    for method in ("rehearsal", "bic"):
        params = met(method, experiences=1)[0].params
        assert params is not None
        assert same(params, first)


@pytest.mark.parametrize(("method", "continued"), [("rehearsal", False), ("joint", False), ("joint", True)])
def test_rehearsal_goes_on_with_its_network_and_joint_only_if_told_to(method: str, continued: bool) -> None:
    plan, goes_on = replace(PLAN, continued=continued), continued or method == "rehearsal"
    assert begins_anew(plan, method) is not goes_on
    first = met(method, plan, experiences=1)[0]
    other = replace(first, params={name: tensor + 0.1 for name, tensor in (first.params or {}).items()})
    one, two = (METHODS[method].meet(plan, learner, stream()[1], drive).params for learner in (first, other))
    assert same(one or {}, two or {}) is not goes_on


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_network_that_goes_on_learns_from_pictures_and_memory_and_itself(method: str, recipe: str) -> None:
    plan = replace(PLAN, continued=True, recipe=Recipe(10, 32, 0.05, RECIPES[recipe]))
    first = met(method, plan, experiences=1)[0]
    experience = stream()[1]

    def after(learner: Learner = first, experience: Experience = experience) -> dict[str, torch.Tensor]:
        return METHODS[method].meet(plan, learner, experience, drive).params or {}

    usual = after()
    assert outputs_of(usual) == 4
    assert same(usual, after())
    other = {name: tensor + 0.1 for name, tensor in (first.params or {}).items()}
    assert not same(usual, after(replace(first, params=other)))
    darker = replace(experience, pixels=experience.pixels // 2)
    assert not same(usual, after(experience=darker))
    swapped = Memory({0: first.memory[1], 1: first.memory[0]})
    assert not same(usual, after(replace(first, memory=swapped)))


@pytest.mark.parametrize("method", ["condensation", "rehearsal"])
def test_a_network_that_goes_on_forgets_less_than_one_that_is_not_taught(method: str) -> None:
    strong = replace(PLAN, continued=True, recipe=Recipe(60, 32, 0.05))
    first = met(method, strong, experiences=1)[0]
    alone = met("finetune", strong)[1].params
    kept = METHODS[method].meet(strong, first, stream()[1], drive).params
    old = stream()[0]

    def right(params: dict[str, torch.Tensor] | None) -> float:
        found = strong.net(params or {}, old.pixels.float() / 255).argmax(1)
        return (found == old.labels).double().mean().item()

    assert right(kept) > right(alone) + 0.5


def test_raw_pictures_in_a_learned_memory_teach_what_rehearsal_does() -> None:
    """Two methods with the same memory and ``continued`` train the same network: the learner is one and the same."""
    plan = replace(PLAN, continued=True, recipe=Recipe(10, 32, 0.05))
    first = met("rehearsal", plan, experiences=1)[0]
    memory = Memory({label: Pixels(kept.images()) for label, kept in first.memory.items()})
    one = METHODS["rehearsal"].meet(plan, first, stream()[1], drive).params
    two = METHODS["condensation"].meet(plan, replace(first, memory=memory), stream()[1], drive).params
    assert same(one or {}, two or {})


APART = replace(
    PLAN,
    continued=True,
    objective="distribution",
    shape=Shape(squash=False, start="real"),
    distribution=Distribution(0, 2, 3, 16),
    budget=Budget.parse("400"),
    recipe=Recipe(40, 32, 0.05),
)


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
def test_images_set_apart_are_real_pictures_that_no_network_is_shown_which_goes_on(method: str) -> None:
    first = met(method, APART, experiences=1)[0]
    among, images, labels = apart(APART, first.memory), first.memory.images(), first.memory.labels()
    stored = sum(len(next(iter(kept.tensors().values()))) for kept in first.memory.values())
    assert labels[among].bincount().tolist() == [stored // 16] * 2
    for label in (0, 1):
        real = {tuple((one.float() / 255).flatten().tolist()) for one in stream()[0].of_class(label)}
        for image in images[among & (labels == label)]:
            assert tuple(image.flatten().tolist()) in real
    source = going_on(APART, first, stream()[1]).source
    assert isinstance(source, Taught)
    assert isinstance(source.source, Beside)
    assert isinstance(source.source.old, Evenly)
    assert isinstance(source.source.old.source, Replay)
    assert torch.equal(source.source.old.source.images, images[~among])
    for kept in first.memory.values():
        if isinstance(kept, Composite):
            away = set_apart(APART, kept)
            assert torch.equal(kept.weights[:away], torch.eye(len(kept.components), kept.weights.shape[1])[:away])


@pytest.mark.parametrize("start", ["real", "typical"])
@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
def test_of_a_class_that_comes_again_none_is_set_apart_that_was_learned_or_shown(method: str, start: str) -> None:
    plan = replace(APART, shape=Shape(squash=False, start=start))
    first = met(method, plan, experiences=1)[0]
    again = replace(stream()[0], index=1)
    again = replace(again, pixels=255 - again.pixels[::8], labels=again.labels[::8])
    second = METHODS[method].meet(plan, first, again, drive)
    among, images = apart(plan, second.memory), second.memory.images()
    before = first.memory.images()[apart(plan, first.memory)]
    real = {tuple(one.flatten().tolist()) for one in (*before, *again.pixels.float() / 255)}
    assert among.any()
    assert all(tuple((255 * one).round().div(255).flatten().tolist()) in real for one in images[among])
    assert not {tuple(one.flatten().tolist()) for one in images[among]} & {
        tuple(one.flatten().tolist()) for one in images[~among]
    }


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
def test_a_class_that_comes_again_and_again_with_few_pictures_keeps_those_it_has(method: str) -> None:
    plan = replace(APART, recipe=Recipe(2, 32, 0.05), distribution=Distribution(0, 2, 1, 16, rate=1e-9), ratio=1.0)
    learner = met(method, plan, experiences=1)[0]
    stored = len({tuple(one.flatten().tolist()) for one in learner.memory[0].images()})
    away = set_apart(plan, learner.memory[0])
    assert away > 4
    for index in range(1, 7):
        one = Experience(index, (0,), 255 - stream()[0].of_class(0)[index][None], torch.zeros(1, dtype=torch.int64))
        learner = METHODS[method].meet(plan, learner, one, drive)
        images = [tuple((255 * image).round().flatten().tolist()) for image in learner.memory[0].images()]
        assert len(set(images)) >= stored - 2
        assert len(set(images[:away])) == away, "those set apart are different ones"
        assert not set(images[:away]) & set(images[away:]), "and are not shown"


def test_components_of_few_numbers_keep_apart_what_was() -> None:
    plan = replace(APART, shape=replace(APART.shape, frequencies=6), ratio=1.0)
    kept = formed(
        Composite, {"components": torch.rand(60, 1, 1, 6), "weights": torch.eye(60)}, plan.learned("composite")
    )
    fewer_of = fewer(plan, kept, 40)
    assert isinstance(fewer_of, Composite)
    assert fewer_of.weights.shape == (40, 40)
    assert set_apart(plan, fewer_of) == 5
    assert torch.equal(fewer_of.images()[:5], kept.images()[:5])
    others = torch.cdist(fewer_of.images()[5:].flatten(1), kept.images()[set_apart(plan, kept) :].flatten(1)).amin(1)
    assert others.max() < 0.01


@pytest.mark.parametrize("method", ["rehearsal", "bic"])
def test_encoded_pictures_that_do_not_fit_are_refused_before_any_work(method: str) -> None:
    plan = replace(PLAN, budget=Budget.parse("150B/class"), shape=Shape(codec="jpeg"))

    def idle(jobs: Any) -> Any:
        raise AssertionError(f"{list(jobs)} were begun")

    with pytest.raises(InputError, match="smaller than one picture"):
        METHODS[method].meet(plan, Learner(Memory()), stream()[0], idle)


@given(
    fresh=st.integers(1, 60),
    more=st.integers(0, 60),
    count=st.integers(1, 80),
    share=st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_pictures_set_apart_are_fresh_and_are_not_among_the_others(
    fresh: int, more: int, count: int, share: int, seed: int
) -> None:
    every, away = fresh + more, count * share // 8
    found = chosen(fresh, every, count, away, torch.Generator().manual_seed(seed))
    first, others = set(found[:away].tolist()), set(found[away:].tolist())
    assert len(found) == count
    assert first <= set(range(fresh))
    assert others <= set(range(every))
    assert every == 1 or not first & others
    assert len(others) == min(count - away, max(1, every - len(first)))
    for short in range(away, count):  # whatever is left of it when room is made is as distinct as it can be
        assert len(set(found[away:short].tolist())) == min(short - away, max(1, every - len(first)))
    if fresh // 8 >= away:
        assert len(first) == away


def test_one_class_with_few_pictures_leaves_the_others_their_correction() -> None:
    learner = met("rehearsal", APART)[1]
    assert learner.params is not None
    few = learner.memory.plus(0, learner.memory[0].shrunk(7, 7))
    assert not apart(APART, Memory({0: few[0]})).any()
    biased = learner.params | {"head.bias": learner.params["head.bias"] + torch.tensor([0, 0, 3.0, 3.0])}
    found = impartial(APART, biased, few, [2, 3])
    assert (found["head.bias"] < biased["head.bias"])[2:].all()
    old = Memory({label: few[label] for label in (0, 2, 3)})  # no old class has any set apart
    assert impartial(APART, biased, old, [2, 3]) is biased


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
def test_the_newest_classes_are_expected_as_often_as_they_come(method: str) -> None:
    learner = met(method, APART)[1]
    assert learner.params is not None
    among, newest = apart(APART, learner.memory), [2, 3]

    def expected(params: dict[str, torch.Tensor]) -> float:
        found = torch.softmax(APART.net(params, learner.memory.images()[among]), 1)
        return float(found[:, newest].sum(1).mean())

    assert expected(learner.params) == pytest.approx(0.5, abs=1e-4)
    for shift in (-3.0, 0.5):
        biased = learner.params | {"head.bias": learner.params["head.bias"] + torch.tensor([0, 0, shift, shift])}
        assert abs(expected(biased) - 0.5) > 0.02
        found = impartial(APART, biased, learner.memory, newest)
        assert found["head.bias"].tolist() == pytest.approx(learner.params["head.bias"].tolist(), abs=1e-3)


@pytest.mark.parametrize(
    "plan",
    [
        replace(APART, budget=Budget.parse("20")),  # too few images
        replace(APART, shape=Shape(squash=False)),  # that begin as noise
        replace(APART, objective="gradient"),
    ],
    ids=["few", "noise", "gradient"],
)
def test_where_no_image_can_be_set_apart_a_network_is_taken_as_it_is(plan: Plan) -> None:
    learner = met("condensation", plan, experiences=1)[0]
    assert not apart(plan, learner.memory).any()
    assert learner.params is not None
    assert impartial(plan, learner.params, learner.memory, [1]) is learner.params


def test_bic_corrects_the_newest_classes_alone_and_helps_on_the_buffer() -> None:
    plan = replace(PLAN, recipe=Recipe(150, 32, 0.05))
    first, second = met("bic", plan)
    assert first.params is not None
    assert second.params is not None
    assert "correction" not in first.params
    scale, shift = second.params["correction"]
    assert scale[:2].tolist() == [1.0, 1.0]
    assert shift[:2].tolist() == [0.0, 0.0]
    assert scale[2] == scale[3] != 1.0
    assert shift[2] == shift[3] != 0.0
    images, labels = second.memory.images(), second.memory.labels()
    raw = {name: tensor for name, tensor in second.params.items() if name != "correction"}
    corrected, uncorrected = (F.cross_entropy(plan.net(params, images), labels) for params in (second.params, raw))
    assert corrected < uncorrected


def test_bic_stores_the_logits_of_the_network_it_had_then() -> None:
    learner = met("bic", experiences=1)[0]
    assert learner.params is not None
    for kept in learner.memory.values():
        assert isinstance(kept, Exemplars)
        assert kept.logits is not None
        torch.testing.assert_close(PLAN.net(learner.params, kept.images()), kept.logits)


@pytest.mark.parametrize("method", ["composite", "condensation"])
def test_a_class_is_condensed_alike_whatever_else_the_experience_brings(method: str) -> None:
    start = met(method, experiences=1)[0]
    both = stream()[1]
    for label in both.classes:
        own = both.labels == label
        alone = Experience(1, (label,), both.pixels[own], both.labels[own])
        together = METHODS[method].meet(PLAN, start, both, drive).memory[label]
        by_itself = METHODS[method].meet(PLAN, start, alone, drive).memory[label]
        assert same(together.tensors(), by_itself.tensors())


@pytest.mark.parametrize("method", ["composite", "condensation"])
def test_the_learner_sees_nothing_but_the_memory(method: str) -> None:
    """After condensing, training never touches the experience: other pictures with the same memory, same network."""
    jobs: list[str] = []

    def watching(given: Mapping[str, Job]) -> dict[str, State]:
        jobs.extend(given)
        return drive(given)

    learner = METHODS[method].meet(PLAN, Learner(Memory()), stream()[0], watching)
    assert jobs == ["condense 0-0", "condense 0-1", "learn 0"]
    assert plan_steps(method, PLAN, ((0, 1),)) == {"condense": 4, "learn": 10}
    assert learner.memory.count == (8 if method == "composite" else 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("objective", ["gradient", "distribution"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("soft", "continued", "experts"), [(False, False, 2), (True, False, 2), (False, True, 2), (False, True, 0)]
)
def test_the_steps_that_are_announced_are_taken(
    method: str, objective: str, recipe: str, soft: bool, continued: bool, experts: int
) -> None:
    plan = replace(
        PLAN,
        recipe=Recipe(5, 8, 0.01, RECIPES[recipe]),
        objective=objective,
        shape=Shape(soft=soft, bits=8, start="typical"),
        distribution=Distribution(experts, 3, 2, 8),
        continued=continued,
    )
    taken = dict[str, int]()

    def counting(jobs: Mapping[str, Job]) -> dict[str, State]:
        for name, job in jobs.items():
            kind = name.split()[0]
            taken[kind] = taken.get(kind, 0) + job.total
        return drive(jobs)

    learner = Learner(Memory())
    for index in range(2):
        learner = METHODS[method].meet(plan, learner, stream()[index], counting)
    assert taken == plan_steps(method, plan, ((0, 1), (2, 3)))
    if recipe == "strong" and begins_anew(plan, method):
        assert taken["learn"] == 1 + 2  # two of ten classes, then four
    taken.clear()
    again = replace(stream()[0], index=2)
    METHODS[method].meet(plan, learner, again, counting)
    assert taken["learn"] == plan_steps(method, plan, ((0, 1),), seen=4)["learn"]


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal", "bic", "joint"])
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("objective", ["gradient", "distribution"])
def test_a_class_that_comes_again_is_remembered_from_new_and_old(method: str, continued: bool, objective: str) -> None:
    distribution = Distribution(0 if continued else 1, 2, 2, 8)
    plan = replace(PLAN, continued=continued, objective=objective, distribution=distribution)
    first = met(method, plan, experiences=1)[0]
    digits = stream()[0]
    again = Experience(1, (0,), digits.of_class(0)[:5], torch.zeros(5, dtype=torch.int64))
    learner = METHODS[method].meet(plan, first, again, drive)
    assert list(learner.memory) == [0, 1]
    assert learner.params is not None
    assert outputs_of(learner.params) == 2
    assert learner.memory[1].tensors().keys() == first.memory[1].tensors().keys()
    assert same(learner.memory[1].tensors(), first.memory[1].tensors())
    if method != "joint":
        assert len(learner.memory[0].images()) == len(first.memory[0].images())
    else:
        assert len(learner.memory[0].images()) == len(first.memory[0].images()) + 5


def looking_new(digits: tuple[int, ...], index: int) -> Experience:
    """The classes 0, 1, …, that look like other digits now."""
    one = Stream.of(load("digits").train, digits, len(digits))[0]
    return replace(one, index=index, classes=tuple(range(len(digits))))


def right(plan: Plan, learner: Learner, experience: Experience) -> float:
    assert learner.params is not None
    logits = plan.net(learner.params, experience.pixels.float() / 255)
    return (logits.argmax(1) == experience.labels).double().mean().item()


@pytest.mark.parametrize("method", ["bic", "rehearsal", "condensation"])
def test_known_classes_are_learned_by_their_new_looks(method: str) -> None:
    plan = replace(PLAN, continued=method == "condensation", recipe=Recipe(80, 32, 0.05))
    learner, new = met(method, plan, experiences=1)[0], looking_new((6, 8), 1)
    assert right(plan, METHODS[method].meet(plan, learner, new, drive), new) > max(0.8, right(plan, learner, new))


def test_bic_of_known_classes_corrects_them_where_there_are_others() -> None:
    first, second = met("bic", replace(PLAN, recipe=Recipe(20, 32, 0.05)))
    digits = stream()[0]
    again = METHODS["bic"].meet(PLAN, second, replace(digits, index=2), drive)
    assert again.params is not None
    assert again.params["correction"][0, 2:].tolist() == [1, 1]  # those it does not bring are left alone
    assert (again.params["correction"][0, :2] != 1).all()
    whole = METHODS["bic"].meet(PLAN, first, replace(digits, index=1), drive)
    assert "correction" not in (whole.params or {})  # there are no others


def test_a_few_more_pictures_of_all_classes_do_not_outweigh_what_is_remembered() -> None:
    plan = replace(PLAN, continued=True, recipe=Recipe(80, 32, 0.05))
    first = met("condensation", plan, experiences=1)[0]
    digits = stream()[0]
    one_each = torch.stack([digits.of_class(0)[0], digits.of_class(1)[0]])
    again = Experience(1, (0, 1), one_each, torch.tensor([0, 1]))
    assert share_of_new(first.memory, again) == 0.5
    assert share_of_new(Memory(), again) == 1
    assert share_of_new(first.memory, stream()[1]) == 0.5
    after = METHODS["condensation"].meet(plan, first, again, drive)
    assert right(plan, after, digits) >= right(plan, first, digits) - 0.02


def test_remembered_images_come_back_as_pictures() -> None:
    pixels = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(as_pixels(Exemplars(pixels)), pixels)
    assert torch.equal(as_pixels(Pixels(pixels.float() / 255)), pixels)
    assert as_pixels(Pixels(torch.tensor([-1.0, 2.0]).reshape(1, 1, 1, 2))).flatten().tolist() == [0, 255]


def test_everything_adds_up_over_experiences() -> None:
    memory = everything(Memory(), [stream()[0], stream()[1], stream()[0]])
    assert memory.count == 2 * len(stream()[0].pixels) + len(stream()[1].pixels)


@pytest.mark.parametrize("method", ["composite", "condensation", "rehearsal"])
def test_a_filled_memory_has_all_the_room_at_any_time_and_shows_what_it_has(method: str) -> None:
    plan = replace(APART, filled=True, budget=Budget.parse("200"), recipe=Recipe(2, 32, 0.05))
    history, usual = met(method, plan), met(method, replace(plan, filled=False))
    counts = [[count_of(kept) for kept in learner.memory.values()] for learner in history]
    assert counts == [[100 * 2 ** (method == "composite")] * 2, [50 * 2 ** (method == "composite")] * 4]
    assert [count_of(kept) for kept in usual[1].memory.values()] == [counts[0][0] // 5] * 4
    source = going_on(plan, history[0], stream()[1]).source  # room is made when that is learned
    assert isinstance(source, Taught)
    assert isinstance(source.source, Beside)
    assert isinstance(source.source.old, Evenly)
    shown = history[0].memory.images()[~apart(plan, history[0].memory)]
    assert torch.equal(source.source.old.source.take(torch.arange(len(shown)))[0], shown)
    for label in (0, 1):
        before, after = history[0].memory[label], history[1].memory[label]
        was, still = set_apart(plan, before), set_apart(plan, after)
        assert (was, still) == (12, 6)
        assert torch.equal(after.images()[:still], before.images()[:still])
        expected = before.images()[was : was + count_of(after) - still]  # of those that were apart, none is left
        gap = (after.images()[still:] - expected).abs().max()
        assert gap == 0 if method != "composite" else gap > 0
        if isinstance(before, Composite) and isinstance(after, Composite):
            assert len(after.components) == 50
            assert not after.weights[:still, still:].any()


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@pytest.mark.parametrize("budget", ["24", "32", "33", "60", "4KiB", "9KiB"])
def test_encoded_pictures_that_fill_a_budget_last_as_long_as_those_that_do_not(codec: str, budget: str) -> None:
    shape = replace(PLAN.shape, codec=codec, quality=50)
    plan = replace(PLAN, budget=Budget.parse(budget), shape=shape, recipe=Recipe(1, 8, 0.01))
    try:
        usual = met("rehearsal", plan, 5)[-1].memory
    except InputError:
        with pytest.raises(InputError, match="smaller than one picture"):
            met("rehearsal", replace(plan, filled=True), 1)  # at once, not when there is no room any more
        return
    history = met("rehearsal", replace(plan, filled=True), 5)
    assert history[0].memory.count >= 2 * usual.count / 10
    assert history[-1].memory.count >= usual.count
    for learner in history:
        limit, files = plan.budget, [kept.tensors()["files"].numel() for kept in learner.memory.values()]
        assert learner.memory.nbytes <= limit.amount if limit.in_bytes else sum(files) <= limit.amount * 64


@pytest.mark.parametrize("ratio", [0.05, 0.12, 0.5])
def test_components_with_few_images_leave_some_to_be_shown(ratio: float) -> None:
    plan = replace(APART, ratio=ratio, filled=True, budget=Budget.parse("200"), recipe=Recipe(2, 32, 0.05))
    for learner in met("composite", plan, 3):
        assert (~apart(plan, learner.memory)).any()


@settings(max_examples=24)
@given(
    st.sampled_from(["composite", "condensation", "rehearsal", "bic"]),
    st.sampled_from(["12", "25", "900B", "2KiB", "7000B", "3/class", "700B/class"]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_budget_over_a_stream_is_never_exceeded(method: str, budget: str, sizes: list[int], declared: bool) -> None:
    limit = Budget.parse(budget)
    tiny = replace(
        PLAN,
        net=ConvNet((1, 8, 8), 2),
        budget=limit,
        classes=sum(sizes) if declared else None,
        filled=declared,
        condensation=replace(PLAN.condensation, inner=1, matching=1),
        recipe=Recipe(1, 8, 0.01),
    )
    classes = sum(sizes)
    learner = Learner(Memory())
    try:
        COUNTS[method](tiny, classes)
    except ValueError:
        return
    for experience in Stream.of(load("digits").train, range(classes), sizes):
        learner = METHODS[method].meet(tiny, learner, experience, drive)
        memory = learner.memory
        stored = sum(
            len(kept.tensors().get("components", kept.tensors().get("pixels", ()))) for kept in memory.values()
        )
        allowed = limit.amount * (len(memory) if limit.each_class else 1)
        assert (memory.nbytes if limit.in_bytes else stored) <= allowed
    assert len(learner.memory) == classes
