"""Write docs/results.md from the run folders under results/.

    python benchmarks/results_page.py

Each folder below results/ is a study: `published` (the smallest buffers beside the paper's figures), `fast` (the same
by the preset of a few minutes, on held-out training images), `fast-test` (on the test set), `best` (by the preset of
the highest accuracy, held out), `optimiser` (which rule reproduces the paper, held out) and
`digits` (the embedded set).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from ccmcl.published import paper_figure
from ccmcl.records import Record, read_runs
from ccmcl.results import Row, table

ROOT = Path(__file__).parents[1]
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
        name = f"{TITLES.get(one.dataset, one.dataset)} {one.budget}"
        outer = str(one.outer) if one.method in ("composite", "condensation") and one.objective == "gradient" else ""
        cells = [name, one.method, outer, str(row.n), row.accuracy.percent(), paper, difference]
        body.append([*cells, f"{100 * row.forgetting.mean:.1f}", f"{row.bytes:,}", time_of(row)])
    head = ["", "method", "K", "n", "accuracy, %", "paper, %", "difference", "forgetting, %", "bytes", "time"]
    return lines_of(head, body, 2)


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


def made(results: Path) -> str:
    """Write the page."""
    text = (ROOT / "benchmarks" / "results_page.md").read_text("utf-8")
    parts = {}
    for study in ("published", "fast", "fast-test", "best", "optimiser", "digits"):
        folder = results / study
        records = list(read_runs(folder)) if folder.is_dir() else []
        if not records:
            parts[study] = "(not measured yet)"
        elif study == "optimiser":
            parts[study] = "\n".join(optimisers(records))
        else:
            against = "composite" if study in ("fast", "fast-test", "best") else None
            parts[study] = "\n".join(beside_paper(table(records), against))
    for study, part in parts.items():
        text = text.replace(f"<!-- {study} -->", part)
    return text


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(made(ROOT / "results"), "utf-8")
