from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from ccmcl.engine import Batch, Classify, Engine, widened
from ccmcl.learn import AS_IT_IS, PLAIN, STRONG, ZOOM, Distil, Shared, Style, Trainer, logits_of
from ccmcl.loop import drive, section
from ccmcl.nets import ConvNet, Params
from ccmcl.sources import Beside, Evenly, Pictures, Replay, Taught, Turned, Varied, WithLogits, distinct, shares
from ccmcl.values import unit

DOUBLE = torch.float64


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@given(st.integers(1, 400), st.data())
def test_distinct_numbers_are_distinct_and_in_range(count: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, count))
    numbers = distinct(count, size, seeded(data.draw(st.integers(0, 99)))).tolist()
    assert len(set(numbers)) == len(numbers) == size
    assert 0 <= min(numbers) <= max(numbers) < count


@pytest.mark.parametrize("size", [2, 9])
def test_distinct_numbers_are_drawn_evenly(size: int) -> None:
    generator = seeded(0)
    draws = 4000
    drawn = torch.cat([distinct(10, size, generator) for _ in range(draws)])
    shares = torch.bincount(drawn, minlength=10) / draws
    spread = math.sqrt(size / 10 * (1 - size / 10) / draws)
    assert (shares - size / 10).abs().max() < 5 * spread


@pytest.mark.parametrize("remembered", [False, True])
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), batch=st.integers(1, 40), seed=st.integers(0, 99))
def test_as_much_of_every_class_is_drawn_however_large_it_is(
    sizes: list[int], batch: int, seed: int, remembered: bool
) -> None:
    labels = torch.tensor([3 * number for number, size in enumerate(sizes) for _ in range(size)])
    labels = labels[torch.randperm(len(labels), generator=seeded(seed))]
    blank = torch.zeros(len(labels), 1, 4, 4)
    source = Evenly(Replay(blank, labels, batch) if remembered else Pictures(blank.to(torch.uint8), labels, batch))
    drawn = source.draw(seeded(seed))
    assert len(drawn) == source.count == (batch if remembered else min(batch, sum(sizes)))
    counts = torch.bincount(labels[drawn], minlength=3 * len(sizes) - 2)[::3]
    assert int(counts.max() - counts.min()) <= 1


def test_every_picture_of_a_class_is_drawn_as_often_and_in_any_place() -> None:
    labels = torch.tensor([0] * 8 + [1] * 2 + [2] * 4)
    source = Evenly(Pictures(torch.zeros(14, 1, 4, 4, dtype=torch.uint8), labels, 4))
    draws, generator = 6000, seeded(0)
    drawn = torch.stack([source.draw(generator) for _ in range(draws)])
    for label, size in ((0, 8), (1, 2), (2, 4)):
        share = torch.bincount(drawn.flatten(), minlength=14)[labels == label] / (4 * draws)
        assert (share - 1 / 3 / size).abs().max() < 5 * math.sqrt(1 / 3 / size / (4 * draws))
        assert ((labels[drawn] == label).double().mean(0) - 1 / 3).abs().max() < 5 * math.sqrt(2 / 9 / draws)


def test_a_batch_of_new_pictures_and_stored_ones_weighs_both_alike() -> None:
    pixels = torch.randint(256, (50, 1, 8, 8), generator=seeded(0), dtype=torch.uint8)
    stored = torch.rand(3, 1, 8, 8, generator=seeded(1))
    source = Beside(
        Pictures(pixels, torch.zeros(50, dtype=torch.int64), 16),
        Replay(stored, torch.tensor([1, 2, 3]), 16),
    )
    images, labels, weights = source.take(source.draw(seeded(2)))
    assert weights[labels == 0].sum().item() == pytest.approx(0.5)
    assert weights[labels > 0].sum().item() == pytest.approx(0.5)
    assert weights.sum().item() == pytest.approx(1.0)
    known = {tuple(picture.flatten().tolist()) for picture in unit(pixels)}
    fresh = [tuple(image.flatten().tolist()) for image in images[labels == 0]]
    assert set(fresh) <= known
    assert len(set(fresh)) == 16
    assert torch.equal(images[labels > 0], stored)


def by_hand(net_logits: Tensor, stored: list[Tensor], temperature: float) -> float:
    """Mean over examples of −Σ p log q, p and q at the given temperature over the classes known then."""
    total = 0.0
    for now, before in zip(net_logits, stored, strict=True):
        known = len(before)
        p = [math.exp(v / temperature) for v in before.tolist()]
        q = [math.exp(v / temperature) for v in now[:known].tolist()]
        total -= sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
    return total / len(stored)


def test_distillation_equals_the_formula_written_out() -> None:
    net = ConvNet((1, 8, 8), 4)
    params = net.init(seeded(0), 4, DOUBLE)
    images = torch.rand(5, 1, 8, 8, generator=seeded(1), dtype=DOUBLE)
    labels = torch.tensor([2, 3, 0, 1, 2])
    stored = [
        torch.tensor([2.0, -1.0], dtype=DOUBLE),
        torch.tensor([0.5, 1.0], dtype=DOUBLE),
        torch.tensor([0.1, 0.2, 3.0], dtype=DOUBLE),
    ]
    logits = torch.stack([torch.nn.functional.pad(row, (0, 4 - len(row))) for row in stored])
    known = (torch.arange(4) < torch.tensor([[len(row)] for row in stored])).double()
    weights = torch.full((5,), 0.2, dtype=DOUBLE)
    new = torch.zeros(2, 4, dtype=DOUBLE)
    keep = torch.tensor([0, 0, 1, 1, 1], dtype=DOUBLE) / 3
    judge = Distil(net, temperature=2.0)
    value = judge(params, images, labels, 0.4 * weights, torch.cat([new, logits]), torch.cat([new, known]), 0.6 * keep)
    classification = Classify(net)(params, images, labels, weights)
    distillation = by_hand(net(params, images)[-3:], stored, 2.0)
    assert value.item() == pytest.approx(0.4 * classification.item() + 0.6 * distillation, rel=1e-12)


def test_what_a_teacher_says_is_kept_beside_the_shares_of_changed_images() -> None:
    net = ConvNet((1, 8, 8), 4)
    params, before = net.init(seeded(0), 4), net.init(seeded(1), 2)
    images = torch.rand(6, 1, 8, 8, generator=seeded(2))
    varied = Varied(Replay(images, torch.arange(6) % 4, 12, weighting=False), 4, mirrored=False)
    source = Taught(varied, 4, partial(Engine().logits, net, before), 0.75, 2.0)
    drawn = source.draw(seeded(3))
    seen, shared, weights = varied.take(drawn)
    judge = Distil(net, 2.0)
    found = judge(params, *source.take(drawn))
    distillation = by_hand(net(params, seen).double(), list(net(before, seen).double()), 2.0)
    expected = 0.25 * Shared(net)(params, seen, shared, weights).item() + 0.75 * 2.0 * distillation
    assert found.item() == pytest.approx(expected, rel=1e-5)
    wide = judge.widened(source.take(drawn), 6)
    assert torch.allclose(judge(widened(params, 6), *wide), found)


def test_distillation_has_finite_gradients_where_classes_were_unknown() -> None:
    net = ConvNet((1, 8, 8), 4)
    params = net.init(seeded(0), 6)
    images = torch.rand(3, 1, 8, 8, generator=seeded(1))
    known = (torch.arange(6) < torch.tensor([[0], [4], [6]])).float()
    logits = torch.zeros(3, 6)
    even = torch.full((3,), 1 / 6)

    def judge(params: dict[str, Tensor]) -> Tensor:
        return Distil(net)(params, images, torch.tensor([0, 1, 2]), even, logits, known, even)

    gradients = torch.func.grad(judge)(params)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_logits_do_not_depend_on_the_size_of_a_batch() -> None:
    net = ConvNet((1, 8, 8), 8)
    params = net.init(seeded(0), 3)
    pixels = torch.randint(256, (23, 1, 8, 8), generator=seeded(1), dtype=torch.uint8)
    whole = logits_of(net, params, pixels)
    assert whole.shape == (23, 3)
    torch.testing.assert_close(logits_of(net, params, pixels, batch=5), whole)


BOTH = ((1.0, False), (1.0, True))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(0, 100))
def test_judged_twice_a_picture_gets_the_mean_of_its_probabilities_and_those_of_its_mirror_image(
    count: int, seed: int
) -> None:
    net = ConvNet((3, 8, 12), 4, centred=True)
    params = net.init(seeded(seed), 3)
    pixels = torch.randint(256, (count, 3, 8, 12), generator=seeded(seed + 1), dtype=torch.uint8)
    found = logits_of(net, params, pixels, batch=16, views=BOTH)
    mirror = torch.from_numpy(pixels.numpy()[:, :, :, ::-1].copy())
    wanted = (torch.softmax(logits_of(net, params, pixels), 1) + torch.softmax(logits_of(net, params, mirror), 1)) / 2
    torch.testing.assert_close(found.exp(), wanted)
    torch.testing.assert_close(logits_of(net, params, mirror, batch=16, views=BOTH), found)


def test_only_a_style_that_knows_mirrors_judges_twice() -> None:
    found = [replace(style, mirrored=mirrored).views for style in (PLAIN, STRONG) for mirrored in (False, True)]
    assert found == [AS_IT_IS, AS_IT_IS, AS_IT_IS, BOTH]


def test_judged_by_several_looks_a_picture_gets_the_mean_of_their_probabilities() -> None:
    net = ConvNet((1, 8, 8), 4, centred=True)
    params = net.init(seeded(0), 3)
    pixels = torch.randint(256, (5, 1, 8, 8), generator=seeded(1), dtype=torch.uint8)
    views = replace(STRONG, looks=True, mirrored=True).views
    assert sorted(views) == sorted((zoom, side) for zoom in (1 / ZOOM, 1.0, ZOOM) for side in (False, True))
    assert len(replace(PLAIN, looks=True, mirrored=True).views) == 3
    seen = []
    for times, mirror in views:
        matrix = torch.tensor([[1 / times, 0, 0], [0, 1 / times, 0]]).expand(5, 2, 3)
        grid = torch.nn.functional.affine_grid(matrix, [5, 1, 8, 8], align_corners=False)
        images = pixels.float() / 255
        images = images.flip(3) if mirror else images
        images = torch.nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        seen.append(torch.softmax(net(params, images), 1))
    torch.testing.assert_close(logits_of(net, params, pixels, views=views).exp(), torch.stack(seen).mean(0))


class Slope:
    """A source and a loss over two numbers, for watching how steps are taken."""

    count = 1

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(5, (1,), generator=generator)

    def take(self, drawn: torch.Tensor) -> Batch:
        return (drawn.double(),)


def slope(params: Params, batch: Batch) -> tuple[Params, torch.Tensor]:
    gradients, value = torch.func.grad_and_value(lambda p: ((p["w"] * batch[0] - 1) ** 2).sum() + p["b"].sum())(params)
    return gradients, value


@pytest.mark.parametrize(
    "style",
    [
        Style(),
        Style(momentum=0.9),
        Style(decay=0.1),
        Style(momentum=0.9, decay=0.1, cosine=True),
        Style(momentum=0.9, cosine=True, warm=0.4),
        Style(momentum=0.5, average=0.7),
    ],
    ids=str,
)
def test_steps_are_those_of_pytorchs_own_optimiser(style: Style) -> None:
    total, rate = 12, 0.01
    start = {"w": torch.ones(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    job = Trainer(lambda _: start, Slope(), slope, total, rate, torch.Generator().manual_seed(0), style=style)
    found = job.finish(drive({"job": job})["job"])

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    rule = torch.optim.SGD(leaves.values(), rate, momentum=style.momentum, weight_decay=style.decay)
    plain = style.cosine and not style.warm
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, total) if plain else None
    generator, mean = torch.Generator().manual_seed(0), {name: tensor.clone() for name, tensor in start.items()}
    draws = [torch.randint(5, (1,), generator=generator) for _ in range(total)]
    for done, drawn in enumerate(draws):
        rule.zero_grad()
        if style.warm:  # by PyTorch's formula for the cosine, and a line up to it
            fall = (1 + math.cos(math.pi * done / total)) / 2
            rule.param_groups[0]["lr"] = rate * fall * min(1.0, (done + 1) / (style.warm * total))
        loss = ((leaves["w"] * drawn.double() - 1) ** 2).sum() + leaves["b"].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        if schedule is not None:
            schedule.step()
        keep = min(style.average, (1 + done) / (10 + done)) if style.average else 0.0
        mean = {name: keep * mean[name] + (1 - keep) * leaves[name].detach() for name in mean}
    assert all(torch.allclose(found[name], mean[name], atol=1e-12) for name in mean)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
def test_varied_batches_are_changed_and_shared_and_depend_on_the_draw_alone(mirrored: bool, together: bool) -> None:
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    source = Varied(Replay(images, torch.arange(6) % 3, 8, weighting=False), 4, mirrored, together)
    drawn = source.draw(torch.Generator().manual_seed(1))
    first, again = source.take(drawn), source.take(drawn)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    seen, targets, weights = first
    assert seen.shape == (8, 3, 16, 16)
    assert targets.shape == (8, 4)
    assert torch.allclose(targets.sum(1), torch.ones(8))
    assert torch.allclose(weights, torch.full((8,), 1 / 8))
    assert (seen - images[drawn[:8]]).abs().amax((1, 2, 3)).gt(0.01).any()


def test_stored_logits_stay_with_their_changed_pictures() -> None:
    new = Pictures(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), 3)
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    logits, known = torch.arange(8.0).reshape(4, 2), torch.ones(4, 2)
    plain = WithLogits(new, images, torch.ones(4, dtype=torch.int64), logits, known, 3, 0.5, weighting=False)
    varied = Varied(plain, 2, mirrored=False)
    drawn = varied.draw(torch.Generator().manual_seed(1))
    for changed, before in zip(varied.take(drawn)[1:], plain.take(drawn[: varied.count])[1:], strict=True):
        assert torch.equal(changed, before)


def test_shared_targets_judge_as_cross_entropy_does() -> None:
    net = ConvNet((1, 8, 8), 4)
    params = net.init(torch.Generator().manual_seed(0), 3)
    images, targets = torch.rand(5, 1, 8, 8), torch.softmax(torch.randn(5, 3), 1)
    weights = torch.rand(5)
    wanted = (torch.nn.functional.cross_entropy(net(params, images), targets, reduction="none") * weights).sum()
    assert torch.allclose(Shared(net)(params, images, targets, weights), wanted)
    hard = torch.tensor([0, 2, 1, 1, 0])
    assert torch.allclose(
        Shared(net)(params, images, shares(hard, 3, images), weights), Classify(net)(params, images, hard, weights)
    )
    wide = Shared(net).widened((images, targets, weights), 5)
    assert torch.allclose(Shared(net)(widened(params, 5), *wide), wanted)


@pytest.mark.parametrize(("size", "ways"), [((6, 6), 4), ((6, 4), 2)])
def test_turned_pictures_are_classes_of_their_own_in_each_direction(size: tuple[int, int], ways: int) -> None:
    images = torch.rand(5, 2, *size, generator=seeded(0))
    plain = Replay(images, shares(torch.arange(5) % 3, 3, images), 12, weighting=False)
    source = Turned(plain)
    drawn = source.draw(seeded(1))
    turned, targets, weights = source.take(drawn)
    before, labels, same = plain.take(drawn[:12])
    assert targets.shape == (12, 3 * ways)
    assert torch.equal(weights, same)
    found = set()
    for image, original, target, label in zip(turned, before, targets, labels, strict=True):
        way, number = divmod(int(target.argmax()), 3)
        assert float(target.sum()) == 1
        assert number == int(label.argmax())
        assert torch.equal(image, original.rot90(4 // ways * way, (1, 2)))
        found.add(way)
    assert found == set(range(ways))


@pytest.mark.parametrize(("steps", "moments", "kept"), [(8, 4, [2, 4, 6]), (5, 2, [2]), (3, 1, []), (2, 4, [1])])
def test_a_course_is_the_network_as_it_was_at_even_moments(steps: int, moments: int, kept: list[int]) -> None:
    net, engine = ConvNet((1, 8, 8), 4), Engine()
    pixels = torch.randint(256, (30, 1, 8, 8), generator=seeded(0), dtype=torch.uint8)
    source = Pictures(pixels, torch.arange(30) % 2, 8)
    job = Trainer(
        lambda generator: net.init(generator, 2),
        source,
        partial(engine.gradient, Classify(net)),
        steps,
        0.1,
        seeded(1),
        style=Style(momentum=0.9, average=0.5),
        moments=moments,
    )
    state, seen = job.init(), {}
    while int(state["step"]) < steps:
        state, _ = job.step({name: tensor.clone() for name, tensor in state.items()})
        seen[int(state["step"])] = section(state, "params")
    course = job.course(state)
    assert len(course) == len(kept) + 1
    for params, step in zip(course, kept, strict=False):
        assert all(torch.equal(params[name], tensor) for name, tensor in seen[step].items())
    assert all(torch.equal(course[-1][name], tensor) for name, tensor in job.finish(state).items())
    assert not torch.equal(course[-1]["head.weight"], seen[steps]["head.weight"]), "what comes out is the mean"
