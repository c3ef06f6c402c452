"""One page that shows a folder of runs, with everything it needs inside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from ccmcl import figures
from ccmcl._version import __version__
from ccmcl.errors import printable
from ccmcl.experiment import Experiment
from ccmcl.files import write
from ccmcl.published import comparable, paper_figure
from ccmcl.records import Record
from ccmcl.results import Row, order, table, telling
from ccmcl.sheets import drawn
from ccmcl.store import RunFolder

MOST_PICTURES = 7_000_000
"""Characters that pictures of memories may take; those of the first seeds and the smallest budgets come first."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page."""

    name: str
    section: str
    about: str
    figure: Figure


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw every figure that the runs have something for."""
    made, stems = [], Counter[str]()
    for dataset in dict.fromkeys(row.experiment.dataset for row in rows):
        of_set = [row for row in rows if row.experiment.dataset == dataset]
        stem = "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in dataset)[-60:]
        stems[stem] += 1
        if stems[stem] > 1:
            stem += f"-{stems[stem]}"
        if any(figures.buffer_of(row) for row in of_set):
            about = f"Accuracy over buffer size on {dataset}"
            made.append(Chart(f"{stem}-buffer", "buffer", about, figures.over_buffer(dataset, of_set)))
        for name, label, position in (
            ("bytes", "memory, bytes", figures.bytes_of),
            ("seconds", "seconds", figures.seconds_of),
            ("operations", "operations", figures.operations_of),
        ):
            if any(position(row) for row in of_set):
                about = f"Accuracy over {label} on {dataset}"
                made.append(Chart(f"{stem}-{name}", name, about, figures.over(dataset, of_set, label, position)))
    return made


def against_paper(row: Row) -> dict[str, Any] | None:
    """Compare a row with the paper's cell of the same data set, method and buffer, where they can be compared."""
    cell = paper_figure(row.experiment.dataset, row.experiment.method, row.experiment.budget)
    if cell is None or not comparable(row.experiment):
        return None
    mean, std = cell
    return {"mean": mean, "std": std, "difference": round(100 * row.accuracy.mean - mean, 1)}


def run_data(record: Record, pictures: dict[str, Any] | None) -> dict[str, Any]:
    """Gather what the page shows of one run."""
    result = record.result
    names = [", ".join(str(result["classes"][k]) for k in group) for group in result["groups"]]
    return {
        "name": record.path.name,
        "experiment": record.experiment.as_dict(),
        "accuracy": result["accuracy"],
        "incremental": result["incremental_accuracy"],
        "forgetting": result["forgetting"],
        "accuracies": result["accuracies"],
        "matrix": result["matrix"],
        "groups": names,
        "memory": result["memory"],
        "cost": record.cost,
        "pictures": pictures,
    }


def all_pictures(records: Sequence[Record]) -> dict[Path, dict[str, Any]]:
    """Draw memories until the page is full: seed by seed, small budgets first."""
    room, found = MOST_PICTURES, {}

    def early(record: Record) -> tuple[Any, ...]:
        (row,) = table([record])
        return (record.experiment.seed, *order(row)[2:])

    for record in sorted(records, key=early):
        pictures = drawn(RunFolder(record.path), room)
        if pictures is not None:
            found[record.path] = pictures
            room -= len(json.dumps(pictures))
    return found


def embedded(value: object) -> Markup:
    """Write data for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704


def make(records: Sequence[Record], title: str) -> str:
    """Make the page."""
    rows = table(records)
    pictures = all_pictures(records)
    sections: dict[str, list[tuple[str, Markup]]] = {}
    for chart in charts(rows):
        svg = Markup(figures.inline(chart.figure, chart.name, chart.about))  # noqa: S704
        sections.setdefault(chart.section, []).append((chart.name, svg))
    ordered = sorted(records, key=lambda record: (*order(table([record])[0]), record.experiment.seed))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    template = environment.from_string(files("ccmcl").joinpath("page.html").read_text("utf-8"))
    return template.render(
        title=title,
        version=__version__,
        rows=[(row, against_paper(row)) for row in rows],
        apart=telling(rows),
        count=len(records),
        sections=sections,
        data=embedded({"runs": [run_data(one, pictures.get(one.path)) for one in ordered], "helps": helps()}),
    )


def shown(value: object) -> object:
    """Keep signs that are not for reading out of the page's text; what is markup already stays as it is."""
    return printable(value) if type(value) is str else value


def helps() -> dict[str, str]:
    """The one line of help of each setting."""
    return {name: str(field.metadata["help"]) for name, field in Experiment.__dataclass_fields__.items()}


def write_page(records: Sequence[Record], path: Path, title: str) -> None:
    """Make the page and write it."""
    write(path, make(records, title).encode("utf-8", "backslashreplace"))


def write_figures(records: Sequence[Record], folder: Path) -> list[str]:
    """Write every figure as SVG and PDF, and return their names."""
    made = charts(table(records))
    for chart in made:
        figures.save(chart.figure, folder / chart.name)
    return [chart.name for chart in made]
