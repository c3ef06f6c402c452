"""The command line: run, sweep, results, report, show, bench, data.

PyTorch takes seconds to load, so only the commands that need it do so.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from ccmcl import studies
from ccmcl._version import __version__
from ccmcl.errors import InputError, StorageError, printable
from ccmcl.experiment import Experiment
from ccmcl.options import (
    OWN,
    Compile,
    DataDir,
    Device,
    Every,
    Json,
    Out,
    Quiet,
    Settings,
    TensorBoard,
    Threads,
    checked_threads,
    console,
    print_json,
    values,
    whole,
)
from ccmcl.progress import reporter

if TYPE_CHECKING:
    from ccmcl.store import RunFolder

app = App(
    name="ccmcl",
    help="Continual learning with a memory that fits in kilobytes.",
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
    group_parameters=OWN,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


COMMANDS = [app.command(command) for command in (studies.sweep, studies.results, studies.report)]
NumWorkers = Annotated[
    int | None, Parameter(help="processes that condense classes side by side (default: by the work)")
]


@app.command
def run(
    *,
    settings: Settings = None,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    threads: Threads = None,
    workers: NumWorkers = None,
    compile: Compile = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    tensorboard: TensorBoard = False,
    checkpoint_seconds: Every = 15.0,
) -> None:
    """Learn one stream with one method, or go on with a run that was interrupted."""
    from ccmcl.compute import Compute
    from ccmcl.running import run as run_experiment
    from ccmcl.terminal import experiences, summary

    _set_threads(threads)
    experiment = Experiment.of(data_dir, **values(settings))
    said, compute = reporter(quiet), Compute(compile, device, workers)
    if tensorboard:
        from ccmcl.tensorboard import Curves

        curves = Curves(said, out / experiment.name)
        folder = run_experiment(experiment, out, data_dir, curves, checkpoint_seconds, compute)
        curves.conclude(folder)
    else:
        folder = run_experiment(experiment, out, data_dir, said, checkpoint_seconds, compute)
    if json:
        print_json(_result(folder))
        return
    screen = console()
    screen.print(experiences(folder))
    screen.print(summary(folder), markup=False)
    screen.print(f"run folder: {folder.path}", markup=False)


@app.command
def show(
    path: Annotated[Path, Parameter(help="a run folder or a memory file")],
    *,
    png: Annotated[Path | None, Parameter(help="draw the memory into this file")] = None,
    json: Json = False,
) -> None:
    """Tell what a run or a memory file holds and how large it is."""
    from ccmcl.files import check_writable
    from ccmcl.memory import Memory
    from ccmcl.memory_file import load_memory
    from ccmcl.pictures import draw_memory
    from ccmcl.running import size_of
    from ccmcl.store import RunFolder
    from ccmcl.terminal import contents, experiences, summary

    folder = RunFolder.existing(path) if path.is_dir() else None
    if folder is not None and not folder.finished:
        raise InputError(f"{path} is not finished; run the same experiment again to go on with it.")
    file = path if folder is None else folder.memory_file
    if folder is not None and not file.is_file():  # a method that keeps nothing, or everything
        memory, names = Memory(), tuple[str, ...]()
    else:
        memory, names = load_memory(file)
    if png is not None:
        check_writable(png.parent)
        draw_memory(memory, names, png)
    if json:
        print_json({"memory": size_of(memory), "names": names} if folder is None else _result(folder))
        return
    screen = console()
    if folder is not None:
        screen.print(experiences(folder))
        screen.print(summary(folder), markup=False)
    if memory or folder is None:
        screen.print(contents(memory, names))
    if png is not None:
        screen.print(f"picture: {png}", markup=False)


@app.command
def bench(
    *,
    case: Annotated[str, Parameter(help="what to measure, with commas")] = "mnist-20,cifar10-100",
    rounds: Annotated[int, Parameter(help="how often everything is measured", converter=whole)] = 5,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what each saving of the engine is worth on this machine."""
    from ccmcl.bench import bench as measure
    from ccmcl.running import machine, versions
    from ccmcl.terminal import bench_tables

    _set_threads(threads)
    report = reporter(quiet)
    results = [measure(name.strip(), rounds, report.line) for name in case.split(",")]
    if json:
        print_json({"results": [one.as_dict() for one in results], "machine": machine(), "versions": versions()})
        return
    screen = console()
    for one in results:
        for part in bench_tables(one):
            screen.print(part)


@app.command
def data(
    name: Annotated[str | None, Parameter(help="the data set to fetch; without it, all are listed")] = None,
    *,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List the data sets and where each was found, or fetch one."""
    from rich.table import Table
    from rich.text import Text

    from ccmcl import data as data_sets

    if name is not None:
        found = data_sets.load(name, data_dir, progress=sys.stderr.isatty() and not json)
        rows = [row for row in data_sets.status(data_dir) if row.name == name]
        if not rows:  # given by its path
            rows = [data_sets.status_of(found)]
    else:
        rows = data_sets.status(data_dir)
    if json:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    listing = Table()
    for column in ("data set", "pictures", "training", "test", "content", "where"):
        listing.add_column(column, justify="right" if column in ("training", "test") else "left", overflow="fold")
    for row in rows:
        channels, height, width = row.shape
        content = {True: "official", False: "not official", None: "" if row.found else "not here"}[row.official]
        listing.add_row(
            Text(printable(row.name)),
            f"{height}×{width} {'grey' if channels == 1 else 'colour'}",
            "" if row.train is None else f"{row.train:,}",
            "" if row.test is None else f"{row.test:,}",
            Text("unusable" if row.problem else content),
            Text(printable(row.problem or row.found or f"fetch it with: ccmcl data {row.name}")),
        )
    console().print(listing)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; every mistake a user can make ends in one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _stop(str(error).strip() or type(error).__name__, 2)
    except InputError as error:
        _stop(str(error), 2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except StorageError as error:
        _stop(str(error), 1)
    except OSError as error:
        _stop(f"{error.filename or 'A file'} cannot be used: {(error.strerror or str(error)).lower()}.", 2)
    except KeyboardInterrupt:
        _stop("Stopped; the same command goes on from the last checkpoint.", 130)


def _stop(message: str, code: int) -> None:
    print(f"ccmcl: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


def _set_threads(threads: int | None) -> None:
    import torch

    from ccmcl.system import keep_freed_memory

    keep_freed_memory()
    if (checked := checked_threads(threads)) is not None:
        torch.set_num_threads(checked)


def _result(folder: RunFolder) -> dict[str, Any]:
    return {"run": str(folder.path), **folder.result(), "cost": folder.cost()}


if __name__ == "__main__":
    main()
