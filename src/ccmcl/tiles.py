"""Convolutions with a quarter of the multiplications: 4×4 of their outputs at a time, from 36 products (Winograd)."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ccmcl.files import first_line, write

log = logging.getLogger("ccmcl")
SOURCE = Path(__file__).with_name("tiles.cpp")
LANES = 16
"""Channels are taken so many at a time."""
FEWEST = 32
"""For fewer tiles the kernel's own change of basis costs as much as is gained."""
IN_HAND = 1 << 13
"""Tiles times channels that are in hand at once, so that they stay in a core's own cache."""
LARGE, MANY = 1 << 16, 132
"""Of a kernel from and to so many channels (their product), 36 numbers each are more than that cache holds, and going
through all of them pays only for many tiles."""
STEP = 12
"""Tiles are taken so many at a time."""
PLACES = 36
"""The numbers that a tile is multiplied with."""
FLAGS = {"AVX512": ("-mavx512f", "-mfma"), "AVX2": ("-mavx2", "-mfma")}
A, B = 0.5, 2.0
"""The squares of the points a and b of tiles.cpp."""

Work = Callable[..., None]
"""Four addresses; then height, width, the channels of both sides, the first tile, the last, and how many at once."""
CODE: dict[str, Work] = {}
"""The machine code, once it is loaded."""
_wanted: ContextVar[bool] = ContextVar("wanted", default=False)
_traced: ContextVar[bool] = ContextVar("traced", default=False)


@contextmanager
def tiled(folder: Path | None, trace: bool = False) -> Iterator[None]:
    """Have what is computed here convolve by tiles, where machine code for that can be kept in a folder.

    ``trace`` says that it is not only computed, but turned into machine code as a whole.
    """
    wanted, traced = _wanted.set(folder is not None and load(folder)), _traced.set(trace)
    try:
        yield
    finally:
        _wanted.reset(wanted)
        _traced.reset(traced)


def traced() -> bool:
    """Say whether what is computed here is being turned into machine code: then it is best written out."""
    return _traced.get()


def channels_last(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Lay images out with the channels of a pixel side by side in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def fitting(x: Float[Tensor, "n i h w"], outputs: int) -> bool:
    """Say whether images are to be convolved by tiles, to so many channels."""
    return (
        _wanted.get()
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.shape[1] % LANES == 0
        and outputs % LANES == 0
        and tiles_of(x) >= FEWEST
    )


def tiles_of(x: Float[Tensor, "n i h w"]) -> int:
    """Count the tiles of some images.

    >>> tiles_of(torch.zeros(32, 1, 14, 14))
    512
    """
    pictures, _, height, width = x.shape
    return pictures * -(-height // 4) * -(-width // 4)


@functools.cache
def load(folder: Path) -> bool:
    """Load the machine code for this processor, compiled if it is not there yet, and say whether that can be done."""
    named = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    compiler = next(filter(None, map(shutil.which, named)), None)
    if compiler is None:
        return False
    flags = ("-O3", "-shared", "-fPIC", *FLAGS.get(torch.backends.cpu.get_cpu_capability(), ()))
    key = hashlib.sha256(SOURCE.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    path = folder / f"tiles-{key}.so"
    try:
        try:
            code = ctypes.CDLL(str(path))
        except OSError:  # not there yet, or damaged
            with tempfile.TemporaryDirectory() as place:
                made = Path(place, path.name)
                subprocess.run([compiler, *flags, "-o", made, SOURCE], check=True, capture_output=True)  # noqa: S603
                write(path, made.read_bytes())
            code = ctypes.CDLL(str(path))
        for name in ("convolve", "correlate"):
            work = getattr(code, name)
            work.argtypes, work.restype = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 7, None
            CODE[name] = work
    except Exception as error:  # whatever is wrong with a compiler, there is another way
        log.warning("Cannot compile convolutions by tiles (%s); going on without.", first_line(error))
        return False
    return True


def kernel_basis() -> Float[Tensor, "36 9"]:
    """Make the map from a 3×3 kernel to the 36 numbers that a tile is multiplied with."""
    a, b, differ = A**0.5, B**0.5, 2 * (A - B)
    points = [(0.0, A * B), (a, A * differ), (-a, A * differ), (b, -B * differ), (-b, -B * differ)]
    rows = [[1 / scale, point / scale, point * point / scale] for point, scale in points]
    line = torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)
    return torch.einsum("ar,bs->abrs", line, line).reshape(36, 9).float()


BASIS = kernel_basis()


def convolve_tiles(x: Float[Tensor, "n i h w"], kernel: Float[Tensor, "o i 3 3"]) -> Float[Tensor, "n o h w"]:
    """Convolve images with a kernel, at the edge with zeros."""
    x, outputs = channels_last(x), len(kernel)
    made = _empty(x, outputs)
    panels = kernel.reshape(outputs // LANES, LANES, x.shape[1], 9).permute(3, 0, 2, 1)
    factors = BASIS @ panels.reshape(9, -1)
    _side_by_side("convolve", x, outputs, lambda _: (x, factors, made))
    return made


def correlate_tiles(x: Float[Tensor, "n i h w"], y: Float[Tensor, "n o h w"]) -> Float[Tensor, "o i 3 3"]:
    """Differentiate ⟨y, convolve(x, k)⟩ by the kernel k."""
    x, y = channels_last(x), channels_last(y)
    sums = torch.zeros(torch.get_num_threads(), PLACES, y.shape[1] * x.shape[1])
    _side_by_side("correlate", x, y.shape[1], lambda thread: (x, y, sums[thread]))
    total = sums[0] if len(sums) == 1 else sums.sum(0)
    return (BASIS.T @ total).view(3, 3, y.shape[1], x.shape[1]).permute(2, 3, 0, 1)


def _like_convolved(x: Tensor, kernel: Tensor) -> Tensor:
    return _empty(x, len(kernel))


def _like_kernel(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(3, 3, y.shape[1], x.shape[1]).permute(2, 3, 0, 1)


# To the compiler they are single operations.
OPERATIONS: Any = torch.library.Library("ccmcl", "DEF")  # type: ignore[no-untyped-call]
for _function, _like, _schema in (
    (convolve_tiles, _like_convolved, "convolve_tiles(Tensor x, Tensor kernel) -> Tensor"),
    (correlate_tiles, _like_kernel, "correlate_tiles(Tensor x, Tensor y) -> Tensor"),
):
    OPERATIONS.define(_schema)
    OPERATIONS.impl(_function.__name__, _function, "CPU")
    torch.library.register_fake(f"ccmcl::{_function.__name__}", _like, lib=OPERATIONS)


def _empty(x: Tensor, channels: int) -> Tensor:
    return x.new_empty(len(x), *x.shape[2:], channels).permute(0, 3, 1, 2)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "tiles")


def _side_by_side(name: str, x: Tensor, outputs: int, tensors: Callable[[int], tuple[Tensor, Tensor, Tensor]]) -> None:
    """Have machine code take all tiles of some images, each thread its share of them, and so many at a time."""
    _, inputs, height, width = x.shape
    threads, count = torch.get_num_threads(), tiles_of(x)
    room = MANY if inputs * outputs >= LARGE else max(1, IN_HAND // (STEP * (inputs + outputs))) * STEP
    cuts = [count * part // threads for part in range(threads + 1)]

    def share(thread: int) -> None:
        hand = torch.empty(PLACES * ((inputs + outputs) * room + 2 * LANES))
        addresses = (tensor.data_ptr() for tensor in (*tensors(thread), hand))
        CODE[name](*addresses, height, width, inputs, outputs, *cuts[thread : thread + 2], room)

    if threads == 1:
        share(0)
    else:
        list(_pool(threads).map(share, range(threads)))
