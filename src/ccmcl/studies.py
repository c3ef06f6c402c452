"""The commands for many runs at once: sweep, results, report."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from ccmcl import results as tables
from ccmcl.board import Board
from ccmcl.catalogue import COMPILE, DEVICES
from ccmcl.errors import InputError, nearest, printable
from ccmcl.estimate import Estimate
from ccmcl.experiment import Experiment
from ccmcl.files import check_writable
from ccmcl.local import Local
from ccmcl.options import (
    Changes,
    Compile,
    DataDir,
    Device,
    Every,
    Json,
    Out,
    Quiet,
    TensorBoard,
    Threads,
    checked_threads,
    console,
    lists,
    print_json,
    print_whole,
    whole,
)
from ccmcl.progress import duration
from ccmcl.records import RESULT, Record, read_cost, read_result, read_runs
from ccmcl.sweep import DONE, FAILING, RUNNING, STATES, Engine, Standing, Sweep, expand, read_sweep, survey
from ccmcl.sweep import sweep as sweep_through

ENGINES = ("local", "ray")
NumWorkers = Annotated[
    int | None,
    Parameter(help="runs at a time, sharing the threads (default: one a thread)", converter=whole),
]


def sweep(
    file: Annotated[Path | None, Parameter(help="a TOML file; without it, the settings given make the table")] = None,
    *,
    settings: Changes = None,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    engine: Annotated[str, Parameter(help=f"where the runs are done: {', '.join(ENGINES)}")] = "local",
    address: Annotated[str | None, Parameter(help="a Ray cluster that is there (default: one started here)")] = None,
    workers: NumWorkers = None,
    threads: Threads = None,
    compile: Compile = "auto",
    device: Device = "auto",
    retry_failed: Annotated[bool, Parameter(help="do runs again that failed before")] = False,
    dry_run: Annotated[bool, Parameter(help="say what is left, and do nothing")] = False,
    json: Json = False,
    quiet: Quiet = False,
    tensorboard: TensorBoard = False,
    checkpoint_seconds: Every = 15.0,
) -> None:
    """Do every experiment of a table that is not done yet. Settings may have several values: --seed 0,1,2.

    Stopped at any moment, the same command goes on. Several such commands on one folder share the work.
    """
    for name, value, known in (("engine", engine, ENGINES), ("compile", compile, COMPILE), ("device", device, DEVICES)):
        if value not in known:
            raise InputError(f"There is no {name} {value!r}: {nearest(value, known)}.")
    if workers is not None and not 1 <= workers <= 1024:
        raise InputError(f"The number of workers must be from 1 to 1024, not {workers}.")
    if address is not None and engine != "ray":
        raise InputError("An address is that of a Ray cluster: give --engine ray with it.")
    if tensorboard:
        import ccmcl.tensorboard  # noqa: F401  # said once if it is missing, before every run says it
    asked = _asked(file, lists(settings), data_dir)
    standings = survey(asked.experiments, out)
    screen = console()
    if not (json or quiet):
        screen.print(_overview(asked.title, standings))
    left = [one.experiment for one in standings if one.state != DONE and (retry_failed or one.state != FAILING)]
    cores = checked_threads(threads) or os.cpu_count() or 1
    # A run has as many threads whatever else is left, so that it goes on as it was begun.
    each = max(1, cores // (workers or cores)) if address is None else threads or 1
    at_once = max(1, min(workers or cores, len(left)))
    clock = Clock(out, asked.experiments, each, at_once if address is None else None)
    if left and not (json or quiet):
        screen.print(f"{len(left)} of {len(standings)} to do, {clock.about(left)}", markup=False)
    if left and not dry_run:
        check_writable(out)
        shared = (data_dir, compile, device, checkpoint_seconds, tensorboard)
        if engine == "ray":
            chosen = _on_ray(out, address, each, cores, workers, *shared)
        else:
            chosen = _here(at_once, out, each, *shared)
        standings = _through(asked, out, chosen, clock, left, retry_failed, quiet or json)
    _conclude(asked, standings, out, json, dry_run)
    if any(one.state != DONE for one in standings) and not dry_run:
        sys.exit(1)


def _here(at_once: int, out: Path, each: int, data_dir: Path | None, compile: str, device: str, *rest: Any) -> Engine:
    if device not in ("auto", "cpu"):  # said once, before every run says it
        from ccmcl.compute import device_of

        device_of(device)
    return Local(at_once, out, each, data_dir, compile, device, *rest)


def _on_ray(out: Path, address: str | None, each: int, cores: int, workers: int | None, *rest: Any) -> Engine:
    if address is None:  # Ray reads this when it is loaded: it shall listen on the loopback alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        from ccmcl.cluster import Cluster
    except ImportError as error:
        raise InputError("The engine ray needs Ray: pip install 'ccmcl[ray]'.") from error

    return Cluster(out, address, each, None if address else cores, workers, *rest)


def results(
    runs: Annotated[Path, Parameter(help="folder of runs")] = Path("runs"),
    *,
    format: Annotated[str, Parameter(help=f"one of {', '.join(tables.FORMATS)}")] = "text",
) -> None:
    """Set finished runs into a table: mean and deviation over the seeds."""
    rows = tables.table(read_runs(runs))
    if not rows:
        raise InputError(f"There is no finished run in {runs}.")
    if format == "text":
        print_whole(_drawn(rows, None))
    else:
        print(tables.rendered(rows, format))


def report(
    runs: Annotated[Path, Parameter(help="folder of runs")] = Path("runs"),
    *,
    out: Annotated[Path, Parameter(help="the page to write")] = Path("report.html"),
    figures: Annotated[Path | None, Parameter(help="folder for the figures as SVG and PDF too")] = None,
    title: Annotated[str | None, Parameter(help="heading of the page (default: the name of the folder)")] = None,
) -> None:
    """Show finished runs on one page that needs nothing else: figures, table, memories, every setting."""
    records = list(read_runs(runs))
    if not records:
        raise InputError(f"There is no finished run in {runs}.")
    from ccmcl.page import write_figures, write_page  # draws, so it takes a while to load

    write_page(records, out, title or runs.resolve().name)
    screen = console()
    screen.print(f"report: {out}", markup=False)
    if figures is not None:
        screen.print(f"figures: {figures} ({len(write_figures(records, figures))})", markup=False)


def _asked(file: Path | None, changes: dict[str, list[Any]], data_dir: Path | None) -> Sweep:
    if file is not None:
        return read_sweep(file, changes, data_dir)
    if not changes:
        raise InputError("Give a file with the table to do, or settings like --method composite,rehearsal --seed 0,1.")
    return Sweep("sweep", expand([{}], changes, data_dir))


@dataclass
class Clock:
    """Tells how long the rest of a sweep will take, ever better the more of it is done."""

    out: Path
    experiments: Sequence[Experiment]
    threads: int
    """of each run"""
    at_once: int | None
    """runs; None where that is not known"""
    estimate: Estimate = field(default_factory=Estimate)
    learned: set[str] = field(default_factory=set)

    def left(self, names: Sequence[str]) -> float | None:
        """Return the seconds that these runs should take; None where that cannot be told."""
        by_name = {one.name: one for one in self.experiments}
        for name, one in by_name.items():
            if name not in self.learned and (self.out / name / RESULT).is_file():
                self.learned.add(name)
                with suppress(InputError):  # it says nothing, so nothing is learned from it
                    self.estimate.learn(one, read_cost(self.out / name))
        times = self.estimate.each([by_name[name] for name in names if name not in self.learned])
        known = [seconds / self.threads for seconds in times if seconds is not None]
        if self.at_once is None or len(known) < len(times):
            return None
        return max([sum(known) / self.at_once, *known])  # the longest run takes its time, however many there are

    def about(self, experiments: Sequence[Experiment]) -> str:
        """Say in words how long these will take."""
        seconds = self.left([one.name for one in experiments])
        return "time unknown" if seconds is None else f"about {duration(seconds)}"


def _through(
    asked: Sweep, out: Path, engine: Engine, clock: Clock, left: list[Experiment], retry_failed: bool, quiet: bool
) -> list[Standing]:
    # Standard output is for results alone; Ray would write there whenever one of its processes dies.
    with redirect_stdout(sys.stderr):
        if quiet:
            with _stoppable(engine, lambda _: None):
                return sweep_through(asked.experiments, out, engine, retry_failed=retry_failed)
        board = Board([one.name for one in left], clock.left)
        with board, _stoppable(engine, board.say):
            return sweep_through(asked.experiments, out, engine, board.hear, retry_failed)


@contextmanager
def _stoppable(engine: Engine, say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C stop the runs when they are safely kept; pressed again, at once."""

    def pressed(*_: object) -> None:
        if engine.stopping:
            raise KeyboardInterrupt
        say("Stopping; every run keeps where it is. (Ctrl-C again stops at once, back to the last checkpoints.)")
        engine.stop()

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if engine.stopping:
        raise KeyboardInterrupt


def _conclude(asked: Sweep, standings: list[Standing], out: Path, json: bool, dry_run: bool) -> None:
    """Show what is there, and what failed."""
    if json:
        rows = [{"name": one.experiment.name, "state": one.state, "reason": one.reason} for one in standings]
        print_json({"title": asked.title, "runs": rows, "results": _summaries(standings, out)})
        return
    screen = console()
    done = [one.experiment for one in standings if one.state == DONE]
    if done and not dry_run:
        print_whole(_drawn(tables.table(_records(done, out)), asked.title))
        screen.print(f"run folders: {out}", markup=False)
    for one in standings:
        if one.state == FAILING:
            screen.print(f"failed: {one.experiment.name}: {printable(one.reason)}", markup=False)
        elif one.state != DONE and not dry_run:
            why = f": {printable(one.reason)}" if one.reason else ""
            screen.print(f"not finished: {one.experiment.name}{why}", markup=False)


def _summaries(standings: list[Standing], out: Path) -> list[dict[str, Any]]:
    done = [one.experiment for one in standings if one.state == DONE]
    return [tables.as_dict(row) for row in tables.table(_records(done, out))]


def _records(experiments: Sequence[Experiment], out: Path) -> list[Record]:
    folders = [(one, out / one.name) for one in experiments]
    return [Record(folder, one, read_result(folder), read_cost(folder)) for one, folder in folders]


def _overview(title: str, standings: list[Standing]) -> Table:
    """Count by data set and method where the experiments stand."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in standings:
        counts.setdefault((one.experiment.dataset, one.experiment.method), Counter())[one.state] += 1
    shown = [state for state in STATES if state in (DONE, RUNNING) or any(count[state] for count in counts.values())]
    rows = Table(title=Text(printable(title)), title_justify="left", title_style="bold")
    for column in ("data set", "method"):
        rows.add_column(column)
    for state in (*shown, "all"):
        rows.add_column(state, justify="right")
    for (dataset, method), count in counts.items():
        rows.add_row(
            Text(printable(dataset)), method, *[str(count[state] or "") for state in shown], str(count.total())
        )
    return rows


def _drawn(rows: list[tables.Row], title: str | None) -> Table:
    head, body = tables.cells(rows)
    drawn = Table(title=None if title is None else Text(printable(title)), title_justify="left", title_style="bold")
    for place, column in enumerate(head):
        drawn.add_column(column, justify="left" if place < len(head) - len(tables.COLUMNS) else "right")
    for line in body:
        drawn.add_row(*map(Text, line))
    return drawn
