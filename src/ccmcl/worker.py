"""One worker process: reads names of jobs on standard input, does them from the run's folder, says how far it is."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import torch

from ccmcl.compute import Settled
from ccmcl.data import load
from ccmcl.errors import InputError
from ccmcl.methods import condensers
from ccmcl.run import Keeper, arrange
from ccmcl.store import RunFolder
from ccmcl.system import keep_freed_memory


class Mouth:
    """A reporter that says every step as a line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def say(self, **words: object) -> None:
        """Write a line."""
        print(json.dumps(words), file=self.stream, flush=True)

    def begin(self, title: str, steps: object) -> None:  # noqa: D102
        pass

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Say how far a job is."""
        self.say(name=name, about=about, step=done, total=total, loss=loss)

    def line(self, text: str) -> None:  # noqa: D102
        pass

    def end(self) -> None:  # noqa: D102
        pass


def listen(stream: TextIO) -> queue.Queue[dict[str, Any]]:
    """Read lines in the background, and end the process at once when the one that writes them is gone."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in stream:
            heard.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return heard


def main() -> None:
    """Do jobs until standard input ends."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run that started us decides
    keep_freed_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed must not get between the lines
    mouth, heard = Mouth(out), listen(sys.stdin)
    about = heard.get()
    torch.set_num_threads(about["threads"])
    try:
        folder = RunFolder.existing(about["folder"])
        experiment = folder.experiment()
        stream, _, plan = arrange(experiment, load(experiment.dataset, about["data_dir"] and Path(about["data_dir"])))
        plan = Settled(about["compiled"], about["device"], 1).equip(plan)
        while True:
            task = heard.get()
            progress = folder.load_progress()
            jobs = condensers(plan, progress.learner, stream[len(progress.tallies)], experiment.method)
            keeper = Keeper(folder, mouth, about["every"], stream.names, len(stream), dict(task["seconds"]))
            keeper({task["name"]: jobs[task["name"]]})
            mouth.say(done=task["name"])
    except (InputError, OSError, RuntimeError) as error:
        mouth.say(error=" ".join(str(error).split()))


if __name__ == "__main__":
    main()
