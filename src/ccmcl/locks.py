"""Who is at work on a run. A lock goes with the process that holds it, however that ends.

``LOCK`` is held by the process that works in a run's folder, ``CLAIM`` by one that has handed the run to a machine
which may not see the folder. One who works takes the lock and then looks for a claim; one who claims takes the claim
and then looks for a lock: so never do both go on.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

LOCK, CLAIM = ".lock", ".claim"
LOOK_SECONDS = 0.3
"""Others hold a lock for a moment only to see whether anybody else does."""


def held(path: Path) -> bool:
    """Tell whether a process holds a lock."""
    if not path.is_file():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def at_work(folder: Path) -> bool:
    """Tell whether a process is at work on a run, here or wherever it has handed it."""
    return held(folder / LOCK) or held(folder / CLAIM)


def claimed(folder: Path) -> FileLock | None:
    """Claim a run that will be done out of reach of this folder; None if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / CLAIM)
    try:
        lock.acquire(timeout=LOOK_SECONDS)
    except Timeout:
        return None
    if held(folder / LOCK):
        lock.release()
        return None
    return lock
