"""Tensors in files that cannot run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ccmcl.errors import InputError
from ccmcl.files import first_line, write

ABOUT = "ccmcl"
"""The entry of a safetensors header that holds our description."""


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
