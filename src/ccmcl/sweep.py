"""Many experiments from one file: which are done, which are left, and doing those."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ccmcl.errors import InputError, nearest
from ccmcl.experiment import Experiment, check_type
from ccmcl.locks import at_work
from ccmcl.records import CONFIG, FAILED, RESULT, read_failure

MOST = 100_000
DONE, RUNNING, BEGUN, FAILING, WAITING = "done", "running", "begun", "failed", "to do"
STATES = (DONE, RUNNING, BEGUN, WAITING, FAILING)
Words = dict[str, Any]
"""What an engine says: how far a run is, or ``done``, the name of a run, with its ``outcome``."""


@dataclass(frozen=True)
class Sweep:
    """A table of experiments, each once."""

    title: str
    experiments: tuple[Experiment, ...]


@dataclass(frozen=True)
class Standing:
    """Where one experiment of a sweep stands."""

    experiment: Experiment
    state: str
    reason: str = ""


@runtime_checkable
class Engine(Protocol):
    """Does experiments somewhere, several at a time."""

    stopping: bool

    def __call__(self, experiments: Sequence[Experiment], hear: Callable[[Words], None]) -> None:
        """Do them all; of each, say ``done`` with the outcome: finished, failed (and the reason), or busy."""
        ...

    def stop(self) -> None:
        """Have what is going on stopped as soon as it is safely kept; then the call above returns."""
        ...


def read_sweep(
    path: Path | str, changes: Mapping[str, Sequence[Any]] | None = None, data_dir: Path | str | None = None
) -> Sweep:
    """Read a sweep from a TOML file. Any setting may be a list; all combinations are meant.

    Tables named ``also`` add combinations of their own: they have the settings at the top but for those they change.
    ``changes`` go before everything in the file.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error
    title = values.pop("title", path.stem)
    also = values.pop("also", [])
    if not isinstance(title, str) or not isinstance(also, list) or not all(isinstance(part, dict) for part in also):
        raise InputError(f"In {path}, title must be a text and also must be tables, each headed [[also]].")
    return Sweep(title, expand([values, *({**values, **part} for part in also)], changes or {}, data_dir))


def expand(
    grids: Iterable[Mapping[str, Any]], changes: Mapping[str, Sequence[Any]], data_dir: Path | str | None = None
) -> tuple[Experiment, ...]:
    """Spell out all combinations of every grid, seed by seed, so that one table is whole before the next is begun.

    >>> made = expand([{"method": ["finetune", "joint"], "seed": [0, 1]}], {"width": [8]})
    >>> [(one.method, one.seed, one.width) for one in made]
    [('finetune', 0, 8), ('joint', 0, 8), ('finetune', 1, 8), ('joint', 1, 8)]
    """
    found: dict[Experiment, None] = {}
    for grid in grids:
        for settings in combinations({**grid, **changes}):
            found[Experiment.of(data_dir, **settings)] = None
    seeds = list(dict.fromkeys(one.seed for one in found))
    return tuple(sorted(found, key=lambda one: seeds.index(one.seed)))


def combinations(grid: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give every combination of the values of a grid."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(Experiment)}
    lists = []
    for name, values in grid.items():
        if name not in fields:
            raise InputError(f"There is no setting {name!r}: {nearest(name, fields)}.")
        listed = list(values) if isinstance(values, list | tuple) else [values]
        if not listed:
            raise InputError(f"The list of {name} is empty.")
        if fields[name] == "str":  # a budget of 20 needs no quotes
            listed = [str(value) if isinstance(value, int) and value is not True else value for value in listed]
        for value in listed:
            check_type(name, value, fields[name])
        lists.append(listed)
    if math.prod(map(len, lists)) > MOST:
        raise InputError(f"These are more than {MOST:,} experiments: take some of the lists apart.")
    for values in itertools.product(*lists):
        yield dict(zip(grid, values, strict=True))


def survey(experiments: Iterable[Experiment], out: Path | str) -> list[Standing]:
    """Find out where each experiment stands, from the folder of runs."""
    return [standing(experiment, Path(out) / experiment.name) for experiment in experiments]


def standing(experiment: Experiment, folder: Path) -> Standing:
    """Find out where one experiment stands."""
    if (folder / RESULT).is_file():
        return Standing(experiment, DONE)
    reason = read_failure(folder)
    if reason is not None:
        return Standing(experiment, FAILING, reason)
    if at_work(folder):
        return Standing(experiment, RUNNING)
    return Standing(experiment, BEGUN if (folder / CONFIG).is_file() else WAITING)


def sweep(
    experiments: Sequence[Experiment],
    out: Path | str,
    engine: Engine,
    hear: Callable[[Words], None] = lambda _: None,
    retry_failed: bool = False,
    wait: float = 1.0,
) -> list[Standing]:
    """Do what is not done, and tell where everything stands then.

    What another process is working on is left to it; should that end before the run does, the run is taken up here.
    """
    out = Path(out)
    left = [
        one.experiment for one in survey(experiments, out) if one.state != DONE and (retry_failed or not one.reason)
    ]
    if retry_failed:
        for experiment in left:
            (out / experiment.name / FAILED).unlink(missing_ok=True)
    ended: dict[str, str] = {}
    reasons: dict[str, str] = {}

    def note(words: Words) -> None:
        if "done" in words:
            ended[words["done"]], reasons[words["done"]] = words["outcome"], words.get("reason", "")
        hear(words)

    while left and not engine.stopping:
        free = [one for one in left if not at_work(out / one.name)]
        if free:
            engine(free, note)
        left = [one for one in left if ended.get(one.name, "busy") == "busy"]
        for one in [one for one in left if (out / one.name / RESULT).is_file()]:
            note({"done": one.name, "outcome": "finished elsewhere"})
            left.remove(one)
        if left and not engine.stopping:
            time.sleep(wait)
    # What failed for no fault of its own, as on a full disk, is told here and tried again by the next sweep.
    return [
        one
        if one.reason or one.state == DONE
        else dataclasses.replace(one, reason=reasons.get(one.experiment.name, ""))
        for one in survey(experiments, out)
    ]
