"""How numbers become images: rounding that is seen while learning is the rounding of what is stored."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccmcl.errors import InputError
from ccmcl.forms import Form, packed, unpacked
from ccmcl.kinds import Composite, Pixels


def numbers_for(seed: int, spread: float = 1.0) -> dict[str, torch.Tensor]:
    """Draw components of one class and their weights."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "components": spread * torch.randn(3, 2, 4, 5, generator=generator),
        "weights": torch.randn(3, 6, generator=generator),
    }


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_eight_bits_are_off_by_half_a_level_at_most(seed: int, spread: float, middle: float) -> None:
    numbers = middle + spread * torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(seed))
    codes, scales = packed(numbers)
    off = (unpacked(codes, scales) - numbers).abs().flatten(1).amax(1)
    level = (numbers.flatten(1).amax(1) - numbers.flatten(1).amin(1)) / 255
    # Range and level are in 16 bits themselves: eleven binary places each.
    assert (off <= 0.51 * level + 2.0**-11 * (256 * level + numbers.flatten(1).abs().amax(1)) + 1e-5).all()
    again, same = packed(unpacked(codes, scales))
    assert (
        torch.equal(unpacked(again, same).round(decimals=3), unpacked(codes, scales).round(decimals=3))
        or ((unpacked(again, same) - unpacked(codes, scales)).abs().flatten(1).amax(1) <= 1.5 * level + 1e-3).all()
    )


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("size", [None, (8, 10)])
def test_what_is_learned_is_what_is_stored(bits: int, squash: bool, size: tuple[int, int] | None) -> None:
    form = Form(size, squash, bits)
    numbers = numbers_for(0)
    assert torch.equal(form.images(numbers), Composite(**form.stored(numbers), form=form).images())
    free = {"pixels": numbers["components"]}
    assert torch.equal(form.images(free), Pixels(**form.stored(free), form=form).images())


@pytest.mark.parametrize("bits", [8, 16])
def test_the_gradient_passes_the_rounding(bits: int) -> None:
    numbers = numbers_for(1)
    seen = torch.func.grad(lambda part: Form(bits=bits).images(part).sum())(numbers)
    kept = Form(bits=bits).loaded(Form(bits=bits).stored(numbers))
    plain = torch.func.grad(lambda part: Form().images(part).sum())(kept)
    assert all(torch.allclose(seen[name], plain[name], atol=1e-5) for name in numbers)
    assert (Form(bits=bits).images(numbers) - Form().images(numbers)).abs().max() > 0


def test_images_are_enlarged_after_mixing() -> None:
    numbers = numbers_for(2)
    large = torch.nn.functional.interpolate(
        torch.sigmoid(torch.tensordot(numbers["weights"].T, numbers["components"], 1)), (8, 10), mode="bilinear"
    )
    assert torch.allclose(Form((8, 10), squash=True).images(numbers), large, atol=1e-6)


def test_several_classes_at_once_are_the_same_as_one_by_one() -> None:
    form, parts = Form((8, 10), squash=True), [numbers_for(seed) for seed in range(3)]
    stacked = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    assert torch.allclose(form.decoded(stacked), torch.stack([form.decoded(part) for part in parts]), atol=1e-6)


def test_other_bits_are_refused() -> None:
    with pytest.raises(InputError, match="7"):
        Form(bits=7)
