"""Finished runs as one table: mean and deviation over the seeds, as text or for other programs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from ccmcl.errors import InputError, nearest, printable
from ccmcl.experiment import Experiment
from ccmcl.records import Record

log = logging.getLogger("ccmcl")
FORMATS = ("text", "markdown", "latex", "csv", "json")
ALWAYS = ("dataset", "method", "budget")
JUDGED = ("order", "per_experience", "holdout")
"""Settings that decide what an accuracy is of: said wherever one of them is not the usual one."""
COLUMNS = ("n", "accuracy, %", "incremental, %", "forgetting, %", "bytes", "seconds")
MEASURES = ("accuracy", "incremental_accuracy", "forgetting")


@dataclass(frozen=True)
class Figure:
    """A mean over seeds, and the deviation of one of them (None for a single one)."""

    mean: float
    std: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Figure:
        """Sum values up.

        >>> Figure.of([1.0, 3.0])
        Figure(mean=2.0, std=1.4142135623730951)
        """
        return Figure(mean(values), stdev(values) if len(values) > 1 else None)

    def percent(self, sign: str = " ± ") -> str:
        """Write it for people.

        >>> Figure(0.8612, 0.0271).percent()
        '86.1 ± 2.7'
        """
        return f"{100 * self.mean:.1f}" + ("" if self.std is None else f"{sign}{100 * self.std:.1f}")


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone."""

    experiment: Experiment
    seeds: tuple[int, ...]
    accuracy: Figure
    incremental_accuracy: Figure
    forgetting: Figure
    bytes: int
    """the largest memory of any of them"""
    scalars: int
    seconds: float
    """mean time"""
    operations: int
    """that the mathematics takes, where it was counted"""

    @property
    def n(self) -> int:
        """How many runs."""
        return len(self.seeds)


def table(records: Iterable[Record]) -> list[Row]:
    """Gather runs that differ in their seed alone, in the order of data set, budget and method."""
    groups: dict[Experiment, list[Record]] = {}
    for record in once(records):
        groups.setdefault(dataclasses.replace(record.experiment, seed=0), []).append(record)
    rows = []
    for experiment, group in groups.items():
        group.sort(key=lambda record: record.experiment.seed)
        figures = {name: Figure.of([record.result[name] for record in group]) for name in MEASURES}
        sizes = [record.result["memory"] for record in group]
        rows.append(
            Row(
                experiment=experiment,
                seeds=tuple(record.experiment.seed for record in group),
                bytes=max(int(size.get("bytes", 0)) for size in sizes),
                scalars=max(int(size.get("scalars", 0)) for size in sizes),
                seconds=mean([record.cost["seconds"] for record in group if "seconds" in record.cost] or [0.0]),
                operations=max(int(record.cost.get("operations", 0)) for record in group),
                **figures,
            )
        )
    return sorted(rows, key=order)


def once(records: Iterable[Record]) -> list[Record]:
    """Leave out all but one of the runs of the same experiment and seed: copies, or runs of other versions.

    The one that has the name of this version goes before the others.
    """
    found: dict[Experiment, Record] = {}
    for record in records:
        before = found.setdefault(record.experiment, record)
        if before is record:
            continue
        if record.path.name == record.experiment.name:
            found[record.experiment], record = record, before
        log.warning(
            "%s is left out: it is the same experiment as %s, by another version or a copy of it.",
            record.path,
            found[record.experiment].path,
        )
    return list(found.values())


def order(row: Row) -> tuple[Any, ...]:
    """Sort as people read: numbers by size, methods as they are listed everywhere."""
    from ccmcl.catalogue import METHODS, SHAPES

    one, known = row.experiment, list(SHAPES)
    place = known.index(one.dataset) if one.dataset in known else len(known)
    number = int("".join(filter(str.isdigit, one.budget)) or 0)
    return place, one.dataset, number, one.budget, METHODS.index(one.method), sorted(map(str, one.as_dict().items()))


def telling(rows: Sequence[Row]) -> list[str]:
    """Name the settings that tell rows of one data set, method and budget apart.

    Where a data set was learned by several presets, that is the preset: what comes with it need not be said.
    """
    names = [field.name for field in dataclasses.fields(Experiment) if field.name not in (*ALWAYS, "preset", "seed")]
    found = ["preset"] if any(len({one.preset for one in group}) > 1 for group in grouped(rows, ALWAYS[:1])) else []
    alike = grouped(rows, (*ALWAYS, "preset"))
    usual = {field.name: field.default for field in dataclasses.fields(Experiment)}

    def tells(name: str) -> bool:
        unusual = name in JUDGED and any(getattr(row.experiment, name) != usual[name] for row in rows)
        return unusual or any(len({getattr(one, name) for one in group}) > 1 for group in alike)

    return found + [name for name in names if tells(name)]


def grouped(rows: Sequence[Row], names: Sequence[str]) -> list[list[Experiment]]:
    """Gather the experiments that have these settings in common."""
    groups: dict[tuple[str, ...], list[Experiment]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row.experiment, name) for name in names), []).append(row.experiment)
    return list(groups.values())


def cells(rows: Sequence[Row], sign: str = " ± ") -> tuple[list[str], list[list[str]]]:
    """Lay out headings and cells, the same for every format that people read."""
    extra = telling(rows)
    head = [*ALWAYS, *extra, *COLUMNS]
    body = []
    for row in rows:
        settings = [str(getattr(row.experiment, name)) for name in (*ALWAYS, *extra)]
        figures = [row.accuracy, row.incremental_accuracy, row.forgetting]
        body.append(
            [
                *map(printable, settings),
                str(row.n),
                *[figure.percent(sign) for figure in figures],
                f"{row.bytes:,}",
                f"{row.seconds:.1f}",
            ]
        )
    return head, body


def rendered(rows: Sequence[Row], form: str) -> str:
    """Write a table in one of the formats other than text."""
    if form not in FORMATS:
        raise InputError(f"There is no format {form!r}: {nearest(form, FORMATS)}.")
    if form == "json":
        return json.dumps([as_dict(row) for row in rows], indent=1, sort_keys=True)
    if form == "csv":
        return as_csv(rows)
    if form == "latex":
        head, body = cells(rows, r" $\pm$ ")
        lines = [" & ".join(map(latex, line)) + r" \\" for line in [head, *body]]
        columns = "l" * (len(head) - 6) + "r" * 6
        begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
        return "\n".join([begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", end])
    head, body = cells(rows)
    left = len(head) - 6
    ruler = ["---"] * left + ["---:"] * 6
    return "\n".join("| " + " | ".join(map(markdown, line)) + " |" for line in [head, ruler, *body])


def as_dict(row: Row) -> dict[str, Any]:
    """Lay a row out for programs: shares as fractions, every setting."""
    figures = {name: dataclasses.asdict(getattr(row, name)) for name in MEASURES}
    settings = {name: value for name, value in row.experiment.as_dict().items() if name != "seed"}
    sizes = {"bytes": row.bytes, "scalars": row.scalars, "seconds": row.seconds, "operations": row.operations}
    return {"experiment": settings, "seeds": list(row.seeds), "n": row.n, **figures, **sizes}


def as_csv(rows: Sequence[Row]) -> str:
    """Write one line a row, every setting and figure in a column of its own."""
    file = io.StringIO()
    names = [field.name for field in dataclasses.fields(Experiment) if field.name != "seed"]
    writer = csv.writer(file, lineterminator="\n")
    measured = [f"{name}_{part}" for name in MEASURES for part in ("mean", "std")]
    writer.writerow([*names, "n", *measured, "bytes", "scalars", "seconds", "operations"])
    for row in rows:
        parts = [getattr(getattr(row, name), part) for name in MEASURES for part in ("mean", "std")]
        settings = [getattr(row.experiment, name) for name in names]
        settings = [printable(value) if isinstance(value, str) else value for value in settings]
        writer.writerow([*settings, row.n, *parts, row.bytes, row.scalars, row.seconds, row.operations])
    return file.getvalue().rstrip("\n")


def markdown(text: str) -> str:
    """Keep a cell a cell."""
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, "\\" + sign)
    return text


def latex(text: str) -> str:
    """Keep a cell plain text, but for the sign of a deviation."""
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    signs |= {sign: "\\" + sign for sign in "&%$#_{}"}
    return r"$\pm$".join("".join(signs.get(sign, sign) for sign in part) for part in text.split(r"$\pm$"))
