"""Measures of a run against numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch

from ccmcl.evaluate import Confusion, Scores, confusion, tally
from ccmcl.nets import ConvNet

# Three experiences of three, one and two classes; class 5 has no test images.
GROUPS = ((0, 1, 2), (3,), (4, 5))
FIRST = [[8, 1, 1], [2, 6, 2], [0, 0, 5]]
SECOND = [[9, 0, 0, 1], [1, 8, 0, 1], [0, 1, 4, 0], [0, 0, 0, 4]]
THIRD = [
    [4, 0, 0, 2, 2, 2],
    [0, 8, 0, 0, 1, 1],
    [0, 0, 5, 0, 0, 0],
    [0, 0, 0, 1, 3, 0],
    [0, 0, 0, 0, 9, 1],
    [0, 0, 0, 0, 0, 0],
]


def scores_of(confusions: Sequence[Confusion], groups: Sequence[Sequence[int]]) -> Scores:
    return Scores([tally(counts) for counts in confusions], groups)


SCORES = scores_of((FIRST, SECOND, THIRD), GROUPS)


def test_accuracy_on_each_experience_after_each() -> None:
    assert SCORES.matrix == [[19 / 25, None, None], [21 / 25, 4 / 4, None], [17 / 25, 1 / 4, 9 / 10]]


def test_accuracy_counts_every_test_image_of_the_classes_seen() -> None:
    assert SCORES.accuracies == [19 / 25, 25 / 29, 27 / 39]
    assert SCORES.accuracy == 27 / 39


def test_incremental_accuracy_is_the_mean_over_the_experiences() -> None:
    expected = (Fraction(19, 25) + Fraction(25, 29) + Fraction(27, 39)) / 3
    assert SCORES.incremental == pytest.approx(float(expected), abs=1e-15)


def test_forgetting_is_counted_from_the_best_there_was() -> None:
    expected = ((Fraction(21, 25) - Fraction(17, 25)) + (1 - Fraction(1, 4))) / 2
    assert SCORES.forgetting == pytest.approx(float(expected), abs=1e-15)


def test_backward_transfer_is_counted_from_the_first_time() -> None:
    expected = ((Fraction(17, 25) - Fraction(19, 25)) + (Fraction(1, 4) - 1)) / 2
    assert SCORES.backward_transfer == pytest.approx(float(expected), abs=1e-15)


def test_what_got_better_is_negative_forgetting_and_positive_transfer() -> None:
    scores = scores_of(([[1, 1], [1, 1]], [[2, 0, 0], [0, 1, 1], [1, 0, 0]]), ((0, 1), (2,)))
    assert scores.forgetting == -0.25
    assert scores.backward_transfer == 0.25


def test_per_class_counts_are_those_of_the_end() -> None:
    assert [(entry["right"], entry["images"]) for entry in SCORES.per_class] == [
        (4, 10),
        (8, 10),
        (5, 5),
        (1, 4),
        (9, 10),
        (0, 0),
    ]


def test_a_single_experience_has_nothing_to_forget() -> None:
    scores = scores_of(([[3, 1], [0, 4]],), ((0, 1),))
    assert scores.matrix == [[7 / 8]]
    assert (scores.accuracy, scores.incremental) == (7 / 8, 7 / 8)
    assert (scores.forgetting, scores.backward_transfer) == (0, 0)


def test_an_experience_without_test_images_does_not_count_for_the_accuracy() -> None:
    scores = scores_of(([[3, 1], [0, 4]], [[3, 1, 0], [0, 2, 2], [0, 0, 0]]), ((0, 1), (2,)))
    assert scores.accuracy == 5 / 8
    assert scores.forgetting == 2 / 8


def test_a_run_stopped_early_is_scored_as_far_as_it_went() -> None:
    scores = scores_of((FIRST, SECOND), GROUPS)
    assert scores.matrix == [[19 / 25, None, None], [21 / 25, 1.0, None]]
    assert scores.accuracy == 25 / 29
    assert scores.forgetting == pytest.approx(-2 / 25, abs=1e-15)


def test_the_record_holds_every_measure_and_goes_into_json() -> None:
    record = json.loads(json.dumps(SCORES.as_dict(), allow_nan=False))
    assert record["accuracy"] == SCORES.accuracy
    assert record["incremental_accuracy"] == SCORES.incremental
    assert record["forgetting"] == SCORES.forgetting
    assert record["backward_transfer"] == SCORES.backward_transfer
    assert record["matrix"] == SCORES.matrix
    assert record["per_class"] == SCORES.per_class
    assert record["accuracies"] == SCORES.accuracies


def test_confusions_count_what_each_class_was_taken_for() -> None:
    net = ConvNet((1, 8, 8), width=4)
    generator = torch.Generator().manual_seed(0)
    params = net.init(generator, 3)
    pixels = torch.randint(0, 256, (1201, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 3, (1201,), generator=generator)
    params["head.bias"] = -net(params, pixels / 255).mean(0)
    expected = [[0] * 3 for _ in range(3)]
    for picture, label in zip(pixels, labels.tolist(), strict=True):
        expected[label][int(net(params, picture[None] / 255).argmax())] += 1
    assert all(sum(column) > 50 for column in zip(*expected, strict=True)), "the network must tell pictures apart"
    assert confusion(net, params, pixels, labels, 3) == expected


def test_confusions_of_a_network_that_always_says_the_same_fill_one_column() -> None:
    net = ConvNet((1, 8, 8), width=4)
    params = net.init(torch.Generator(), 3)
    params |= {"head.weight": torch.zeros_like(params["head.weight"]), "head.bias": torch.tensor([0.0, 2.0, 1.0])}
    pixels, labels = torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 0, 2, 1])
    assert confusion(net, params, pixels, labels, 3) == [[0, 3, 0], [0, 1, 0], [0, 1, 0]]


def test_without_test_images_there_is_nothing_to_count() -> None:
    net = ConvNet((1, 8, 8), width=4)
    params = net.init(torch.Generator(), 2)
    nothing = torch.zeros(0, 1, 8, 8, dtype=torch.uint8)
    counts = confusion(net, params, nothing, torch.zeros(0, dtype=torch.int64), 2)
    assert counts == [[0, 0], [0, 0]]
    assert scores_of((counts,), ((0, 1),)).accuracy == 0
