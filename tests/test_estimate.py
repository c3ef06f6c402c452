"""How long experiments will take: from others like them, from counting, or not at all."""

from __future__ import annotations

import pytest

from ccmcl.estimate import ASSUMED, COMPILED, START, Estimate, operations
from ccmcl.experiment import Experiment

COST = {"seconds": 10.0, "machine": {"threads": 2}}


def test_runs_that_differ_in_the_seed_alone_take_the_same_time() -> None:
    estimate = Estimate()
    estimate.learn(Experiment.of(seed=0), COST)
    estimate.learn(Experiment.of(seed=1), {**COST, "seconds": 20.0})
    assert estimate.seconds(Experiment.of(seed=7)) == pytest.approx(2 * 15.0)


def test_others_are_expected_by_their_operations() -> None:
    one, twice = (Experiment.of(method="joint", network="plain", steps=steps) for steps in (1000, 2000))
    count = operations(one)
    assert count
    assert operations(twice) == 2 * count
    assert Estimate().seconds(one) == pytest.approx(START + count / ASSUMED)
    estimate = Estimate()
    estimate.learn(one, COST)
    assert estimate.seconds(twice) == pytest.approx(START + 40.0)


def test_runs_that_are_worth_compiling_are_expected_to_be_faster() -> None:
    long = Experiment.of(dataset="cifar10", preset="paper", budget="100")
    assert Estimate().seconds(long) == pytest.approx(START + (operations(long) or 0) / COMPILED)


def test_measuring_a_network_counts_as_well() -> None:
    one, twice = (operations(Experiment.of(method="joint", network="residual", steps=steps)) for steps in (1000, 2000))
    assert one
    assert twice
    assert 1.9 * one < twice < 2 * one


def test_a_teacher_counts_as_well() -> None:
    """It looks at every batch but those of the first experience: a third of what a step of learning takes."""
    joint, rehearsal = (operations(Experiment.of(method=method, dataset="mnist")) for method in ("joint", "rehearsal"))
    assert joint
    assert rehearsal
    assert rehearsal / joint == pytest.approx(1 + 4 / 5 / 3, abs=0.02)


def test_a_method_is_expected_by_its_own_pace_before_that_of_others() -> None:
    estimate = Estimate()
    fast, slow = Experiment.of(method="joint"), Experiment.of(method="composite")
    estimate.learn(fast, COST)
    estimate.learn(slow, {**COST, "seconds": 1000.0})
    other = Experiment.of(method="composite", updates=150)
    rate = (operations(slow) or 0) / 2000.0
    assert estimate.seconds(other) == pytest.approx(START + (operations(other) or 0) / rate)


def test_own_data_are_not_read_for_an_estimate() -> None:
    own = Experiment.of(dataset="pictures.npz", shape=(1, 8, 8))
    assert Estimate().seconds(own) is None
    assert Estimate().each([own, Experiment.of(seed=3)]) == [None, Estimate().seconds(Experiment.of())]


def test_a_run_that_cannot_be_takes_no_time_worth_telling() -> None:
    assert operations(Experiment.of(budget="80B")) == 0
    assert Estimate().seconds(Experiment.of(budget="80B")) == START


@pytest.mark.parametrize(
    "cost", [{}, {"seconds": 3.0}, {"seconds": 3.0, "machine": {}}, {"seconds": "x", "machine": 2}]
)
def test_a_cost_that_does_not_say_is_passed_over(cost: dict[str, object]) -> None:
    estimate = Estimate()
    estimate.learn(Experiment.of(), cost)
    assert estimate.seen == {}
