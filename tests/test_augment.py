"""Changed pictures: each change is what it says, differentiable, and none when asked for none."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccmcl.augment import CHANGES, STILL, changed, changes, mixed_in, several


def row(kind: str, a: float = 0.5, b: float = 0.5, c: float = 0.5, size: tuple[int, int] = (16, 16)) -> Tensor:
    """Make the row of one change."""
    chance = (CHANGES.index(kind) + 0.5) / len(CHANGES)
    return changes(torch.tensor([[chance, a, b, c]], dtype=torch.float64), size, mirrored=True)


IMAGES = torch.rand(1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_row_that_asks_for_nothing_changes_nothing() -> None:
    assert torch.allclose(changed(IMAGES, torch.tensor([STILL], dtype=torch.float64)), IMAGES)


def test_a_flip_is_a_mirror_half_of_the_time() -> None:
    assert torch.allclose(changed(IMAGES, row("flip", a=0.1)), IMAGES.flip(-1))
    assert torch.allclose(changed(IMAGES, row("flip", a=0.9)), IMAGES)


@pytest.mark.parametrize(("a", "right"), [(0.0, 2), (0.5, 0), (0.999, -2)])
def test_a_crop_shifts_by_whole_pixels_and_the_edge_goes_on(a: float, right: int) -> None:
    moved = changed(IMAGES, row("crop", a=a, b=0.5))
    columns = (torch.arange(16) - right).clamp(0, 15)
    assert torch.allclose(moved, IMAGES[..., columns])


def test_a_cutout_leaves_a_square_of_half_the_side_in_the_mean_colour() -> None:
    cut = changed(IMAGES, row("cutout"))
    gone = torch.isclose(cut, IMAGES.mean((2, 3), keepdim=True)).all(1)[0]
    assert gone.sum() == 64
    assert gone[4:12, 4:12].all()
    assert torch.allclose(cut[:, :, ~gone], IMAGES[:, :, ~gone])


def test_a_turn_is_that_of_the_angle() -> None:
    spot = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    spot[0, 0, 16, 30] = 1.0  # 14 pixels right of the middle
    turned = changed(spot, row("rotate", a=1.0, size=(33, 33)))[0, 0]
    y, x = divmod(int(turned.argmax()), 33)
    angle = math.radians(15)
    assert abs(x - (16 + 14 * math.cos(angle))) <= 1
    assert abs(abs(y - 16) - 14 * math.sin(angle)) <= 1


def test_colour_changes_brightness_saturation_and_contrast_only() -> None:
    assert torch.allclose(changed(IMAGES, row("colour", a=0.5, b=0.5, c=0.5)), IMAGES)
    brighter = changed(IMAGES, row("colour", a=1.0, b=0.5, c=0.5))
    assert torch.allclose(brighter, IMAGES + 0.125)
    grey = changed(IMAGES, row("colour", a=0.5, b=0.0, c=0.5))
    assert torch.allclose(grey, IMAGES.mean(1, keepdim=True).expand_as(IMAGES))
    stark = changed(IMAGES, row("colour", a=0.5, b=0.5, c=0.999999999))
    assert float(stark.std() / IMAGES.std()) == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("kind", CHANGES)
def test_the_gradient_by_the_pictures_is_right(kind: str) -> None:
    images = torch.rand(2, 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = row(kind, 0.3, 0.8, 0.6, (6, 5)).expand(2, -1)
    assert torch.autograd.gradcheck(lambda x: changed(x, table), images.requires_grad_())


def test_every_change_comes_up_as_often_and_characters_are_never_mirrored() -> None:
    chance = torch.rand(6000, 4, generator=torch.Generator().manual_seed(2))
    still = torch.tensor(STILL)
    for mirrored, kinds in ((True, 6), (False, 5)):
        table = changes(chance, (32, 32), mirrored)
        colour = (table[:, 6:9] != still[6:9]).any(1).float().mean()
        cut = (table[:, 11] > 0).float().mean()
        assert float(colour) == pytest.approx(1 / kinds, abs=0.02)
        assert float(cut) == pytest.approx(1 / kinds, abs=0.02)
        assert bool((table[:, 0] < 0).any()) == mirrored


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_a_mixture_has_as_much_of_each_target_as_of_each_picture(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(4, generator=generator, dtype=torch.float64)
    images = torch.arange(count, dtype=torch.float64)[:, None, None, None].expand(count, 1, 10, 12)
    mixed, targets = mixed_in(images, torch.eye(count, dtype=torch.float64), chance)
    for number in range(count):
        found = F.one_hot(mixed[number, 0].long().flatten(), count).double().mean(0)
        assert torch.allclose(found, targets[number])
        assert set(mixed[number].flatten().tolist()) <= {float(number), float((number - max(1, count // 2)) % count)}
    if chance[3] >= 0.5:
        assert torch.equal(mixed, images)


def chances(**given: tuple[float, float, float]) -> Tensor:
    """Let the changes happen that are given, by their three numbers, and no others."""
    rows = [(0.0, *given[name]) if name in given else (0.9, 0.9, 0.5, 0.5) for name in CHANGES]
    return torch.tensor([rows], dtype=torch.float64)


def test_of_several_changes_none_may_happen() -> None:
    assert torch.equal(several(chances(), (16, 16), mirrored=True), torch.tensor([STILL], dtype=torch.float64))


@pytest.mark.parametrize("kind", CHANGES)
def test_of_several_changes_one_alone_is_the_same_as_ever(kind: str) -> None:
    numbers = (0.3, 0.8, 0.6)
    torch.testing.assert_close(several(chances(**{kind: numbers}), (16, 16), mirrored=True), row(kind, *numbers))


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 0.999), st.floats(0, 0.999), st.booleans(), st.floats(0, 0.999))
def test_several_changes_are_one_after_the_other(a: float, b: float, flip: bool, bright: float) -> None:
    a_flip = (0.1 if flip else 0.9, 0.5, 0.5)
    shifts = torch.nn.ReplicationPad2d(4)(IMAGES[:, :, 4:12, 4:12])  # of an even border, so that no shift meets an edge
    one_by_one = changed(shifts, row("colour", bright, 0.7, 0.2))
    one_by_one = changed(changed(one_by_one, row("crop", a, b)), row("flip", *a_flip))
    at_once = several(chances(colour=(bright, 0.7, 0.2), crop=(a, b, 0.5), flip=a_flip), (16, 16), mirrored=True)
    torch.testing.assert_close(changed(shifts, at_once), one_by_one)


def test_several_changes_meet_as_often_as_each_of_them_allows() -> None:
    chance = torch.rand(6000, 6, 4, generator=torch.Generator().manual_seed(3))
    table, still = several(chance, (32, 32), mirrored=True), torch.tensor(STILL)
    colour, cut = (table[:, 6:9] != still[6:9]).any(1), table[:, 11] > 0
    turned = table[:, 3] != 0
    flipped = table[:, 0] < 0
    for happens in (colour, cut, turned, flipped):
        assert float(happens.float().mean()) == pytest.approx(1 / 2, abs=0.02)
    assert float((colour & cut & turned & flipped).float().mean()) == pytest.approx(1 / 16, abs=0.02)
    assert bool((several(chance[:, :5], (32, 32), mirrored=False)[:, 0] > 0).all())
