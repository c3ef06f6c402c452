"""Whole numbers in as few bits as they need: most of what is kept of a picture is near zero."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float64, Int32, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ccmcl.errors import InputError

PRECISION = 16
"""Shares of symbols are counted in units of 2⁻¹⁶, and as many bits go to the stream at a time."""
WHOLE = 1 << PRECISION
WIDEST = 47
"""There are so many widths beside the narrowest, three to an octave."""
ESCAPE = 255
"""The symbol of what is too far from zero to have one: it is followed by the number itself."""
MIDDLE = 127
"""The symbol of zero; smaller numbers have smaller ones."""
FURTHEST = WHOLE // 2 - 1
"""Numbers up to so far from zero can be coded."""
ALIKE = 8
"""So many columns, one after the other, have one width."""
MOST_LANES = 512
"""Symbols that are coded side by side."""
OF_A_LANE = 1024
"""Symbols that a lane has at least, if there is more than one: it costs about three bytes."""
LANE_BYTES, WORD_BYTES = 4, 2

Words = NDArray[np.uint64]
Symbols = NDArray[np.int64]


def encoded(numbers: Int32[Tensor, "n d"]) -> tuple[UInt8[Tensor, "b"], UInt8[Tensor, "w"]]:
    """Code rows of whole numbers; neighbouring columns share a width, by which the share of every symbol is known.

    These are the shares of a number that falls off exponentially to both sides of zero and is rounded. By asymmetric
    numeral systems (Duda, 2013) each symbol takes the bits that its share is worth; the widths are those by which that
    is least.

    >>> numbers = torch.tensor([[3, 0, 0], [-2, 0, 1], [1, 0, 0], [0, 0, 900]], dtype=torch.int32)
    >>> code, widths = encoded(numbers)
    >>> bool((decoded(code, widths, 4, 3) == numbers).all()), len(code), len(widths)
    (True, 10, 1)
    """
    symbols, widths = _symbols(numbers), _narrowest(numbers)
    flat, every = symbols.ravel(), _each(widths, symbols.shape)
    starts, shares, _ = _tables()
    first, share = starts[every, flat], shares[every, flat]
    further, raw = flat == ESCAPE, (numbers.numpy().T.ravel() + WHOLE // 2).astype(np.uint64)
    lanes = lanes_of(flat.size)
    state, stream = np.full(lanes, WHOLE, np.uint64), list[Words]()

    def push(which: slice | NDArray[np.intp], start: Words, share: Words) -> None:
        x = state[which]
        full = x >= share << np.uint64(PRECISION)
        stream.append((x[full] & np.uint64(WHOLE - 1))[::-1])
        x = np.where(full, x >> np.uint64(PRECISION), x)
        state[which] = (x // share << np.uint64(PRECISION)) + x % share + start

    for begin in reversed(range(0, flat.size, lanes)):
        part = slice(begin, min(begin + lanes, flat.size))
        if further[part].any():  # what is read last is written first
            which = further[part].nonzero()[0]
            push(which, raw[part][which], np.ones(len(which), np.uint64))
        push(slice(0, part.stop - begin), first[part], share[part])
    words = np.concatenate([*stream, np.empty(0, np.uint64)])[::-1]
    code = np.concatenate([state.astype("<u4").view(np.uint8), words.astype("<u2").view(np.uint8)])
    return torch.from_numpy(code), torch.from_numpy(widths)


def decoded(
    code: UInt8[Tensor, "b"], widths: UInt8[Tensor, "w"], rows: int, columns: int
) -> Int32[Tensor, "{rows} {columns}"]:
    """Undo ``encoded``. The code is not trusted: every bit of it must have been needed."""
    wrong = InputError("Numbers that were coded are damaged.")
    count, data = rows * columns, code.contiguous().numpy()
    lanes = lanes_of(count)
    ends, body = data[: LANE_BYTES * lanes], data[LANE_BYTES * lanes :]
    if (
        min(rows, columns) < 1
        or len(widths) != -(-columns // ALIKE)
        or int(widths.max()) > WIDEST
        or len(ends) < LANE_BYTES * lanes
        or len(body) % WORD_BYTES
        or count * least_bits() > 8 * len(data)  # a few bytes cannot ask for gigabytes
    ):
        raise wrong
    state, words = ends.view("<u4").astype(np.uint64), body.view("<u2").astype(np.uint64)
    starts, shares, symbols = _tables()
    every = _each(widths.numpy(), (columns, rows))
    found, place = np.empty(count, np.int32), 0
    for begin in range(0, count, lanes):
        part = slice(begin, min(begin + lanes, count))
        width, x = every[part], state[: part.stop - begin]
        slot = x & np.uint64(WHOLE - 1)
        symbol = symbols[width, slot]
        x = shares[width, symbol] * (x >> np.uint64(PRECISION)) + slot - starts[width, symbol]
        x, place = _refilled(x, words, place, wrong)
        found[part] = symbol.astype(np.int32) - MIDDLE
        if (further := (symbol == ESCAPE).nonzero()[0]).size:
            far = x[further]
            found[begin + further] = (far & np.uint64(WHOLE - 1)).astype(np.int32) - WHOLE // 2
            x[further], place = _refilled(far >> np.uint64(PRECISION), words, place, wrong)
        state[: part.stop - begin] = x
        if (np.abs(found[begin + further]) <= MIDDLE).any() or found[part].min() < -FURTHEST:
            raise wrong
    if place != len(words) or (state != WHOLE).any():
        raise wrong
    return torch.from_numpy(found.reshape(columns, rows).T.copy())


def bits_of(numbers: Int32[Tensor, "n d"]) -> Float64[Tensor, "n"]:
    """Say how many bits each row takes among all of them; what comes beside them is ``beside``.

    >>> bits_of(torch.tensor([[0, 0], [0, 40]], dtype=torch.int32)).round()
    tensor([ 0., 16.], dtype=torch.float64)
    """
    symbols, widths = _symbols(numbers), _narrowest(numbers)
    _, shares, _ = _tables()
    bits = PRECISION - np.log2(shares[_each(widths, symbols.shape).reshape(symbols.shape), symbols].astype(np.float64))
    return torch.from_numpy((bits + PRECISION * (symbols == ESCAPE)).sum(0))


def beside(rows: int, columns: int) -> int:
    """Count the bytes that rows take beside their bits: of widths, and of the ends of lanes.

    >>> beside(600, 510)
    1256
    """
    return -(-columns // ALIKE) + LANE_BYTES * lanes_of(rows * columns)


def least_bits() -> float:
    """Say how many bits a number takes at the very least."""
    return PRECISION - float(np.log2(_tables()[1].max()))


def lanes_of(count: int) -> int:
    """Say how many lanes so many symbols are dealt out to."""
    return max(1, min(MOST_LANES, count // OF_A_LANE))


def _symbols(numbers: Int32[Tensor, "n d"]) -> Symbols:
    """Turn numbers into symbols, a column after the other, so that neighbours are alike."""
    if numbers.numel() and int(numbers.abs().max()) > FURTHEST:
        raise ValueError(f"Numbers further from zero than {FURTHEST} cannot be coded.")
    columns = numbers.numpy().T.astype(np.int64)
    return np.where(np.abs(columns) <= MIDDLE, columns + MIDDLE, ESCAPE)


def _each(widths: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Lay the width of every symbol out, of so many columns and rows."""
    return np.repeat(np.repeat(widths, ALIKE)[: shape[0]], shape[1])


def _refilled(x: Words, words: Words, place: int, wrong: InputError) -> tuple[Words, int]:
    """Give the next bits of the stream to the lanes that have run low."""
    low = (x < WHOLE).nonzero()[0]
    if place + len(low) > len(words):
        raise wrong
    x[low] = (x[low] << np.uint64(PRECISION)) | words[place : place + len(low)]
    return x, place + len(low)


def _narrowest(numbers: Int32[Tensor, "n d"]) -> NDArray[np.uint8]:
    """Choose the widths by which columns that share one take the fewest bits."""
    _, shares, _ = _tables()
    symbols = _symbols(numbers)
    groups = (symbols[place : place + ALIKE] for place in range(0, len(symbols), ALIKE))
    counts = np.stack([np.bincount(group.ravel(), minlength=ESCAPE + 1) for group in groups])
    costs = counts @ (PRECISION - np.log2(shares.astype(np.float64))).T
    return np.asarray(costs.argmin(1), dtype=np.uint8)


@functools.cache
def _tables() -> tuple[Words, Words, NDArray[np.uint8]]:
    """Lay out for every width where each symbol starts among all shares, its share, and the symbol of each place."""
    shares = np.stack([np.array(list(_shares(width)), dtype=np.uint64) for width in range(WIDEST + 1)])
    starts = shares.cumsum(1) - shares
    symbols = np.stack([np.repeat(np.arange(ESCAPE + 1, dtype=np.uint8), own.astype(np.int64)) for own in shares])
    return starts, shares, symbols


def _shares(width: int) -> Iterator[int]:
    """Count the share of every symbol in whole numbers, so that it is the same on every machine.

    Of an exponential, half a step from zero, there is one part left of ``1 + 1 / wide``, in which ``wide`` grows by an
    octave from every third width to the next.
    """
    wide = round(2.0 ** (width / 3 - 5) * WHOLE)
    unit, sides = 1 << 40, list[int]()
    at = unit * wide // (WHOLE + wide)  # of both sides, beyond half a step
    for _ in range(MIDDLE):
        beyond = at * wide // (WHOLE + wide) * wide // (WHOLE + wide)
        sides.append((at - beyond) // 2)
        at = beyond
    spare = WHOLE - (ESCAPE + 1)  # everything has a share of at least one
    side = [1 + spare * part // unit for part in sides]
    escape = 1 + spare * at // unit
    yield from reversed(side)
    yield WHOLE - escape - 2 * sum(side)
    yield from side
    yield escape
