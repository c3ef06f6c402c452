"""Arrays and labels as people bring them, and what is said of those that cannot be used."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccmcl.arrays import in_order, label_array, label_from_json, label_to_json, labels_of, pixels_of, plain_colour
from ccmcl.errors import InputError

plain_labels = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
labels = st.recursive(plain_labels, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


def ramp(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


def test_grey_arrays_get_one_channel() -> None:
    array = ramp(2, 4, 5)
    assert torch.equal(pixels_of(array), torch.from_numpy(array)[:, None])
    assert torch.equal(pixels_of(torch.from_numpy(array)), torch.from_numpy(array)[:, None])
    assert torch.equal(pixels_of(array.tolist() / np.float64(255)), torch.from_numpy(array)[:, None])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_arrays_have_their_channels_last_and_tensors_first(channels: int) -> None:
    array = ramp(2, 4, 5, channels)
    pixels = pixels_of(array)
    assert pixels.shape == (2, channels, 4, 5)
    assert pixels.is_contiguous()
    for n, row, column, channel in np.ndindex(2, 4, 5, channels):
        assert pixels[n, channel, row, column] == array[n, row, column, channel]
    assert torch.equal(pixels_of(pixels), pixels)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_shade_survives_as_a_float(dtype: type[np.floating[Any]]) -> None:
    shades = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    floats = (shades / 255).astype(dtype)
    assert torch.equal(pixels_of(floats), pixels_of(shades))
    assert torch.equal(pixels_of(torch.from_numpy(floats)), pixels_of(shades))


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_floats_are_rounded_to_the_nearest_shade(values: list[float]) -> None:
    shades = pixels_of(np.array(values, np.float64).reshape(1, 1, -1)).flatten().tolist()
    for value, shade in zip(values, shades, strict=True):
        assert abs(shade - 255 * Fraction(value)) <= Fraction(1, 2) + Fraction(1, 10**9)


def test_arrays_in_any_layout_and_tensors_with_a_gradient_are_welcome() -> None:
    array = ramp(4, 6, 8)
    assert torch.equal(pixels_of(array[::-1, ::2, ::-1]), pixels_of(array[::-1, ::2, ::-1].copy()))
    assert torch.equal(pixels_of(np.asfortranarray(array)), pixels_of(array))
    assert set(pixels_of(torch.full((2, 3, 4, 4), 0.2, requires_grad=True)).flatten().tolist()) == {51}


def test_arrays_that_may_not_be_written_are_welcome() -> None:
    array = ramp(2, 4, 4)
    array.flags.writeable = False
    torch.set_warn_always(True)  # else torch warns of this once in a program, and not here if it did before
    try:
        pixels = pixels_of(array)
    finally:
        torch.set_warn_always(False)
    assert pixels.tolist() == array[:, None].tolist()


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, 4), (4, 4), (4,), (1, 2, 3, 4, 5), (2, 4, 4, 0)])
def test_shapes_that_are_no_pictures_are_refused(shape: tuple[int, ...]) -> None:
    for x in (np.zeros(shape), torch.zeros(shape)):
        with pytest.raises(InputError) as caught:
            pixels_of(x)
        assert str(caught.value).startswith(f"Images of shape {shape} cannot be used: give (N, H, W), (N, H, W, C)")


def test_channels_in_the_wrong_place_are_found_out() -> None:
    with pytest.raises(InputError, match=r"Images of shape \(2, 3, 32, 32\) would have 32 channels"):
        pixels_of(np.zeros((2, 3, 32, 32)))
    with pytest.raises(InputError, match=r"Images of shape \(2, 32, 32, 3\) would have 32 channels"):
        pixels_of(torch.zeros(2, 32, 32, 3))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.bool_, np.complex64])
def test_other_numbers_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(InputError, match="give uint8, or floats in"):
        pixels_of(np.zeros((2, 4, 4), dtype))


@pytest.mark.parametrize(
    "x", [None, "pictures", [[1, 2], [3]], object(), [np.zeros((2, 2)), np.zeros((3, 3))], [["a"]], {"a": 1}]
)
def test_what_is_no_array_is_refused(x: object) -> None:
    with pytest.raises(InputError, match="Images must be one array of numbers, all pictures of the same size"):
        pixels_of(x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_images_with_values_that_are_not_numbers_are_refused(value: float) -> None:
    array = np.zeros((2, 4, 4))
    array[1, 2, 3] = value
    with pytest.raises(InputError, match="The images hold NaN or infinite values: clean them first"):
        pixels_of(array)


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-1, 1), (0, 1.001), (-0.001, 1)])
def test_floats_outside_of_zero_and_one_are_refused(low: float, high: float) -> None:
    array = np.full((2, 4, 4), low, np.float64)
    array[0, 0, 0] = high
    with pytest.raises(InputError) as caught:
        pixels_of(array)
    assert str(caught.value) == f"Float images must lie in [0, 1], these go from {low:g} to {high:g}: scale them first."


@pytest.mark.parametrize(
    "y",
    [
        [2, 3, 2],
        (2, 3, 2),
        np.array([2, 3, 2]),
        np.array([2, 3, 2], np.uint8),
        np.array([2, 3, 2], object),
        torch.tensor([2, 3, 2]),
        list(np.array([2, 3, 2], np.int16)),
        [torch.tensor(2), torch.tensor(3), torch.tensor(2)],
        [torch.tensor([2]), torch.tensor([3]), torch.tensor([2])],
        [np.array([2]), np.array([[3]]), np.array(2)],
        iter([2, 3, 2]),
    ],
    ids=lambda y: type(y).__name__,
)
def test_labels_become_python_s_own_numbers(y: object) -> None:
    found = labels_of(y)
    assert found == [2, 3, 2]
    assert [type(label) for label in found] == [int, int, int]


def test_numbers_in_tuples_become_python_s_own() -> None:
    (found,) = labels_of([("a", np.int64(1), (torch.tensor(2),))])
    assert found == ("a", 1, (2,))
    assert label_from_json(label_to_json(found)) == found


def test_a_label_of_several_values_is_refused() -> None:
    with pytest.raises(InputError, match=r"an array of shape \(2,\)"):
        labels_of([torch.tensor([1, 2]), torch.tensor([1, 3])])


def test_words_stay_words() -> None:
    for y in (["cat", "dög"], np.array(["cat", "dög"]), np.array(["cat", "dög"], object)):
        found = labels_of(y)
        assert found == ["cat", "dög"]
        assert {type(label) for label in found} == {str}


@pytest.mark.parametrize("y", ["cat", 3, None, np.array(3), torch.tensor(3)], ids=repr)
def test_one_label_is_no_list_of_labels(y: object) -> None:
    with pytest.raises(InputError, match="Labels must be a list or an array, one for each picture"):
        labels_of(y)


@pytest.mark.parametrize(
    "label", [[1], {"a": 1}, {1}, float("nan"), np.float32("nan"), ("a", [1]), (1, ("b", {}))], ids=repr
)
def test_labels_that_cannot_be_looked_up_are_refused(label: object) -> None:
    with pytest.raises(InputError, match=r"A label cannot be .*: give hashable values such as numbers or words"):
        labels_of(["fine", label])


def test_arrays_of_rows_are_no_labels() -> None:
    for y in (np.eye(3), torch.eye(3)):
        with pytest.raises(InputError, match="A label cannot be"):
            labels_of(y)


@given(
    st.lists(st.none() | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2))),
    st.randoms(use_true_random=False),
)
def test_the_order_of_labels_does_not_depend_on_how_they_came(given: list[Any], shuffle: Random) -> None:
    ordered = in_order(given)
    assert len(ordered) == len(set(given))
    assert set(ordered) == set(given)
    shuffle.shuffle(given)
    assert in_order(given) == ordered


def test_labels_that_can_be_are_sorted() -> None:
    assert in_order([10, 9, 2, 9]) == [2, 9, 10]
    assert in_order(["b", "B", "a"]) == ["B", "a", "b"]
    assert in_order([2.5, 1, 10]) == [1, 2.5, 10]


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        (["cat", "a longer word"], "U"),
        ([3, -4], "i"),
        ([0.5, 2.0], "f"),
        ([True, False], "b"),
        ([("a", 1), ("b", 2)], "O"),
        ([("a",), ("b", 2)], "O"),
        ([1, "one"], "O"),
        ([1, 2.5], "O"),
        ([None, "x"], "O"),
        ([2**70, 3], "O"),
        ([2**63 + 1, 2**63 + 3], "u"),
        ([7, 2**63 + 1], "O"),
        (["b\0", "b"], "O"),
    ],
)
def test_labels_are_looked_up_by_number(known: list[Any], kind: str) -> None:
    found = label_array(known, torch.tensor([1, 0, 1]))
    assert found.shape == (3,)
    assert found.dtype.kind == kind
    assert found.tolist() == [known[1], known[0], known[1]]


@given(labels)
def test_a_label_comes_back_from_json(label: object) -> None:
    again = label_from_json(json.loads(json.dumps(label_to_json(label))))
    assert repr(again) == repr(label)


@pytest.mark.parametrize("label", [b"bytes", frozenset({1}), 1j, ("a", b"b")], ids=repr)
def test_labels_that_json_has_no_word_for_are_refused(label: Any) -> None:
    with pytest.raises(InputError, match="only numbers, words, None and tuples of them can"):
        label_to_json(label)


@pytest.mark.parametrize(
    "value", [[], ["a"], {}, {"tuple": "ab"}, {"tuple": [], "x": 1}, {"tuple": [[]]}, {"list": []}, {"tuple": None}]
)
def test_what_is_no_label_in_a_file_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="is not a label"):
        label_from_json(value)


def test_a_label_nested_without_end_is_refused() -> None:
    value: object = 1
    for _ in range(5000):
        value = {"tuple": [value]}
    with pytest.raises(InputError):
        label_from_json(value)


def test_pictures_of_one_colour_are_known_by_every_channel_and_every_picture() -> None:
    plain = torch.tensor([[1, 2, 3], [7, 7, 7]], dtype=torch.uint8)[:, :, None, None].expand(2, 3, 4, 4).clone()
    assert plain_colour(plain).all()
    for position in ((0, 0, 0, 0), (1, 2, 3, 3)):
        dotted = plain.clone()
        dotted[position] += 1
        assert not plain_colour(dotted).all()
