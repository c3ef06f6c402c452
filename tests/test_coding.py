"""Whole numbers in few bits: every one comes back, none takes more room than it is worth, and no code does harm."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccmcl.coding import (
    ALIKE,
    ESCAPE,
    FURTHEST,
    MIDDLE,
    OF_A_LANE,
    WHOLE,
    WIDEST,
    _tables,
    beside,
    bits_of,
    decoded,
    encoded,
    lanes_of,
    least_bits,
)
from ccmcl.errors import InputError

SHARES = "11b02cafbbc5edced90aa3211888baec4b259af62b0b0e365db200a01492a741"
FAR = st.sampled_from([MIDDLE, MIDDLE + 1, -MIDDLE - 1, 1000, FURTHEST, -FURTHEST])


def laplace(rows: int, columns: int, seed: int = 0, widest: float = 20.0) -> Tensor:
    """Draw numbers of which the first columns vary most."""
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.laplace(0, np.geomspace(widest, 0.05, columns), (rows, columns)).round()).int()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(0, 1 << 30),
    st.lists(st.tuples(st.integers(0, 1 << 20), FAR), max_size=5),
)
def test_every_number_comes_back(rows: int, columns: int, seed: int, far: list[tuple[int, int]]) -> None:
    numbers = laplace(rows, columns, seed)
    for place, value in far:
        numbers.view(-1)[place % numbers.numel()] = value
    code, widths = encoded(numbers)
    assert torch.equal(decoded(code, widths, rows, columns), numbers)
    assert len(widths) == -(-columns // ALIKE)


@pytest.mark.parametrize("rows", [1, 7, OF_A_LANE // 10, OF_A_LANE, 3 * OF_A_LANE + 5])
def test_symbols_of_any_number_are_dealt_out_to_lanes(rows: int) -> None:
    numbers = laplace(rows, 10)
    numbers[-1, -1] = 5000  # in the last lane, which may have nothing beside it
    assert lanes_of(numbers.numel()) == max(1, numbers.numel() // OF_A_LANE)
    code, widths = encoded(numbers)
    assert torch.equal(decoded(code, widths, *numbers.shape), numbers)


@pytest.mark.parametrize("columns", [64, 300])
def test_a_code_is_as_short_as_the_numbers_allow(columns: int) -> None:
    numbers = laplace(3000, columns)
    each = []
    for column in numbers.T:
        _, counts = column.unique(return_counts=True)
        shares = counts / len(column)
        each.append(float(-(shares * shares.log2()).sum()))
    code, widths = encoded(numbers)
    entropy = 3000 * sum(each) / 8
    assert entropy < len(code) + len(widths) < 1.06 * entropy + 100


def test_numbers_that_are_nothing_take_nearly_nothing() -> None:
    code, widths = encoded(torch.zeros(1000, 100, dtype=torch.int32))
    assert len(code) + len(widths) < 1000 * 100 / 100 + beside(1000, 100)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 1 << 30))
def test_the_size_of_a_code_is_known_before_it_is_made(rows: int, columns: int, seed: int) -> None:
    numbers = laplace(rows, columns, seed)
    code, widths = encoded(numbers)
    predicted = float(bits_of(numbers).sum()) / 8 + beside(rows, columns)
    assert abs(len(code) + len(widths) - predicted) <= 8 + 8 * lanes_of(numbers.numel()) + 0.002 * predicted


def test_shares_are_whole_even_and_the_same_on_every_machine() -> None:
    starts, shares, symbols = _tables()
    assert shares.shape == (WIDEST + 1, ESCAPE + 1)
    assert (shares.sum(1) == WHOLE).all()
    assert shares.min() >= 1
    assert (shares[:, :MIDDLE] == shares[:, MIDDLE + 1 : ESCAPE][:, ::-1]).all()
    assert (np.diff(shares[:, MIDDLE].astype(int)) < 0).all(), "the wider, the less of it is zero"
    assert (symbols[5][starts[5].astype(int)] == np.arange(ESCAPE + 1)).all()
    assert math.isclose(least_bits(), -math.log2(int(shares[0, MIDDLE]) / WHOLE))
    digest = hashlib.sha256(shares.astype("<u4").tobytes()).hexdigest()
    assert digest == SHARES, "files that were written would be read otherwise"


def test_what_cannot_be_coded_is_refused() -> None:
    with pytest.raises(ValueError, match="32767"):
        encoded(torch.tensor([[FURTHEST + 1]], dtype=torch.int32))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_code_changed_anywhere_is_refused_or_means_other_numbers(data: st.DataObject) -> None:
    numbers = laplace(20, 9)
    code, widths = encoded(numbers)
    place, value = data.draw(st.integers(0, len(code) - 1)), data.draw(st.integers(0, 255))
    was, code[place] = int(code[place]), value
    try:
        found = decoded(code, widths, 20, 9)
    except InputError:
        assert value != was
    else:
        assert torch.equal(found, numbers) == (value == was)


@pytest.mark.parametrize(
    ("rows", "columns", "cut", "widths"),
    [
        (20, 9, 1, None),
        (20, 9, 2, None),
        (20, 9, 1000, None),
        (19, 9, 0, None),
        (21, 9, 0, None),
        (20, 8, 0, None),
        (20, 17, 0, None),
        (0, 9, 0, None),
        (-1, 9, 0, None),
        (1 << 31, 9, 0, None),
        (20, 9, 0, [WIDEST + 1, 0]),
        (20, 9, 0, [3]),
        (20, 9, 0, []),
    ],
)
def test_a_code_that_does_not_fit_is_refused(rows: int, columns: int, cut: int, widths: list[int] | None) -> None:
    code, right = encoded(laplace(20, 9))
    given = right if widths is None else torch.tensor(widths, dtype=torch.uint8)
    with pytest.raises(InputError, match="damaged"):
        decoded(code[: max(0, len(code) - cut)], given, rows, columns)


def test_numbers_that_no_code_of_ours_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = laplace(20, 9)
    numbers[3, 4] = -FURTHEST - 1
    monkeypatch.setattr("ccmcl.coding.FURTHEST", FURTHEST + 1)
    code, widths = encoded(numbers)
    monkeypatch.undo()
    with pytest.raises(InputError, match="damaged"):
        decoded(code, widths, 20, 9)


def test_a_few_bytes_cannot_ask_for_gigabytes() -> None:
    code, widths = encoded(torch.zeros(10, 8, dtype=torch.int32))
    with pytest.raises(InputError, match="damaged"):
        decoded(code, widths, 1 << 30, 8)
