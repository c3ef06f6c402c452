"""The command line: run, compare, show, bench, data."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import torch
from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ccmcl import data as data_sets
from ccmcl._version import __version__
from ccmcl.bench import CASES
from ccmcl.bench import bench as measure
from ccmcl.compute import Compute
from ccmcl.errors import InputError, StorageError, printable
from ccmcl.experiment import Experiment
from ccmcl.memory import Memory
from ccmcl.memory_file import load_memory
from ccmcl.methods import METHODS
from ccmcl.pictures import draw_memory
from ccmcl.progress import reporter
from ccmcl.report import bench_tables, contents, experiences, summary, table
from ccmcl.run import arrange, machine, shape, size_of, versions
from ccmcl.run import run as run_experiment
from ccmcl.store import RunFolder, check_writable
from ccmcl.system import keep_freed_memory

MOST_THREADS = 1024

app = App(
    name="ccmcl",
    help="Continual learning with a memory that fits in kilobytes.",
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


def _whole(_: object, tokens: Sequence[Any]) -> int:
    """Read a whole number as it is written; 1.5 is not one."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


def _given() -> Any:
    """Make the command line's view of Experiment: the same fields and help, each one optional."""
    entries: list[tuple[str, Any, Any]] = []
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    for field in dataclasses.fields(Experiment):
        preset = field.default is dataclasses.MISSING
        about = field.metadata["help"] + (" (default: by preset)" if preset else f" (default: {field.default})")
        convert = _whole if field.type == "int" else None
        kind: Any = Annotated[
            kinds[str(field.type)] | None, Parameter(help=about, show_default=False, converter=convert)
        ]
        entries.append((field.name, kind, dataclasses.field(default=None)))
    own = {"__module__": __name__}  # a class of no module's is not unfolded into options
    return dataclasses.make_dataclass("Given", entries, namespace=own, frozen=True, kw_only=True)


if TYPE_CHECKING:
    Settings: TypeAlias = Any
else:
    Settings = Annotated[_given() | None, Parameter(name="*")]
Out = Annotated[Path, Parameter(help="folder of all runs")]
DataDir = Annotated[Path | None, Parameter(help="where the data sets are (default: $CCMCL_DATA, or your cache)")]
Threads = Annotated[int | None, Parameter(help="threads to compute with (default: all cores)")]
Compile = Annotated[str, Parameter(help="compute with compiled code: auto (when it pays), on or off")]
Device = Annotated[str, Parameter(help="where to compute: auto, cpu, cuda or mps")]
NumWorkers = Annotated[
    int | None, Parameter(help="processes that condense classes side by side (default: by the work)")
]
Every = Annotated[float, Parameter(help="seconds between two checkpoints", show=False)]


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
    json: Annotated[bool, Parameter(help="print the result as JSON on standard output, and nothing else")] = False,
    quiet: Annotated[bool, Parameter(help="show no progress")] = False,
    checkpoint_seconds: Every = 15.0,
) -> None:
    """Learn one stream with one method, or go on with a run that was interrupted."""
    _set_threads(threads)
    experiment = Experiment.of(data_dir, **_values(settings))
    folder = run_experiment(
        experiment, out, data_dir, reporter(quiet), checkpoint_seconds, Compute(compile, device, workers)
    )
    if json:
        _print_json(_result(folder))
        return
    console = _console()
    console.print(experiences(folder))
    console.print(summary(folder), markup=False)
    console.print(f"run folder: {folder.path}", markup=False)


@app.command
def compare(
    *,
    settings: Settings = None,
    methods: Annotated[str, Parameter(help="methods to compare, with commas")] = ",".join(METHODS),
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    threads: Threads = None,
    workers: NumWorkers = None,
    compile: Compile = "auto",
    device: Device = "auto",
    pictures: Annotated[Path | None, Parameter(help="folder for pictures of the memories")] = None,
    json: Annotated[bool, Parameter(help="print the results as JSON on standard output, and nothing else")] = False,
    quiet: Annotated[bool, Parameter(help="show no progress")] = False,
    checkpoint_seconds: Every = 15.0,
) -> None:
    """Learn one stream with several methods at one budget, and set them side by side."""
    _set_threads(threads)
    values = _values(settings)
    if "method" in values:
        raise InputError("compare takes several methods: give them as --methods, with commas.")
    asked = [Experiment.of(data_dir, **values, method=name.strip()) for name in methods.split(",")]
    report, compute = reporter(quiet), Compute(compile, device, workers)
    for one in asked:  # a budget that one method cannot keep is said before any work is done
        arrange(one, data_sets.load(one.dataset, data_dir, progress=not quiet))
    folders = [run_experiment(one, out, data_dir, report, checkpoint_seconds, compute) for one in asked]
    drawn = []
    for folder in folders:
        if pictures is not None and folder.memory_file.is_file():
            drawn.append(pictures / f"{folder.experiment().method}.png")
            draw_memory(*folder.memory(), drawn[-1])
    if json:
        _print_json([_result(folder) for folder in folders])
        return
    first = asked[0]
    console = _console()
    console.print(table(folders, f"{first.dataset}, budget {first.budget}, preset {first.preset}, seed {first.seed}"))
    console.print(f"run folders: {out}", markup=False)
    if drawn:
        console.print(f"memory pictures: {', '.join(map(str, drawn))}", markup=False)


@app.command
def show(
    path: Annotated[Path, Parameter(help="a run folder or a memory file")],
    *,
    png: Annotated[Path | None, Parameter(help="draw the memory into this file")] = None,
    json: Annotated[bool, Parameter(help="print JSON on standard output, and nothing else")] = False,
) -> None:
    """Tell what a run or a memory file holds and how large it is."""
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
        _print_json({"memory": size_of(memory), "names": names} if folder is None else _result(folder))
        return
    console = _console()
    if folder is not None:
        console.print(experiences(folder))
        console.print(summary(folder), markup=False)
    if memory or folder is None:
        console.print(contents(memory, names))
    if png is not None:
        console.print(f"picture: {png}", markup=False)


@app.command
def bench(
    *,
    case: Annotated[str, Parameter(help=f"what to measure, with commas: {', '.join(CASES)}")] = "mnist-20,cifar10-100",
    rounds: Annotated[int, Parameter(help="how often everything is measured", converter=_whole)] = 5,
    threads: Threads = None,
    json: Annotated[bool, Parameter(help="print JSON on standard output, and nothing else")] = False,
    quiet: Annotated[bool, Parameter(help="show no progress")] = False,
) -> None:
    """Measure what each saving of the engine is worth on this machine."""
    _set_threads(threads)
    report = reporter(quiet)
    results = [measure(name.strip(), rounds, report.line) for name in case.split(",")]
    if json:
        _print_json({"results": [one.as_dict() for one in results], "machine": machine(), "versions": versions()})
        return
    console = _console()
    for one in results:
        for part in bench_tables(one):
            console.print(part)


@app.command
def data(
    name: Annotated[str | None, Parameter(help="the data set to fetch; without it, all are listed")] = None,
    *,
    data_dir: DataDir = None,
    json: Annotated[bool, Parameter(help="print JSON on standard output, and nothing else")] = False,
) -> None:
    """List the data sets and where each was found, or fetch one."""
    if name is not None:
        found = data_sets.load(name, data_dir, progress=sys.stderr.isatty() and not json)
        rows = [row for row in data_sets.status(data_dir) if row.name == name]
        if not rows:  # a user's own
            train = found.train
            rows = [data_sets.Status(found.name, shape(found), found.source, None, len(train), len(found.test))]
    else:
        rows = data_sets.status(data_dir)
    if json:
        _print_json([dataclasses.asdict(row) for row in rows])
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
    _console().print(listing)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; every mistake a user can make ends in one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    keep_freed_memory()
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


def _values(settings: Any) -> dict[str, Any]:
    return {} if settings is None else {k: v for k, v in vars(settings).items() if v is not None}


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise InputError(f"The number of threads must be from 1 to {MOST_THREADS}, not {threads}.")
        torch.set_num_threads(threads)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def _result(folder: RunFolder) -> dict[str, Any]:
    return {"run": str(folder.path), **folder.result(), "cost": folder.cost()}


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
