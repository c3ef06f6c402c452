"""A process that does whole runs for a sweep: ``python -m ccmcl.runner``, at the far end of ``workers``."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ccmcl.compute import Compute
from ccmcl.errors import InputError, StorageError
from ccmcl.experiment import Experiment, from_dict
from ccmcl.files import write_json
from ccmcl.pipes import Say, opened
from ccmcl.progress import Reporter, Silent
from ccmcl.records import FAILED, read_failure
from ccmcl.running import Stopped, run
from ccmcl.store import Busy, RunFolder
from ccmcl.workers import Crew, WorkerError, Workers

TELL_SECONDS = 0.2


@dataclass
class Telling(Silent):
    """A reporter that says how far a run is, now and then."""

    say: Say
    run: str
    told: float = 0.0

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:  # noqa: ARG002
        """Say where the run is."""
        if time.monotonic() - self.told >= TELL_SECONDS:
            self.say(run=self.run, about=about, step=done, total=total)
            self.told = time.monotonic()


def attempt(
    experiment: Experiment,
    about: dict[str, Any],
    reporter: Reporter,
    stop: Callable[[], bool],
    crew: Callable[[int, dict[str, Any]], Crew] = Workers,
) -> dict[str, str]:
    """Do one run, and say how it went: whatever goes wrong with it is a reason, and the next is not in danger."""
    out, data_dir = Path(about["out"]), about["data_dir"] and Path(about["data_dir"])
    place, curves = RunFolder.of(out, experiment), None
    if (reason := read_failure(place.path)) is not None:  # in another sweep on the same folder
        return {"outcome": "failed", "reason": reason}
    try:
        if about.get("tensorboard"):
            from ccmcl.tensorboard import Curves

            reporter = curves = Curves(reporter, place.path)
        compute = Compute(about["compile"], about["device"], about.get("workers"))
        claimed = bool(about.get("claimed"))
        run(experiment, out, data_dir, reporter, about["every"], compute, stop, crew, claimed)
        if curves is not None:
            curves.conclude(place)
    except Busy:
        return {"outcome": "busy"}
    except Stopped:
        return {"outcome": "stopped"}
    except Exception as error:
        if isinstance(error, StorageError) and not isinstance(error, WorkerError):  # the fault of the disk
            return {"outcome": "failed", "reason": str(error)}
        foreseen = isinstance(error, InputError)
        reason = str(error) if foreseen else f"{type(error).__name__}: {error}"
        trace = "" if foreseen else traceback.format_exc()
        with suppress(StorageError):
            write_json(place.path / FAILED, {"reason": reason, "trace": trace})
        return {"outcome": "failed", "reason": reason}
    return {"outcome": "finished"}


def main() -> None:
    """Do runs until standard input ends."""
    stop = threading.Event()
    say, heard = opened(stop)
    about = heard.get()
    torch.set_num_threads(about["threads"])
    while True:
        task = heard.get()
        name = task["name"]
        if stop.is_set():
            said = {"outcome": "stopped"}
        else:
            say(run=name, about="begins", step=0, total=1)
            said = attempt(from_dict(task["experiment"]), about, Telling(say, name), stop.is_set)
        say(done=name, **said)


if __name__ == "__main__":
    main()
