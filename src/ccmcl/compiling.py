"""Pure functions of tensors become machine code: traced with all their derivatives, compiled, kept on disk."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pooch  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor
from torch.utils import _pytree as pytree

from ccmcl.files import first_line
from ccmcl.tiles import load, tiled

log = logging.getLogger("ccmcl")
aten = torch.ops.aten
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LOCKED = "kernel({}); Py_RETURN_NONE;"
UNLOCKED = "[](auto... given) {{ Py_BEGIN_ALLOW_THREADS kernel(given...); Py_END_ALLOW_THREADS }}({}); Py_RETURN_NONE;"
"""How the compiler has a kernel called from Python, and how it is called here."""
READY: dict[Hashable, Callable[..., Any]] = {}
"""What this process has compiled, for all runs that it does."""


class Graphs:
    """Runs functions as compiled graphs, one for each function and each shape of its arguments.

    A function is traced with its derivatives written out, to whatever order, so that the compiler sees one plain
    list of operations. With ``tiles`` its convolutions take fewer multiplications, where the processor's own code for
    that can be made. Where compiling fails, one line says so and everything is computed the plain way.
    """

    def __init__(self, tiles: bool = True) -> None:
        self.tiles = tiles
        self.used: set[Hashable] = set()
        self.failed = False

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Compute ``function(*arguments)``; the function tells by its hash what it computes."""
        if self.failed:
            return function(*arguments)
        key, leaves, layout = self._key(function, arguments)
        self.used.add(key)
        if key in READY:
            return READY[key](*leaves)
        try:
            with warnings.catch_warnings():  # what the compiler thinks of itself concerns nobody here
                warnings.simplefilter("ignore")
                keep_compiled()
                with alone(key), tiled(code_folder() if self.tiles else None, trace=True), unlocked(), own_headers():
                    compiled = compile_graph(function, leaves, layout)
                    result = compiled(*leaves)
        except Exception as error:  # whatever is wrong with a compiler, there is another way
            self.failed = True
            log.warning("Cannot compile (%s); going on without.", first_line(getattr(error, "inner_exception", error)))
            return function(*arguments)
        READY[key] = compiled
        return result

    def has(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Say whether nothing has to be compiled for these arguments."""
        return self.failed or self._key(function, arguments)[0] in READY

    def _key(self, function: Callable[..., Any], arguments: Any) -> tuple[Hashable, list[Any], Any]:
        leaves, layout = pytree.tree_flatten(arguments)
        leaves = apart(leaves)
        shapes = tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)
        return (function, layout, shapes, self.tiles, torch.get_num_threads()), leaves, layout


def compile_graph(function: Callable[..., Any], leaves: list[Any], layout: Any) -> Callable[..., Any]:
    """Trace a function of tensors, derivatives and all, and compile what it does.

    ``torch.compile`` by itself would drop the second derivative of the convolutions without a word; tracing first
    leaves it only plain operations to see.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*leaves: Any) -> Any:
        return function(*pytree.tree_unflatten(leaves, layout))

    graph = make_fx(flat, decomposition_table={aten.avg_pool2d_backward.default: unpooled}, tracing_mode="fake")(
        *leaves
    )
    compiled: Callable[..., Any] = torch.compile(graph, fullgraph=True, dynamic=False)
    return compiled


@contextmanager
def unlocked() -> Iterator[None]:
    """Have what is compiled here run without Python's lock, so that several threads can be in it at once.

    The compiler has no setting for it. Where its own way of calling is another one than expected, that stays.
    """
    try:
        from torch._inductor.codecache import CppPythonBindingsCodeCache as Bindings

        call = Bindings.call_entry_function
    except (ImportError, AttributeError):
        call = ""
    if call != LOCKED:
        yield
        return
    Bindings.call_entry_function = UNLOCKED
    try:
        yield
    finally:
        Bindings.call_entry_function = LOCKED


@contextmanager
def own_headers() -> Iterator[None]:
    """Have the compiler keep what it has read of PyTorch's headers beside the code.

    By itself it takes them from a place below /tmp, which somebody else could have made first. Where that place cannot
    be chosen, headers are read each time.
    """
    from torch._inductor import codecache, config

    names, folder = ("_HEADER_DIR", "_HEADER_LOCK_DIR"), code_folder()
    before = {name: getattr(codecache, name, None) for name in names}
    if folder is None or None in before.values():
        with config.patch(cpp_cache_precompile_headers=False):
            yield
        return
    headers = folder / "headers"
    for name, path in zip(names, (headers, headers / "locks"), strict=True):
        setattr(codecache, name, str(path))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(codecache, name, value)


def unpooled(
    gradient: Tensor,
    x: Tensor,
    window: list[int],
    stride: list[int],
    padding: list[int],
    ceil: bool,  # noqa: ARG001
    count_padding: bool,  # noqa: ARG001
    divisor: int | None,  # noqa: ARG001
) -> Any:
    """Differentiate average pooling by its images, by shape alone: the compiler's own way is several times slower."""
    if window != [2, 2] or stride not in ([], [2, 2]) or padding != [0, 0]:
        return NotImplemented
    *others, height, width = gradient.shape
    spread = gradient[..., :, None, :, None].expand(*others, height, 2, width, 2)
    even = spread.reshape(*others, 2 * height, 2 * width) / 4
    return F.pad(even, (0, x.shape[-1] - 2 * width, 0, x.shape[-2] - 2 * height))


def keep_compiled() -> None:
    """Have compiled code kept in a folder of our cache that nobody else can write to, unless one was chosen.

    Where there is none, it is kept as long as this process lives; the compiler's own place is below /tmp, and somebody
    else could have made it first.
    """
    if CACHE_VARIABLE in os.environ:
        with suppress(OSError):
            Path(os.environ[CACHE_VARIABLE]).mkdir(parents=True, exist_ok=True)
        return
    folder = Path(os.environ.get("CCMCL_CACHE") or pooch.os_cache("ccmcl")).expanduser() / "compiled"
    if not private(folder):
        folder = Path(tempfile.mkdtemp(prefix="ccmcl-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[CACHE_VARIABLE] = str(folder)


def has_tiles() -> bool:
    """Make or load the machine code that convolves by tiles, and say whether that can be done."""
    keep_compiled()
    folder = code_folder()
    return folder is not None and load(folder)


def code_folder() -> Path | None:
    """Return where compiled code is kept."""
    folder = Path(os.environ.get(CACHE_VARIABLE, ""))
    return folder if folder.name and folder.is_dir() else None


def apart(leaves: list[Any]) -> list[Any]:
    """Give each argument a tensor of its own: what is traced with one for two would take them for one ever after.

    >>> one = torch.zeros(1)
    >>> len({id(leaf) for leaf in apart([one, one])})
    2
    """
    first = {id(leaf): place for place, leaf in reversed(list(enumerate(leaves)))}
    return [leaf if first[id(leaf)] == place else leaf.clone() for place, leaf in enumerate(leaves)]


def alone(key: Hashable) -> AbstractContextManager[Any]:
    """Let one process compile a graph: the others that need the same then find it on disk."""
    folder = code_folder()
    if folder is None:
        return nullcontext()
    return FileLock(folder / f".compiling-{zlib.crc32(repr(key).encode()):08x}")


def private(folder: Path) -> bool:
    """Make a folder for code, or say that the one there is could have been filled by somebody else."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def has_compiler() -> bool:
    """Say whether there is a C++ compiler to be found."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)
