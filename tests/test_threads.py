"""Work on several threads: the same comes out as on one, and PyTorch is left as it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccmcl.compiling import LOCKED, Graphs, unlocked
from ccmcl.engine import Classify, Engine, even
from ccmcl.nets import ConvNet
from ccmcl.threads import limited, shared_out, side_by_side


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with limited(torch.get_num_threads()):
        yield


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(0, 9))
def test_every_piece_is_done_once_in_order_with_its_share_of_the_threads(threads: int, pieces: int) -> None:
    with limited(threads):
        at_once, each = shared_out(pieces)
        found = side_by_side(lambda piece: (piece, torch.get_num_threads()), range(pieces))
        assert torch.get_num_threads() == threads
    assert [piece for piece, _ in found] == list(range(pieces))
    assert all(used == (each if at_once > 1 else threads) for _, used in found)
    assert at_once * each <= threads
    assert at_once <= max(1, pieces)


def test_pieces_are_done_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=20)
    with limited(2):
        assert sorted(side_by_side(lambda _: together.wait(), range(2))) == [0, 1]


@pytest.mark.parametrize("recording", [False, True])
def test_whether_gradients_are_recorded_holds_on_every_thread(recording: bool) -> None:
    with limited(2), torch.set_grad_enabled(recording):
        assert side_by_side(lambda _: torch.is_grad_enabled(), range(4)) == [recording] * 4


def test_a_piece_that_fails_is_an_error_and_leaves_the_threads_as_they_were() -> None:
    def fail(piece: int) -> None:
        time.sleep(0.01)
        if piece == 1:
            raise ValueError("no")

    with limited(2):
        with pytest.raises(ValueError, match="no"):
            side_by_side(fail, range(3))
        assert torch.get_num_threads() == 2
        assert side_by_side(abs, [-1, -2]) == [1, 2]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_the_same_to_the_bit_on_one_thread_and_on_two(compiled: bool) -> None:
    net = ConvNet((1, 16, 16), 16, max_blocks=2)
    generator = torch.Generator().manual_seed(0)
    params = net.init(generator, 4)
    images = torch.rand(300, 1, 16, 16, generator=generator)
    batch = (images, torch.randint(4, (300,), generator=generator), even(300, images))
    engine, found = Engine(graphs=Graphs() if compiled else None), []
    for threads in (1, 2):
        with limited(threads):
            for _ in range(2):  # the first compiles
                found.append(engine.gradient(Classify(net), params, batch))
    assert engine.graphs is None or not engine.graphs.failed
    for gradients, value in found[1:]:
        assert torch.equal(value, found[0][1])
        assert all(torch.equal(gradients[name], tensor) for name, tensor in found[0][0].items())


def test_the_compiler_calls_kernels_as_expected_and_is_left_as_it_was() -> None:
    from torch._inductor.codecache import CppPythonBindingsCodeCache as Bindings

    def fail() -> None:
        assert "ALLOW_THREADS" in Bindings.call_entry_function
        raise ValueError("no")

    assert Bindings.call_entry_function == LOCKED
    with pytest.raises(ValueError, match="no"), unlocked():
        fail()
    assert Bindings.call_entry_function == LOCKED


def test_a_compiler_that_calls_kernels_in_another_way_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import CppPythonBindingsCodeCache as Bindings

    monkeypatch.setattr(Bindings, "call_entry_function", "other({})")
    with unlocked():
        assert Bindings.call_entry_function == "other({})"
    monkeypatch.delattr(Bindings, "call_entry_function")
    with unlocked():
        assert not hasattr(Bindings, "call_entry_function")
