"""Files that are whole or absent, and tensors in files that cannot run code."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ccmcl.errors import InputError, StorageError

ABOUT = "ccmcl"
"""The entry of a safetensors header that holds our description."""


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
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it is not valid JSON ({error}).") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, object]) -> None:
    """Write tensors and a description of them into one safetensors file; the same content gives the same bytes.

    The description is one entry of the header, because safetensors puts several in no particular order.
    """
    ready = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    write(path, save(ready, {ABOUT: json.dumps(about, sort_keys=True)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file into memory; a file that is damaged or of another kind is an ``InputError``."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file.")
    try:
        with safe_open(path, framework="pt") as file:
            # A clone has its own aligned storage, as a freshly computed tensor does; a mapped one may not, and
            # vectorised kernels may then round differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
        if not isinstance(about, dict):
            raise InputError(f"{path} is damaged: its description is not one.")
        return tensors, about
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
    except InputError:
        raise
    except (SafetensorError, TypeError, ValueError, RecursionError, RuntimeError) as error:
        raise InputError(f"{path} is not a whole safetensors file ({first_line(error)}).") from error


def first_line(error: BaseException) -> str:
    """Shorten another library's message to what fits into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
