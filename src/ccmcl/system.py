"""What the program asks of the machine it runs on."""

from __future__ import annotations

import ctypes
import functools
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
USUAL = 32 << 20
"""Where glibc's own thresholds come to rest when large blocks are freed; the other is twice that."""


def keep_freed_memory(keep: bool = True) -> bool:
    """Have the C library keep large blocks that were freed for the next use, and say whether it will.

    By default glibc hands every large block back to the system, which clears it page by page when it is asked
    for again: with large batches on the CPU that is half of the time. All threads take from one arena, because those
    of other threads are handed back whatever is asked. It holds for the whole process, so the program does it and the
    library does not. Not to keep them is what glibc does when it is not asked.
    """
    libc = glibc()
    if libc is None:
        return False
    block, top = (1 << 30, (1 << 31) - 1) if keep else (USUAL, 2 * USUAL)
    libc.mallopt(M_ARENA_MAX, 1 if keep else 0)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, block) and libc.mallopt(M_TRIM_THRESHOLD, top))


def give_back_freed_memory() -> bool:
    """Hand what was freed and kept back to the system, and say whether there was any.

    Blocks of many sizes leave gaps between them that nothing fits into; kept for ever, they add up with every job of
    a long run.
    """
    libc = glibc()
    return libc is not None and bool(libc.malloc_trim(0))


@functools.cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library where it is glibc, whose calls these are."""
    known = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL(None) if known else None
