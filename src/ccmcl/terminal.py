"""What commands print: runs, memories and measurements as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text
from torch import Tensor

from ccmcl.bench import Result
from ccmcl.errors import printable
from ccmcl.kinds import Composite, Encoded, Pixels, Remembered, count_of, nbytes, scalars
from ccmcl.memory import Memory
from ccmcl.progress import duration
from ccmcl.store import RunFolder

COLUMNS = 10
"""Experiences that fit side by side on a terminal."""


def table(folders: Sequence[RunFolder], title: str | None = None) -> Table:
    """Set finished runs side by side: what they reached, what they forgot, what they kept, what they took."""
    rows = Table(title=None if title is None else Text(printable(title)), title_justify="left", title_style="bold")
    rows.add_column("method")
    for column in ("accuracy", "incremental", "forgetting", "memory", "seconds"):
        rows.add_column(column, justify="right")
    for folder in folders:
        result, cost = folder.result(), folder.cost()
        rows.add_row(
            folder.experiment().method,
            f"{result['accuracy']:.1%}",
            f"{result['incremental_accuracy']:.1%}",
            f"{result['forgetting']:.1%}",
            f"{result['memory']['bytes']:,} B",
            f"{cost.get('seconds', 0.0):.1f}",
        )
    return rows


def experiences(folder: RunFolder) -> Table:
    """Show the accuracy on every experience (column) after every experience (row); of a long stream, on some."""
    result = folder.result()
    total = len(result["groups"])
    shown = spread(total, COLUMNS)
    title = "accuracy on each experience (column) after each (row)"
    some = "" if len(shown) == total else f": {len(shown)} of {total} experiences"
    rows = Table(title=title + some, title_justify="left")
    rows.add_column("after")
    names = {i: Text(printable(", ".join(result["classes"][k] for k in result["groups"][i]))) for i in shown}
    for name in names.values():
        rows.add_column(name, justify="right")
    rows.add_column("all seen", justify="right")
    for i, name in names.items():
        line = [result["matrix"][i][j] for j in shown]
        cells = ["" if value is None else f"{value:.1%}" for value in line]
        rows.add_row(name, *cells, f"{result['accuracies'][i]:.1%}")
    return rows


def spread(total: int, most: int) -> list[int]:
    """Choose at most so many of the numbers below ``total``, evenly, the first and the last among them.

    >>> spread(3, 8), spread(125, 5)
    ([0, 1, 2], [0, 31, 62, 93, 124])
    """
    if total <= most:
        return list(range(total))
    return [round(i * (total - 1) / (most - 1)) for i in range(most)]


def summary(folder: RunFolder) -> str:
    """Say in one line what a run came to."""
    result, cost = folder.result(), folder.cost()
    memory = result["memory"]
    return (
        f"accuracy {result['accuracy']:.2%}, forgetting {result['forgetting']:.2%}, "
        f"memory {memory['bytes']:,} bytes ({memory['scalars']:,} numbers, {memory['images']} images), "
        f"{duration(cost.get('seconds', 0.0))}"
    )


def contents(memory: Memory, names: Sequence[str]) -> Table:
    """List what a memory holds of each class and how large that is."""
    rows = Table(title="memory", title_justify="left", show_footer=True)
    rows.add_column("class", "total")
    rows.add_column("what is stored", f"{memory.count} images")
    rows.add_column("numbers", f"{memory.scalars:,}", justify="right")
    rows.add_column("bytes", f"{memory.nbytes:,}", justify="right")
    for label, kept in memory.items():
        name = Text(printable(names[label] if label < len(names) else str(label)))
        rows.add_row(name, stored_shape(kept), f"{scalars(kept):,}", f"{nbytes(kept):,}")
    return rows


def stored_shape(kept: Remembered) -> str:
    """Say in words what is stored of one class."""
    tensors = kept.tensors()
    stored = "" if kept.form.size is None or isinstance(kept, Encoded) else f" of {side_by_side(tensors)} pixels"
    bits = f" in {kept.form.bits} bits" if kept.form.bits < 32 else ""
    if isinstance(kept, Pixels) and kept.form.step:
        bits = f" coded, {8 * len(tensors['code']) / kept.pixels.numel():.1f} bits a number"
    beside = " with logits" if "logits" in tensors else " with soft labels" if "targets" in tensors else ""
    if isinstance(kept, Composite):
        components, images = kept.weights.shape
        return f"{components} component{'s' * (components != 1)}{stored}{bits} mixed into {images} images{beside}"
    noun = {"exemplars": "stored picture", "encoded": "encoded picture", "pixels": "free image"}[kept.kind]
    count = count_of(kept)
    return f"{count} {noun}{'s' * (count != 1)}{stored}{bits}{beside}"


def side_by_side(tensors: Mapping[str, Tensor]) -> str:
    """Say how many rows and columns of pixels are stored."""
    height, width = next(iter(tensors.values())).shape[-2:]
    return f"{height}×{width}"


def bench_tables(result: Result) -> list[Table | str]:
    """Set out what was measured: condensing, learning, and a line of totals."""
    tables: list[Table | str] = []
    for title, rows in (("one inner iteration", result.condense), ("Algorithm 2, buffer of 40", result.learn)):
        drawn = Table(title=f"{result.case}, {result.threads} threads: {title}", title_justify="left")
        drawn.add_column("")
        for column in ("seconds", "times faster", "GFLOP/s", "share of sgemm"):
            drawn.add_column(column, justify="right")
        for row in rows:
            drawn.add_row(row.name, f"{row.seconds:.4f}", f"{row.ratio:.1f}", f"{row.gflops:.0f}", f"{row.share:.0%}")
        tables.append(drawn)
    mebi = 1 << 20
    tables.append(
        f"sgemm {result.sgemm_gflops:.0f} GFLOP/s; {duration(result.seconds_per_class)} a class with the paper's "
        f"settings; an update allocates {result.update_bytes / mebi:.0f} MiB, its activations are "
        f"{result.activation_bytes / mebi:.0f} MiB; compiling took {result.compile_seconds:.0f} s"
    )
    return tables
