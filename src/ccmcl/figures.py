"""Runs as figures: accuracy over the buffer, over bytes and over what it cost, beside the paper's."""

from __future__ import annotations

import html
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ccmcl.errors import printable
from ccmcl.files import write
from ccmcl.published import METHODS as IN_PAPER
from ccmcl.published import TABLE, comparable
from ccmcl.results import Row, telling

COLOURS = {
    "composite": "#2a78d6",
    "condensation": "#d9663c",
    "rehearsal": "#2f9e6e",
    "bic": "#a05cc5",
    "finetune": "#8a8a8a",
    "joint": "#b8952a",
}
MARKS = {"composite": "o", "condensation": "s", "rehearsal": "^", "bic": "D", "finetune": "v", "joint": "P"}
FILLS = ("full", "none", "left", "right", "bottom", "top")
"""Marks of one method by other settings are filled in another way, and then smaller."""
SMALLER = 0.7
INK, LINE = "#1a1b1e", "#d8d9dd"
SIZE = (5.2, 3.1)
MOST_TICKS = 12
LONGEST = 70
"""Signs of a label."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,
}
Position = Callable[[Row], float | None]


def buffer_of(row: Row) -> float | None:
    """The buffer in examples, where the budget was given so."""
    return float(row.experiment.budget) if row.experiment.budget.isdecimal() else None


def bytes_of(row: Row) -> float | None:
    """The bytes of the memory; a bound that keeps nothing or everything has no place on that line."""
    return float(row.bytes) if row.bytes and row.experiment.method != "joint" else None


def seconds_of(row: Row) -> float | None:
    """The time that a run took."""
    return row.seconds or None


def operations_of(row: Row) -> float | None:
    """The operations that a run takes."""
    return row.operations or None


def series(rows: Sequence[Row], position: Position) -> dict[tuple[str, str], list[tuple[float, Row]]]:
    """Sort rows into lines: of one method each, and of one choice of whatever else tells them apart."""
    apart = telling(rows)
    lines: dict[tuple[str, str], list[tuple[float, Row]]] = {}
    for row in rows:
        place = position(row)
        if place is not None:
            more = ", ".join(f"{name} {getattr(row.experiment, name)}" for name in apart)
            lines.setdefault((row.experiment.method, f" ({more})" if more else ""), []).append((place, row))
    return {key: sorted(line, key=lambda point: point[0]) for key, line in lines.items()}


def over_buffer(dataset: str, rows: Sequence[Row]) -> Figure:
    """Accuracy over the buffer as in the paper's Fig. 2, the paper's own figures dashed."""
    figure, axes = empty(dataset, "buffer, examples")
    lines = series(rows, buffer_of)
    flat = [key for key in lines if key[0] in ("finetune", "joint")]
    numbers = numbered(lines)
    shown = {row.experiment.method for row in rows if buffer_of(row) and comparable(row.experiment)}
    for place, method in enumerate(IN_PAPER):
        if dataset in TABLE and method in shown:
            points = [(buffer, *cells[place]) for buffer, cells in TABLE[dataset].items()]
            xs, means, stds = zip(*points, strict=True)
            style: dict[str, Any] = {
                "ls": (0, (3, 2)),
                "lw": 1.0,
                "alpha": 0.75,
                "color": COLOURS[method],
                "capsize": 2,
            }
            axes.errorbar(xs, means, stds, label=f"{method}, paper", elinewidth=0.7, **style)
    for key, line in lines.items():
        if key in flat:
            axes.axhline(
                100 * line[0][1].accuracy.mean,
                ls=":",
                lw=1.2,
                color=COLOURS[key[0]],
                label=shortened(printable("".join(key))),
            )
        else:
            draw(axes, key, line, numbers[key])
    buffers = {place for line in lines.values() for place, _ in line} | set(TABLE.get(dataset, {}) if shown else ())
    if len(buffers) <= MOST_TICKS:
        axes.set_xticks(sorted(buffers), [f"{place:g}" for place in sorted(buffers)])
    return finished(figure, axes)


def over(dataset: str, rows: Sequence[Row], label: str, position: Position) -> Figure:
    """Accuracy over bytes, seconds or operations, on a logarithmic scale, and the most that each of them buys."""
    figure, axes = empty(dataset, label)
    axes.set_xscale("log")
    lines = series(rows, position)
    for key, number in numbered(lines).items():
        draw(axes, key, lines[key], number)
    points = [(place, 100 * row.accuracy.mean) for line in lines.values() for place, row in line]
    left, right = min(points)[0] / 1.7, max(points)[0] * 1.7  # one point alone has no scale of its own
    axes.set_xlim(left, right)
    best = frontier(points)
    if len(best) < len(points):  # else it says nothing that the points do not
        xs, heights = zip(*best, (right, best[-1][1]), strict=True)
        axes.step(xs, heights, where="post", color=INK, lw=0.8, alpha=0.6, zorder=1, label="the most up to there")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=MOST_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    return finished(figure, axes)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the points that are higher than all that cost no more (the Pareto front), the cheapest first.

    >>> frontier([(3.0, 60.0), (1.0, 50.0), (2.0, 40.0), (3.0, 55.0), (5.0, 60.0)])
    [(1.0, 50.0), (3.0, 60.0)]
    """
    kept: list[tuple[float, float]] = []
    for cost, height in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or height > kept[-1][1]:
            kept.append((cost, height))
    return kept


def short(value: float) -> str:
    """Write a large number in few signs.

    >>> short(0.5), short(30000.0), short(2e12)
    ('0.5', '30 k', '2 T')
    """
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:g} {unit}"
    return f"{value:g}"


def shortened(text: str) -> str:
    """Keep a label from pushing the figure off the page."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def empty(dataset: str, label: str) -> tuple[Figure, Axes]:
    """Make a figure for one data set."""
    with rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        axes.set_title(printable(dataset)[:60], loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy, %")
        axes.yaxis.set_major_locator(MaxNLocator(6))
    return figure, axes


def numbered(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Number the lines of each method.

    >>> numbered([("bic", " (steps 5)"), ("joint", ""), ("bic", " (steps 9)")])
    {('bic', ' (steps 5)'): 0, ('joint', ''): 0, ('bic', ' (steps 9)'): 1}
    """
    met = Counter[str]()
    found = {}
    for key in keys:
        found[key] = met[key[0]]
        met[key[0]] += 1
    return found


def draw(axes: Axes, key: tuple[str, str], line: Sequence[tuple[float, Row]], number: int) -> None:
    """Draw one line with its error bars; other lines of its method have other numbers, and look a little different."""
    method, more = key
    means = [100 * row.accuracy.mean for _, row in line]
    stds = [100 * (row.accuracy.std or 0.0) for _, row in line] if any(row.n > 1 for _, row in line) else None
    again, fill = divmod(number, len(FILLS))
    style: dict[str, Any] = {
        "color": COLOURS[method],
        "marker": MARKS[method],
        "fillstyle": FILLS[fill],
        "ms": 5.5 * SMALLER**again,
        "lw": 1.6,
        "capsize": 2.5,
    }
    axes.errorbar([place for place, _ in line], means, stds, label=shortened(printable(method + more)), **style)


def finished(figure: Figure, axes: Axes) -> Figure:
    """Add the legend below, if there is anything to explain, and make room for it."""
    with rc_context(STYLE):
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            columns = 1 if max(map(len, labels)) > 34 else 2 if max(map(len, labels)) > 20 else 3
            lines = -(-len(handles) // columns)
            figure.set_size_inches(SIZE[0], SIZE[1] + 0.17 * lines)
            figure.legend(handles, labels, loc="outside lower left", ncols=columns)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG and as PDF, for a paper."""
    for form in ("svg", "pdf"):
        write(path.with_suffix(f".{form}"), drawn(figure, form, path.stem))


def drawn(figure: Figure, form: str, name: str) -> bytes:
    """Draw a figure; the same one gives the same bytes."""
    file = io.BytesIO()
    with rc_context({**STYLE, "svg.hashsalt": name}):
        metadata = {"Date": None} if form == "svg" else {"CreationDate": None}
        figure.savefig(file, format=form, metadata=metadata, transparent=True)
    return file.getvalue()


def inline(figure: Figure, name: str, about: str) -> str:
    """Turn a figure into SVG for a page, in the page's own colours, so that it can be read in the dark."""
    text = drawn(figure, "svg", name).decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", text)
    text = text.replace(INK, "var(--ink)").replace(LINE, "var(--line)")
    begun = f'<svg role="img" aria-label="{html.escape(printable(about))}" '
    width = re.compile(r'<svg ([^>]*?)(?:width|height)="[^"]*"([^>]*?)(?:width|height)="[^"]*"')
    return width.sub(lambda found: begun + found[1] + found[2], text, count=1)
