"""What the commands of the program share: the options they take and how they print."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Group, Parameter
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.presets import BY_PRESET

MOST_THREADS = 1024
WIDEST = 10_000
WITH_COMMAS = ("order", "per_experience")
"""Settings whose one value may hold commas."""
SECTIONS = {
    "The experiment": "dataset method budget preset seed",
    "The stream": "order per_experience holdout",
    "The memory": "filled ratio reduction frequencies lens margin bits step squash start labels codec quality",
    "How the memory is learned": "objective distance experts expert_steps expert_width turned updates judged "
    "outer inner matching training condense_batch condense_optimiser condense_rate",
    "The network and how it learns": "network width blocks widening networks precision continued recipe changes "
    "mirrored looks steps batch rate",
}
"""Settings as the help lists them: what everybody gives comes first, then the command's own options."""
OWN = Group("Options", sort_key=0.5)


def whole_or_word(text: str) -> int | str:
    """Read a whole number where there is one.

    >>> whole_or_word("12"), whole_or_word("auto")
    (12, 'auto')
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text) else text


def whole(_: object, tokens: Sequence[Any]) -> int:
    """Read a whole number as it is written; 1.5 is not one."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "int | str": int | str}
READERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "int | str": whole_or_word}
CONVERTERS = {"int": whole, "int | str": lambda _, tokens: whole_or_word(tokens[0].value)}


def given(several: bool) -> Any:
    """Make the command line's view of Experiment: the same fields and help, each one optional.

    With ``several``, each is a text that may hold several values.
    """
    fields = {field.name: field for field in dataclasses.fields(Experiment)}
    sections = {name: section for section, names in SECTIONS.items() for name in names.split()}
    groups = {section: Group(section, sort_key=place) for place, section in enumerate(SECTIONS)}
    entries: list[tuple[str, Any, Any]] = []
    for name, field in sorted(fields.items(), key=lambda item: list(sections).index(item[0])):
        default = "by preset" if name in BY_PRESET else field.default
        about = f"{field.metadata['help']} (default: {default})"
        declared = "str" if several else str(field.type)
        kind, convert = TYPES[declared], CONVERTERS.get(declared)
        parameter = Parameter(help=about, show_default=False, converter=convert, group=groups[sections[name]])
        entries.append((name, Annotated[kind | None, parameter], dataclasses.field(default=None)))
    own = {"__module__": __name__}  # a class of no module's is not unfolded into options
    name = "Several" if several else "Given"
    return dataclasses.make_dataclass(name, entries, namespace=own, frozen=True, kw_only=True)


if TYPE_CHECKING:
    Settings: TypeAlias = Any
    Changes: TypeAlias = Any
else:
    Settings = Annotated[given(several=False) | None, Parameter(name="*")]
    Changes = Annotated[given(several=True) | None, Parameter(name="*")]
Out = Annotated[Path, Parameter(help="folder of all runs")]
DataDir = Annotated[Path | None, Parameter(help="where the data sets are (default: $CCMCL_DATA, or your cache)")]
Threads = Annotated[int | None, Parameter(help="threads to compute with (default: all cores)")]
Compile = Annotated[str, Parameter(help="compute with compiled code: auto (when it pays), on or off")]
Device = Annotated[str, Parameter(help="where to compute: auto, cpu, cuda or mps")]
Every = Annotated[float, Parameter(help="seconds between two checkpoints", show=False)]
Json = Annotated[bool, Parameter(help="print JSON on standard output, and nothing else")]
TensorBoard = Annotated[bool, Parameter(help="write curves for TensorBoard into the run folder")]
Quiet = Annotated[bool, Parameter(help="show no progress")]


def values(settings: Any) -> dict[str, Any]:
    """Take what was given of the settings."""
    return {} if settings is None else {name: value for name, value in vars(settings).items() if value is not None}


def lists(changes: Any) -> dict[str, list[Any]]:
    """Take what was given, each a list of values of its type: ``--seed 0,1,2``."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Experiment)}
    found: dict[str, list[Any]] = {}
    for name, text in values(changes).items():
        words = [text] if name in WITH_COMMAS else [word.strip() for word in text.split(",")]
        try:
            found[name] = [READERS[kinds[name]](word) for word in words]
        except ValueError:
            what = "whole numbers" if kinds[name] == "int" else "numbers"
            raise InputError(f"--{name.replace('_', '-')} takes {what}, with commas between, not {text!r}.") from None
    return found


def checked_threads(threads: int | None) -> int | None:
    """Refuse a number of threads that no machine has."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise InputError(f"The number of threads must be from 1 to {MOST_THREADS}, not {threads}.")
    return threads


def console() -> Console:
    """Make where tables are printed."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def print_whole(table: Table) -> None:
    """Print a table of which nothing is cut off: where it is wider than the terminal, that breaks its lines."""
    screen = console()
    room, needed = screen.width, Measurement.get(screen, screen.options.update(max_width=WIDEST), table)
    screen.width = needed.maximum
    screen.print(table, soft_wrap=screen.width > room)


def print_json(value: object) -> None:
    """Print for programs."""
    print(json.dumps(value, indent=1, sort_keys=True))
