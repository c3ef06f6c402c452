"""Matching of features: the naive loop gives the same memory, and every memory form goes through it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ccmcl.augment import changed, changes
from ccmcl.compiling import Graphs
from ccmcl.distribution import Courses, Distribution, Matcher
from ccmcl.engine import Engine
from ccmcl.forms import Form
from ccmcl.frequencies import Frequencies
from ccmcl.kinds import Composite, Learned, Pixels, count_of, formed
from ccmcl.learn import AHEAD
from ccmcl.loop import drive, section
from ccmcl.nets import ConvNet, Params
from ccmcl.sources import CHANCES

NET = ConvNet((2, 8, 8), width=6, centred=True)
SETTINGS = Distribution(experts=2, expert_steps=1, updates=7, batch=3, optimiser="adam", rate=0.03, judged=0.3)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def networks(net: ConvNet = NET) -> Courses:
    return Courses.of([(net.init(seeded(10 + k), 3), net.init(seeded(20 + k), 3)) for k in range(2)])


def memory_of(kind: str, form: Form, count: int = 3) -> Learned:
    side = 8 if form.size is None else 4
    shape = (2, side, side) if form.frequencies is None else (1, 1, form.frequencies.numbers)
    components = torch.rand(count, *shape, generator=seeded(1))
    if kind == "pixels":
        return formed(Pixels, {"pixels": components}, form)
    return formed(Composite, {"components": components, "weights": torch.rand(3, 4, generator=seeded(2))}, form)


def matcher(memory: Learned, **changed: object) -> Matcher:
    pixels = torch.randint(256, (20, 2, 8, 8), generator=seeded(3), dtype=torch.uint8)
    job = Matcher(NET, 1, pixels, memory, networks(), SETTINGS, True, seeded(4))
    return replace(job, **changed)  # type: ignore[arg-type]


def naive(job: Matcher) -> dict[str, Tensor]:
    """The same, written down step by step with PyTorch's own optimiser and derivatives."""
    units = varying(job)
    leaves = {name: (tensor / units[name]).requires_grad_() for name, tensor in job.memory.numbers().items()}
    many = len(job.memory.images())
    rule = torch.optim.Adam(leaves.values(), job.settings.rate * (120 / many if many > 120 else 1))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(rule, job.settings.updates)
    generator = seeded(4)
    for done in range(job.settings.updates):
        if done % AHEAD == 0:
            count = min(AHEAD, job.settings.updates - done)
            which = torch.randint(2, (count,), generator=generator)
            real = torch.randint(len(job.pixels), (count, job.settings.batch), generator=generator)
            images = count_of(job.memory)
            seen = min(images, job.settings.batch)
            some = torch.stack([torch.randperm(images, generator=generator)[:seen] for _ in range(count)])
            chance = torch.randint(CHANCES, (count, 5 + 4 * seen), generator=generator) / CHANCES
        now = done % AHEAD
        start, end = ({k: v[which[now]] for k, v in part.items()} for part in (job.courses.start, job.courses.end))
        line: Params = {name: torch.lerp(start[name], end[name], chance[now, 0]) for name in end}
        rows = changes(chance[now, 1:].reshape(-1, 4), (8, 8), job.mirrored)
        pictures = job.pixels[real[now]].float() / 255
        see = levels if job.settings.distance == "levels" else NET.embed
        wanted = see(line, torch.cat([changed(one[None], rows[:1]) for one in pictures])).detach()
        shown = job.memory.form.images({name: leaf * units[name] for name, leaf in leaves.items()})[some[now]]
        found = see(line, torch.cat([changed(one[None], rows[:1]) for one in shown]))
        loss = ((wanted.mean(0) - found.mean(0)) ** 2).sum()
        if job.settings.distance == "kernel":
            loss = 100 * discrepancy(wanted, found)
        if job.settings.distance == "levels":
            loss = torch.zeros(())
            for first in range(0, wanted.shape[1], 6):
                ours, theirs = wanted[:, first : first + 6], found[:, first : first + 6]
                spread = ours.var(0, correction=0).sqrt()
                unit = spread + 0.01 * spread.mean() + 1e-6
                loss = loss + 100 * discrepancy((ours - ours.mean(0)) / unit, (theirs - ours.mean(0)) / unit)
        taken = NET(end, torch.cat([changed(one[None], row[None]) for one, row in zip(shown, rows[1:], strict=True)]))
        loss = loss + job.settings.judged * F.cross_entropy(taken, torch.full((len(taken),), job.label))
        rule.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        fall.step()
    return {name: tensor.detach() * units[name] for name, tensor in leaves.items()}


def varying(job: Matcher) -> dict[str, Tensor]:
    """How much each stored number differs from picture to picture, number by number."""
    form, shown = job.memory.form, job.pixels.double() / 255
    shown = shown if form.size is None else F.avg_pool2d(shown, 2)
    if form.squash:
        shown = shown.clamp(0.01, 0.99)
        shown = (shown / (1 - shown)).log()
    rows = shown.flatten(1)
    if form.frequencies is not None:
        rows = (rows if form.squash else rows - 0.5) @ form.frequencies.basis(shown).mT
    found = {}
    for name, tensor in job.memory.numbers().items():
        begun = tensor.double().flatten(1)
        if name == "weights":
            found[name] = ((begun**2).mean() ** 0.5 + 1e-6).float()
            continue
        pairs = zip(rows.T, begun.T, strict=True)
        each = [max(real.numpy().std(), float((start - real.mean()).abs().mean())) for real, start in pairs]
        spread = torch.tensor(each).reshape(tensor.shape[1:])
        found[name] = (spread + 0.01 * spread.mean() + 1e-6).float()
    return found


def levels(params: Params, images: Tensor) -> Tensor:
    """The mean of every channel after each block, of a network of PyTorch's own functions."""
    x, means = centred(images), []
    for block in range(2):
        x = F.conv2d(x, params[f"conv{block}.weight"], padding=1)
        x = F.instance_norm(x, weight=params[f"norm{block}.scale"], bias=params[f"norm{block}.shift"])
        x = F.avg_pool2d(F.relu(x), 2)
        means.append(x.mean((2, 3)))
    return torch.cat(means, 1)


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The maximum mean discrepancy, pair by pair."""
    unit = sum(((one - other) ** 2).sum().detach() for one in a for other in b) / (len(a) * len(b))

    def alike(one: Tensor, other: Tensor) -> Tensor:
        distance = ((one - other) ** 2).sum()
        bells = [torch.exp(-distance / (width * unit)) for width in (0.25, 0.5, 1, 2)]
        return torch.stack(bells).mean()

    def mean(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([alike(one, other) for one in first for other in second]).mean()

    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


FORMS = [Form(), Form((8, 8)), Form(None, squash=True), Form((8, 8), squash=True, bits=8), Form((8, 8), bits=16)]
FORMS += [Form(frequencies=Frequencies((2, 8, 8), 11)), Form(None, True, 8, Frequencies((2, 8, 8), 11))]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", ["composite", "pixels"])
@pytest.mark.parametrize("distance", ["mean", "kernel", "levels"])
def test_the_naive_loop_gives_the_same_memory(kind: str, form: Form, distance: str) -> None:
    settings = replace(SETTINGS, distance=distance)
    job = matcher(memory_of(kind, form), settings=settings)
    learned = section(drive({"job": job})["job"], "memory")
    wanted = naive(matcher(memory_of(kind, form), settings=settings))
    before = job.memory.numbers()
    for name, tensor in wanted.items():
        assert (tensor - before[name]).abs().max() > 0.01
    assert alike(learned, wanted, form, 2e-4)


def alike(one: Params, other: Params, form: Form, tolerance: float) -> bool:
    """Compare what was learned. Of frequencies, a network that centres its images does not see the lowest: the rule
    makes steps of what rounding leaves of its derivative. So there the images are compared, centred."""
    if form.frequencies is not None:
        one, other = ({"images": centred(form.decoded(numbers))} for numbers in (one, other))
    return all(torch.allclose(one[name], other[name], atol=tolerance) for name in one)


def centred(images: Tensor) -> Tensor:
    return images - images.mean((2, 3), keepdim=True)


PIXELS, WAVES = Form((8, 8), bits=8), Form(frequencies=Frequencies((2, 8, 8), 11))


@pytest.mark.parametrize(("form", "updates"), [(WAVES, 7), (PIXELS, 1)])  # a level apart is soon an image apart
def test_compiled_steps_give_the_same_memory(form: Form, updates: int) -> None:
    distance = "levels" if form is WAVES else "mean"
    net = replace(NET, max_blocks=1)  # each block takes the compiler half a minute
    settings = replace(SETTINGS, updates=updates, distance=distance)
    job = matcher(memory_of("composite", form), net=net, courses=networks(net), settings=settings)
    plain = section(drive({"job": job})["job"], "memory")
    fast = replace(job, engine=Engine(graphs=Graphs()), generator=seeded(4))
    assert fast.engine.graphs is not None
    compiled = section(drive({"job": fast})["job"], "memory")
    assert not fast.engine.graphs.failed
    assert len(fast.engine.graphs.used) == 2
    assert alike(plain, compiled, form, 1e-4)


def test_images_are_matched_by_the_same_code_however_many_there_are() -> None:
    graphs, net = Graphs(), replace(NET, max_blocks=1)
    form = Form(frequencies=Frequencies((2, 8, 8), 11), step=1.0)
    for count, rate in ((4, 0.02), (9, 0.03)):
        settings = replace(SETTINGS, updates=2, distance="levels", rate=rate)
        memory = memory_of("pixels", form, count)
        job = matcher(memory, net=net, courses=networks(net), settings=settings, generator=seeded(4))
        plain = section(drive({"job": job})["job"], "memory")
        job = replace(job, engine=Engine(graphs=graphs), generator=seeded(4))
        assert alike(plain, section(drive({"job": job})["job"], "memory"), WAVES, 1e-4)
    assert not graphs.failed
    assert len(graphs.used) == 2, "the features of real pictures, and where images should go"


@pytest.mark.parametrize("bits", [8, 16])
def test_compiled_code_sees_the_rounding_of_what_is_stored(bits: int) -> None:
    form = Form((8, 8), bits=bits)
    numbers = memory_of("composite", Form()).numbers()
    numbers = {name: tensor[:, :, :4, :4] * 3 if tensor.ndim == 4 else tensor for name, tensor in numbers.items()}
    graphs = Graphs()
    seen = graphs(Seen(form), numbers, form.rounded(numbers))
    assert not graphs.failed
    kept = formed(Composite, numbers, form).images()
    assert torch.allclose(seen, kept, atol=1e-6)
    assert (Form((8, 8)).images(numbers) - kept).abs().max() > 1e-4


@dataclass(frozen=True)
class Seen:
    """The images that a compiled update sees."""

    form: Form

    def __call__(self, numbers: Params, kept: Params) -> Tensor:
        return self.form.images(numbers, kept=kept)


def test_what_comes_out_is_what_was_seen() -> None:
    form = Form((8, 8), bits=8)
    job = matcher(memory_of("composite", form))
    state = drive({"job": job})["job"]
    assert torch.equal(job.finish(state).images(), form.images(section(state, "memory")))


def test_a_job_taken_up_in_the_middle_ends_the_same() -> None:
    job = matcher(memory_of("composite", Form()))
    state = job.init()
    for _ in range(3):
        state, _ = job.step(state)
    state = {name: tensor.clone() for name, tensor in state.items()}
    while int(state["step"]) < job.total:
        state, _ = job.step(state)
    undisturbed = drive({"job": matcher(memory_of("composite", Form()))})["job"]
    assert all(torch.equal(state[name], undisturbed[name]) for name in undisturbed)


def test_the_features_come_together() -> None:
    job = matcher(memory_of("pixels", Form()), settings=replace(SETTINGS, updates=60, judged=0.0, batch=20))
    state, losses = job.init(), []
    while int(state["step"]) < job.total:
        state, loss = job.step(state)
        losses.append(float(loss))
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_a_network_on_the_line_is_between_its_ends() -> None:
    courses = networks()
    assert len(courses) == 2
    for along in (0.0, 0.25, 1.0):
        line, end = courses.at(torch.tensor(1), torch.tensor(along))
        for name in end:
            assert torch.equal(end[name], courses.end[name][1])
            assert torch.allclose(line[name], torch.lerp(courses.start[name][1], end[name], along), atol=1e-6)


def test_each_of_many_images_is_moved_so_much_the_less() -> None:
    job = matcher(memory_of("pixels", Form(), count=200))
    learned = job.finish(drive({"job": job})["job"])
    for name, tensor in naive(job).items():
        assert torch.allclose(learned.numbers()[name], tensor, atol=1e-5), name


def test_a_memory_begun_as_noise_can_reach_what_never_varies() -> None:
    """The borders of a digit are black in every picture; noise must be able to get there."""
    memory = memory_of("pixels", Form())
    pixels = torch.zeros(20, 2, 8, 8, dtype=torch.uint8)
    pixels[:, :, 2:6, 2:6] = torch.randint(256, (20, 2, 4, 4), generator=seeded(3), dtype=torch.uint8)
    units = matcher(memory, pixels=pixels).units["pixels"]
    assert units[:, 0].min() > 0.1
    black = matcher(formed(Pixels, {"pixels": torch.zeros(3, 2, 8, 8)}, Form()), pixels=pixels)
    assert black.units["pixels"].min() > 1e-4, "what never varies can still be moved"


def test_weights_that_are_alike_still_move() -> None:
    ones = formed(Composite, {"components": torch.rand(1, 2, 8, 8), "weights": torch.ones(1, 4)}, Form())
    assert float(matcher(ones).units["weights"]) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("distance", ["mean", "kernel", "levels"])
def test_a_class_of_one_picture_is_remembered_as_it_is(distance: str) -> None:
    pixels = torch.randint(256, (1, 2, 8, 8), generator=seeded(3), dtype=torch.uint8)
    memory = formed(Pixels, {"pixels": pixels / 255}, Form())
    job = matcher(memory, pixels=pixels, settings=replace(SETTINGS, distance=distance, judged=0.0))
    learned = job.finish(drive({"job": job})["job"])
    assert (learned.images() - pixels / 255).abs().max() < 1e-3


@pytest.mark.parametrize("form", [Form(), Form(bits=8)], ids=str)
@pytest.mark.parametrize("kind", ["pixels", "composite"])
def test_images_that_are_to_stay_do_and_the_others_move(kind: str, form: Form) -> None:
    memory = memory_of(kind, form)
    if isinstance(memory, Composite):  # whose first images are components by themselves
        weights = torch.cat([torch.eye(3)[:, :2], torch.rand(3, 2, generator=seeded(2))], 1)
        memory = formed(Composite, {**memory.numbers(), "weights": weights}, form)
    job = matcher(memory, fixed=2)
    found = job.finish(drive({"job": job})["job"]).images()
    assert (found - memory.images())[:2].abs().max() <= (0 if form.bits == 32 else 1e-2)
    assert ((found - memory.images())[2:].abs().amax((1, 2, 3)) > 0.02).all()
