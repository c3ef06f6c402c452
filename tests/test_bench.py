"""The measurement itself: every row is there, and all rows compute the same thing."""

from __future__ import annotations

import json

import pytest

from ccmcl.bench import CASES, ENGINES, activation_bytes, bench, condenser, inputs, naive_net, seeded
from ccmcl.engine import Engine
from ccmcl.errors import InputError
from ccmcl.naive import algorithm_1
from ccmcl.terminal import bench_tables


def test_all_ways_compute_the_same_memory() -> None:
    case = CASES["digits-20"]
    pixels, memory, buffer, labels = inputs(case)
    theirs = algorithm_1(
        naive_net(case), pixels, 5, list(memory.tensors().values()), (buffer, labels), seeded(3),
        outer=1, inner=1, matching=10, training=1, batch=256, rate=0.01, network_rate=0.01, optimiser="rmsprop",
    )  # fmt: skip
    for make in list(ENGINES.values())[:-2]:  # what is compiled is compared elsewhere
        job = condenser(case, make())
        state, _ = job.step(job.init())
        for tensor, expected in zip(job.finish(state).tensors().values(), theirs, strict=True):
            far = (tensor - expected).abs() > 1e-3
            assert far.float().mean() < 0.02, "rounding may turn a sign here and there, no more"


def test_what_is_compiled_comes_without_and_with_fewer_products() -> None:
    graphs = [make().graphs for make in list(ENGINES.values())]
    assert [one is not None and one.tiles for one in graphs] == [False] * 5 + [True]
    assert [one is None for one in graphs] == [True] * 4 + [False] * 2


def test_a_result_has_every_row_and_goes_into_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccmcl.bench.Graphs", lambda tiles=True: None)  # compiling takes minutes
    said: list[str] = []
    result = bench("digits-20", 1, said.append)
    assert [row.name for row in result.condense] == ["naive", "+ freed memory kept", *ENGINES]
    assert result.learn[0].name == "naive"
    assert result.condense[0].ratio == 1
    assert all(row.seconds > 0 and row.gflops > 0 and row.share > 0 for row in result.condense + result.learn)
    assert result.sgemm_gflops > 0
    assert 0 < result.update_bytes < 8 * result.activation_bytes
    assert json.loads(json.dumps(result.as_dict()))["case"] == "digits-20"
    assert len(bench_tables(result)) == 3
    assert any("round 1 of 1" in text for text in said)


def test_what_cannot_be_measured_is_a_mistake() -> None:
    with pytest.raises(InputError, match="did you mean 'mnist-20'"):
        bench("mnist")
    with pytest.raises(InputError, match="At least one round"):
        bench("digits-20", 0)


def test_the_activations_of_a_larger_memory_are_larger() -> None:
    assert activation_bytes(CASES["mnist-20"]) < activation_bytes(CASES["cifar10-100"])
    assert Engine().graphs is None
