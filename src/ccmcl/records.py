"""What a run folder says in JSON: its settings, its result, its cost, and why it failed if it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccmcl.errors import InputError
from ccmcl.experiment import Experiment, from_dict
from ccmcl.files import read_json

LARGE = 1 << 62
CONFIG, RESULT, COST, FAILED = "config.json", "result.json", "cost.json", "failed.json"
EXPECTED: dict[str, type] = {
    "accuracy": float,
    "incremental_accuracy": float,
    "forgetting": float,
    "accuracies": list,
    "matrix": list,
    "classes": list,
    "groups": list,
    "memory": dict,
}


@dataclass(frozen=True)
class Record:
    """A finished run, as its files tell it."""

    path: Path
    experiment: Experiment
    result: dict[str, Any]
    cost: dict[str, Any]


def read_experiment(folder: Path) -> Experiment:
    """Read the settings of a run."""
    values = read_json(folder / CONFIG)
    if not isinstance(values, dict) or not isinstance(values.get("experiment"), dict):
        raise InputError(f"{folder / CONFIG} does not hold the settings of a run.")
    try:
        return from_dict(values["experiment"])
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from error


def read_result(folder: Path) -> dict[str, Any]:
    """Read what came out of a run."""
    values = read_json(folder / RESULT)
    if not isinstance(values, dict) or not sound(values):
        raise InputError(f"{folder / RESULT} does not hold the result of a run.")
    return values


def sound(result: dict[str, Any]) -> bool:
    """Tell whether a result has everything that is read from one, in the shape it should have."""
    if any(not isinstance(result.get(name), kind) for name, kind in EXPECTED.items()):
        return False
    groups, classes, matrix = result["groups"], range(len(result["classes"])), result["matrix"]
    return (
        len(groups) == len(matrix) == len(result["accuracies"])
        and all(share_like(share) for share in result["accuracies"])
        and all(share_like(result[name]) for name in ("accuracy", "incremental_accuracy", "forgetting"))
        and all(isinstance(group, list) and all(type(k) is int and k in classes for k in group) for group in groups)
        and all(isinstance(line, list) and len(line) == len(groups) for line in matrix)
        and all(share is None or share_like(share) for line in matrix for share in line)
        and all(type(count) is int and 0 <= count < LARGE for count in result["memory"].values())
        and {"bytes", "scalars", "images"} <= result["memory"].keys()
        and all(isinstance(name, str) for name in result["classes"])
    )


def share_like(value: object) -> bool:
    """Tell whether a value can be a share, or a difference of two."""
    return isinstance(value, int | float) and -1 <= value <= 1


def read_cost(folder: Path) -> dict[str, Any]:
    """Read what a run took; nothing where it was not kept."""
    path = folder / COST
    values = read_json(path) if path.is_file() else {}
    if not isinstance(values, dict) or not plausible(values):
        raise InputError(f"{path} does not hold the cost of a run.")
    return values


def plausible(cost: dict[str, Any]) -> bool:
    """Tell whether what is read from a cost has the shape it should have."""
    seconds, work, machine = cost.get("seconds", 0.0), cost.get("operations", 0), cost.get("machine", {})
    return (
        isinstance(seconds, float)
        and 0 <= seconds < LARGE
        and type(work) is int
        and 0 <= work < LARGE**2
        and isinstance(machine, dict)
        and type(machine.get("threads", 1)) is int
        and machine.get("threads", 1) >= 1
    )


def read_failure(folder: Path) -> str | None:
    """Read why a run failed; None where it did not."""
    path = folder / FAILED
    if not path.is_file():
        return None
    try:
        values = read_json(path)
    except InputError:
        values = None
    return str(values["reason"]) if isinstance(values, dict) and "reason" in values else "unknown"


def read_runs(out: Path | str) -> Iterator[Record]:
    """Read every finished run below a folder, in the order of their names; unfinished ones are passed over."""
    folder = Path(out)
    if not folder.is_dir():
        raise InputError(f"There is no folder {out}.")
    for path in sorted(folder.iterdir()):
        if (path / RESULT).is_file():
            yield Record(path, read_experiment(path), read_result(path), read_cost(path))
