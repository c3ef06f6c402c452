"""Write docs/results.md, docs/choices.md, its picture and the first table of README.md from the folders of results/.

    python benchmarks/results_page.py

Each folder below results/ is a study: `published` (the smallest buffers beside the paper's figures), `fast` (the same
by the preset of a few minutes, on held-out training images), `fast-test` (on the test set), `kilobytes` (likewise, with
budgets of a few kilobytes), `best` (by the preset of the highest accuracy, held out), `best-test` (on the test set),
`fast-before` and `best-before` (as the presets were before), `optimiser` (which rule reproduces the paper, held out),
`digits` (the embedded set), `choices` (one choice of a preset changed at a time, held out), `bytes` (methods at equal
bytes, held out), `mixing` (free images or mixed components on every set, held out), `frequencies` (how fine an image is
kept, held out), `apart` and `learner` (what was tried for networks that go on, held out; their tables are written by
hand, since they are of several versions).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ccmcl.budget import Budget
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.figures import COLOURS, INK, MARKS, STYLE, bytes_of, drawn, frontier, seconds_of, short
from ccmcl.files import write
from ccmcl.published import METHODS, TABLE, paper_figure
from ccmcl.records import Record, read_runs
from ccmcl.results import Row, table

ROOT = Path(__file__).parents[1]
PAGES = ("results", "choices")
BY_INTEREST = ("cifar10", "mnist", "svhn", "fashion-mnist")
CHOSEN = ("choices", "bytes", "mixing")
"""Studies of what differs from a preset."""
PICTURE = ROOT / "docs" / "choices.svg"
SHOWN_POINTS = 12.0
"""The picture shows what comes as near to the best."""
BEYOND = ("fast", "fast-test", "fast-before", "best", "best-test", "best-before")
"""Studies by presets that are not the paper's: they are set beside its own method."""
TITLES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "svhn": "SVHN", "cifar10": "CIFAR10", "digits": "digits"}


def lines_of(head: list[str], body: Iterable[list[str]], left: int) -> list[str]:
    """Set a Markdown table, its first columns to the left."""
    ruler = ["---"] * left + ["---:"] * (len(head) - left)
    return ["| " + " | ".join(line) + " |" for line in [head, ruler, *body]]


def time_of(row: Row) -> str:
    """Write how long a run took."""
    return f"{row.seconds / 60:.0f} min" if row.seconds >= 90 else f"{row.seconds:.0f} s"


def beside_paper(rows: list[Row], against: str | None = None) -> list[str]:
    """Set ours beside the paper's, of the same method or of the one named."""
    body = []
    for row in rows:
        one = row.experiment
        cell = paper_figure(one.dataset, against or one.method, one.budget)
        paper, difference = ("", "")
        if cell is not None:
            mean, std = cell
            off = 100 * row.accuracy.mean - mean
            paper, difference = f"{mean} ± {std}", f"{off:+.1f} ({off / std:+.1f} σ)"
        name = f"{TITLES.get(one.dataset, one.dataset)} {size_of(one.budget)}"
        outer = str(one.outer) if one.method in ("composite", "condensation") and one.objective == "gradient" else ""
        cells = [name, one.method, outer, str(row.n), row.accuracy.percent(), paper, difference]
        body.append([*cells, f"{100 * row.forgetting.mean:.1f}", f"{row.bytes:,}", time_of(row)])
    head = ["", "method", "K", "n", "accuracy, %", "paper, %", "difference", "forgetting, %", "bytes", "time"]
    return lines_of(head, body, 2)


def headline(results: Path) -> list[str]:
    """Set what the presets reach on the test set beside the paper's own method, by its smallest and largest buffer."""
    found: dict[tuple[str, str, str], Row] = {}
    for study in ("fast-test", "best-test"):
        for row in table(read_runs(results / study)):
            found[study, row.experiment.dataset, row.experiment.budget] = row
    body = []
    for dataset, by_buffer in TABLE.items():
        for buffer in (min(by_buffer), max(by_buffer)):
            rows = [found.get((study, dataset, str(buffer))) for study in ("fast-test", "best-test")]
            cells = ["" if row is None else f"{row.accuracy.percent()} ({row.n})" for row in rows]
            size = next((f"{row.bytes / 1000:,.0f} kB" for row in reversed(rows) if row is not None), "")
            mean, std = by_buffer[buffer][METHODS.index("composite")]
            body.append([f"{TITLES[dataset]} {buffer}", size, f"{mean} ± {std} (5)", *cells])
    head = ["data set, budget", "memory", "the paper's own figure", "`--preset fast`", "`--preset best`"]
    return lines_of(head, body, 1)


def introduced(results: Path) -> str:
    """Write the README with its first table as the folders have it."""
    text = (ROOT / "README.md").read_text("utf-8")
    head, _, rest = re.split(r"(?<=<!-- measured -->\n)(.*?)(?=<!-- /measured -->)", text, flags=re.DOTALL)
    return head + "".join(line + "\n" for line in headline(results)) + rest


def optimisers(records: list[Record]) -> list[str]:
    """Set the rules side by side, each seed by itself."""
    groups: dict[tuple[str, str, str, float], list[float]] = {}
    for record in records:
        one = record.experiment
        key = (one.dataset, one.method, one.condense_optimiser, one.condense_rate)
        groups.setdefault(key, []).append(100 * record.result["accuracy"])
    body = []
    for (dataset, method, rule, rate), found in sorted(groups.items()):
        mean = f"{statistics.mean(found):.1f}" + (f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else "")
        seeds = ", ".join(f"{value:.1f}" for value in found)
        body.append([TITLES.get(dataset, dataset), method, rule, f"{rate:g}", str(len(found)), mean, seeds])
    return lines_of(["", "method", "rule", "rate", "n", "accuracy, %", "each seed"], body, 3)


def fineness(records: list[Record]) -> list[str]:
    """Set images of more frequencies beside more images."""
    groups: dict[tuple[str, int, int, int], list[float]] = {}
    for record in records:
        one, images = record.experiment, record.result["memory"]["images"] // len(record.result["classes"])
        key = (one.dataset, int(one.budget), int(one.frequencies), images)
        groups.setdefault(key, []).append(100 * record.result["accuracy"])
    body = [
        [f"{TITLES[dataset]} {budget}", str(count), str(images), ", ".join(f"{value:.1f}" for value in found)]
        for (dataset, budget, count, images), found in sorted(groups.items())
    ]
    return lines_of(["", "frequencies", "images of a class", "accuracy of each seed, %"], body, 1)


def changed(one: Experiment) -> str:
    """Say what was asked for beside the preset: the least that makes the same experiment."""
    asked = {name: getattr(one, name) for name in ("dataset", "budget", "preset", "seed", "holdout")}
    preset = Experiment.of(**asked, method=one.method).as_dict()
    given = {"method": one.method} | {name: value for name, value in one.as_dict().items() if value != preset[name]}
    made = Experiment.of(**asked, **given).as_dict()  # what is asked for may change what a preset fills in
    given |= {name: value for name, value in one.as_dict().items() if value != made[name]}
    for name in reversed(list(given)):
        fewer = {other: value for other, value in given.items() if other != name}
        try:
            if Experiment.of(**asked, **fewer) == one:
                given = fewer
        except InputError:
            continue
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())


def choices(rows: list[Row], costs: bool = True) -> list[str]:
    """Set what each choice comes to beside the preset itself, a data set and budget beside the other, by the first.

    Its points beside the preset, and its time, come with it, unless there are too many columns for these ``costs``.
    """
    found: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        found.setdefault(changed(row.experiment), {})[row.experiment.dataset, row.experiment.budget] = row
    every = {key for group in found.values() for key in group}
    sets = sorted(every, key=lambda key: (BY_INTEREST.index(key[0]), Budget.parse(key[1]).amount))
    body = []
    for said, group in found.items():
        cells = [said or "the preset"]
        for name in sets:
            row, base = group.get(name), found.get("", {}).get(name)
            points = "" if row is None or base is None else f"{100 * (row.accuracy.mean - base.accuracy.mean):+.1f}"
            shown = ["", "", ""] if row is None else [row.accuracy.percent(), points if said else "", time_of(row)]
            cells += shown if costs else shown[:1]
        first = next(place for place, name in enumerate(sets) if name in group)
        body.append(((bool(said), first, -group[sets[first]].accuracy.mean), cells))
    body.sort(key=lambda line: line[0])
    named = (f"{TITLES[name]} {size_of(budget)}, %" for name, budget in sets)
    head = ["", *(text for name in named for text in ((name, "points", "time") if costs else (name,)))]
    return lines_of(head, [cells for _, cells in body], 1)


def size_of(budget: str) -> str:
    """Write a budget shortly."""
    found = Budget.parse(budget)
    if not found.in_bytes:
        return budget
    return f"{found.amount / 1024:.0f} KiB" if found.amount % 1024 == 0 else f"{found.amount / 1000:.0f} kB"


def picture(rows: list[Row]) -> Figure:
    """Draw accuracy over bytes and over seconds, a data set in each row; what no cheaper run reaches has its name."""
    sets = [name for name in TITLES if any(row.experiment.dataset == name for row in rows)]
    costs = (("bytes of the memory", bytes_of), ("seconds of a run", seconds_of))
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.6 * len(sets)), layout="constrained")
        panels = figure.subplots(len(sets), len(costs), squeeze=False)
        for line, name in zip(panels, sets, strict=True):
            for axes, (label, cost) in zip(line, costs, strict=True):
                own = [row for row in rows if row.experiment.dataset == name and cost(row)]
                points = [(cost(row) or 0.0, 100 * row.accuracy.mean) for row in own]
                for row, (place, height) in zip(own, points, strict=True):
                    method = row.experiment.method
                    axes.plot(place, height, MARKS[method], color=COLOURS[method], ms=5, alpha=0.8)
                best = frontier(points)
                axes.step(*zip(*best, strict=True), where="post", color=INK, lw=0.8, alpha=0.6, zorder=1)
                axes.set_xscale("log")
                axes.set_ylim(best[-1][1] - SHOWN_POINTS, best[-1][1] + SHOWN_POINTS / 10)
                named(axes, [(place, own[points.index(place)].experiment) for place in best])
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
                axes.xaxis.set_minor_formatter(NullFormatter())
                axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.set_xlabel(label)
                axes.set_title(TITLES[name], loc="left", fontsize=10, fontweight="bold")
                axes.set_ylabel("accuracy on held-out images, %")
        used = [method for method in MARKS if any(row.experiment.method == method for row in rows)]
        marks = [Line2D([], [], ls="", marker=MARKS[method], color=COLOURS[method]) for method in used]
        figure.legend(marks, used, loc="outside lower left", ncols=len(used))
    return figure


def named(axes: Axes, points: list[tuple[tuple[float, float], Experiment]]) -> None:
    """Write names beside points, the highest first, on the side where there is room; not over one another."""
    written: list[float] = []
    low, high = axes.get_xlim()
    for (place, height), one in reversed(points):
        if any(abs(height - other) < SHOWN_POINTS / 25 for other in written):
            continue
        written.append(height)
        left = math.log(place / low) > 0.5 * math.log(high / low)
        said = f"{changed(one) or 'the preset'} ({size_of(one.budget)})"
        where = {"xytext": (-6 if left else 6, -3), "ha": "right" if left else "left"}
        behind = {"fc": axes.get_facecolor(), "ec": "none", "pad": 0.6}
        axes.annotate(said, (place, height), textcoords="offset points", fontsize=7, bbox=behind, zorder=1.5, **where)


def of_study(results: Path, study: str) -> list[Record]:
    """Read a study; what another one measured of the same choices belongs to it."""
    records = list(read_runs(results / study)) if (results / study).is_dir() else []
    if study == "choices":
        sets = {(record.experiment.dataset, record.experiment.budget) for record in records}
        others, own = of_study(results, "mixing"), {record.experiment.name for record in records}
        others = [one for one in others if one.experiment.name not in own]
        records += [one for one in others if (one.experiment.dataset, one.experiment.budget) in sets]
    return records


def pictured(results: Path) -> list[Row]:
    """Gather what the picture shows: every choice, at the paper's count of numbers and at its bytes."""
    return table(of_study(results, "choices") + of_study(results, "bytes"))


def mark_of(rows: list[Row]) -> str:
    """Sum up what is drawn, whatever it is drawn by: the picture carries it, to be known for an old one."""
    drawn_of = [(row.experiment.name, row.accuracy.mean, row.bytes, row.seconds) for row in rows]
    return hashlib.sha256(json.dumps(drawn_of).encode()).hexdigest()


def made(results: Path, page: str = "results") -> str:
    """Write a page."""
    text = (ROOT / "benchmarks" / f"{page}_page.md").read_text("utf-8")
    for study in re.findall(r"<!-- (\S+) -->", text):
        records = of_study(results, study)
        if not records:
            part = ["(not measured yet)"]
        elif study == "optimiser":
            part = optimisers(records)
        elif study == "frequencies":
            part = fineness(records)
        elif study in CHOSEN:
            part = choices(table(records), costs=study != "bytes")
        else:
            part = beside_paper(table(records), "composite" if study in BEYOND else None)
        text = text.replace(f"<!-- {study} -->", "\n".join(part))
    return text


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / "docs" / f"{page}.md").write_text(made(ROOT / "results", page), "utf-8")
    if of_study(ROOT / "results", "choices"):
        shown = pictured(ROOT / "results")
        drawing = drawn(picture(shown), "svg", PICTURE.stem).decode("utf-8")
        write(PICTURE, drawing.replace("</svg>", f"<!-- {mark_of(shown)} -->\n</svg>").encode("utf-8"))
    (ROOT / "README.md").write_text(introduced(ROOT / "results"), "utf-8")
