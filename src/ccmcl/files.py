"""Files that are whole or absent."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ccmcl.errors import InputError, StorageError


def write(path: Path, data: bytes) -> None:
    """Replace a file in one stroke: a reader, or a crash at any moment, sees the old content or the new.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "a.txt"), b"whole")
    ...     Path(folder, "a.txt").read_bytes()
    b'whole'
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{secrets.token_hex(6)}.tmp"
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError):
            raise storage_error(path, error) from error
        raise


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say in a sentence why a file could not be written."""
    if error.errno == errno.ENOSPC:
        reason = "the disk is full; free some space and start the same command again"
    else:
        reason = (error.strerror or str(error)).lower()
    return StorageError(f"Cannot write {path}: {reason}. What was saved before is untouched.")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _finite(word: str) -> float:
    """Read a number; one that is too large would be infinite."""
    if not math.isfinite(number := float(word)):
        _no_number(word)
    return number


def write_json(path: Path, value: object) -> None:
    """Write JSON for people and programs: sorted, indented, no NaN."""
    write(
        path,
        (json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode(
            "utf-8", "backslashreplace"
        ),
    )


def read_json(path: Path) -> Any:
    """Read JSON, or say what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number, parse_float=_finite)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is not valid JSON ({error}).") from error


def first_line(error: BaseException) -> str:
    """Shorten another library's message to what fits into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def check_writable(out: Path | str) -> None:
    """Make sure that runs can be written below ``out``, before any work is done."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):  # has no name, so no crash can leave it
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"Cannot write to the output directory {out}: {reason}.") from error
