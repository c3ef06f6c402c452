"""Streams: every class arrives once, every picture is somewhere, and labels follow the order of arrival."""

from __future__ import annotations

import itertools
from random import Random
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ccmcl.data import Images
from ccmcl.errors import InputError
from ccmcl.stream import Experience, Stream, class_order, experience_sizes


def images_of(labels: list[int], classes: int) -> Images:
    """Make pictures that carry their own number, so that each can be told from the others."""
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    names = tuple(f"class {k}" for k in range(classes))
    return Images(pixels, torch.tensor(labels, dtype=torch.int64), names)


def numbers(experience: Experience) -> list[int]:
    return experience.pixels[:, 0, 0, 0].tolist()


class Case(NamedTuple):
    labels: list[int]
    classes: int
    order: list[int]
    sizes: list[int]

    @property
    def stream(self) -> Stream:
        return Stream.of(images_of(self.labels, self.classes), self.order, self.sizes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    classes = draw(st.integers(1, 12))
    labels = draw(st.lists(st.integers(0, classes - 1), max_size=60))
    order = draw(st.lists(st.integers(0, classes - 1), unique=True, min_size=1))
    sizes: list[int] = []
    while sum(sizes) < len(order):
        sizes.append(draw(st.integers(1, len(order) - sum(sizes))))
    return Case(labels, classes, order, sizes)


@given(cases())
def test_every_class_arrives_exactly_once(case: Case) -> None:
    stream = case.stream
    arrived = [number for experience in stream for number in experience.classes]
    assert arrived == list(range(len(case.order)))
    assert sorted(stream.names) == sorted(f"class {k}" for k in case.order)
    assert [len(experience.classes) for experience in stream] == case.sizes
    assert len(stream) == len(case.sizes)
    assert stream.groups == tuple(experience.classes for experience in stream)


@given(cases())
def test_experiences_share_out_the_pictures_of_the_classes_chosen(case: Case) -> None:
    stream = case.stream
    seen = [number for experience in stream for number in numbers(experience)]
    chosen = [number for number, label in enumerate(case.labels) if label in case.order]
    assert sorted(seen) == chosen


@given(cases())
def test_labels_are_numbers_of_arrival(case: Case) -> None:
    stream = case.stream
    for experience in stream:
        assert set(experience.labels.tolist()) <= set(experience.classes)
        for number, label in zip(numbers(experience), experience.labels.tolist(), strict=True):
            assert stream.names[label] == f"class {case.labels[number]}"
        for label in experience.classes:
            own = [
                n for n, found in zip(numbers(experience), experience.labels.tolist(), strict=True) if found == label
            ]
            assert experience.of_class(label)[:, 0, 0, 0].tolist() == own


@given(cases(), st.randoms(use_true_random=False))
def test_how_the_classes_of_an_experience_are_listed_does_not_matter(case: Case, shuffle: Random) -> None:
    ends = list(itertools.accumulate(case.sizes))
    groups = [case.order[end - size : end] for end, size in zip(ends, case.sizes, strict=True)]
    for group in groups:
        shuffle.shuffle(group)
    one = case.stream
    other = case._replace(order=[k for group in groups for k in group]).stream
    assert one.names == other.names
    for a, b in zip(one, other, strict=True):
        assert a.classes == b.classes
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)


@given(cases())
def test_experiences_come_in_the_order_asked_for(case: Case) -> None:
    stream = case.stream
    ends = list(itertools.accumulate(case.sizes))
    for group, end, size in zip(stream.groups, ends, case.sizes, strict=True):
        assert {stream.names[k] for k in group} == {f"class {k}" for k in case.order[end - size : end]}


@given(cases())
def test_test_images_are_cut_by_the_same_numbers(case: Case) -> None:
    stream = case.stream
    other = images_of([k for k in range(case.classes) for _ in range(2)], case.classes)
    pixels, labels = stream.cut(other, range(len(case.order)))
    assert [stream.names[label] for label in labels.tolist()] == [
        f"class {number // 2}" for number in pixels[:, 0, 0, 0].tolist()
    ]
    assert len(pixels) == 2 * len(case.order)


def test_without_an_order_classes_come_as_in_the_data_two_at_a_time() -> None:
    stream = Stream.of(images_of([4, 3, 2, 1, 0, 0], 5))
    assert stream.names == ("class 0", "class 1", "class 2", "class 3", "class 4")
    assert stream.groups == ((0, 1), (2, 3), (4,))
    assert [numbers(experience) for experience in stream] == [[3, 4, 5], [1, 2], [0]]


def test_the_last_experience_can_be_asked_for_from_the_end() -> None:
    stream = Stream.of(images_of([0, 1, 2], 3), sizes=1)
    assert stream[-1].classes == (2,)
    assert stream[-1].index == 2
    assert [experience.index for experience in stream] == [0, 1, 2]
    with pytest.raises(IndexError):
        stream[3]


def test_a_class_without_pictures_still_arrives() -> None:
    stream = Stream.of(images_of([0, 0, 2], 3), sizes=1)
    assert stream[1].classes == (1,)
    assert stream[1].pixels.shape == (0, 1, 2, 2)
    assert stream[2].labels.tolist() == [2]


@pytest.mark.parametrize("order", [[], [0, 0], [3], [-1], [0, 1, 2, 3], [1, 2, 1]])
def test_an_order_that_does_not_fit_is_refused(order: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        Stream.of(images_of([0, 1, 2], 3), order)
    assert str(caught.value) == (
        f"The class order {order} does not fit: expected distinct class numbers from 0 to 2 "
        "(3 classes are in the data)."
    )


@pytest.mark.parametrize("sizes", [[], [0, 3], [2, 2], [1, 1], [-1, 4], [3, 0]])
def test_sizes_that_do_not_add_up_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        Stream.of(images_of([0, 1, 2], 3), sizes=sizes)
    assert str(caught.value) == (
        f"The experiences {sizes} hold {sum(sizes)} classes, but the stream has 3: "
        "give sizes of at least 1 that add up to 3."
    )


@pytest.mark.parametrize("size", [0, -2])
def test_an_experience_without_classes_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"An experience needs at least one class, not {size}."):
        Stream.of(images_of([0, 1, 2], 3), sizes=size)


@given(st.integers(1, 50), st.integers(1, 60))
def test_one_size_leaves_the_rest_to_the_last(size: int, classes: int) -> None:
    sizes = experience_sizes(size, classes)
    assert sum(sizes) == classes
    assert set(sizes[:-1]) <= {size}
    assert 1 <= sizes[-1] <= size


def test_a_random_order_follows_from_the_seed() -> None:
    orders = [class_order("random", 20, seed) for seed in range(5)]
    assert orders == [class_order("random", 20, seed) for seed in range(5)]
    assert len(set(orders)) == 5
    assert all(sorted(order) == list(range(20)) for order in orders)


@pytest.mark.parametrize("written", ["3,1,4", " 3, 1 ,4 "])
def test_an_order_is_read_from_numbers(written: str) -> None:
    assert class_order(written, 10, seed=0) == (3, 1, 4)


@pytest.mark.parametrize("written", ["", "a,b", "1,,2", "1;2", "descending", "1.5", "1,", "9" * 5000])
def test_an_order_that_cannot_be_read_is_refused(written: str) -> None:
    with pytest.raises(InputError) as caught:
        class_order(written, 10, seed=0)
    assert str(caught.value) == (
        f"Cannot read the class order {written!r}: give 'ascending', 'random' or class numbers like '3,1,4'."
    )
