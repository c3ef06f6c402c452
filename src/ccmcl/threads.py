"""Independent pieces of work, each on a thread of its own: a small step gains little from several threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
    """Do a piece of work on each thread, and give what comes out in the order of the pieces.

    With fewer pieces than threads, each piece has several.

    >>> side_by_side(lambda x: x * x, [torch.tensor(2), torch.tensor(3)])
    [tensor(4), tensor(9)]
    """
    at_once, each = shared_out(len(pieces))
    if at_once < 2:
        return [work(piece) for piece in pieces]
    recording = torch.is_grad_enabled()

    def one(piece: T) -> R:
        with torch.set_grad_enabled(recording):
            return work(piece)

    with limited(each):
        return list(_pool(at_once, each).map(one, pieces))


def shared_out(pieces: int) -> tuple[int, int]:
    """Say how many pieces are done at once, and how many threads each of them has."""
    threads = torch.get_num_threads()
    at_once = max(1, min(threads, pieces))
    return at_once, threads // at_once


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Give PyTorch so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pool(count: int, threads: int) -> ThreadPoolExecutor:
    # How many threads PyTorch uses is kept for each thread that uses it.
    return ThreadPoolExecutor(count, "ccmcl", torch.set_num_threads, (threads,))
