"""One worker process: reads names of jobs on standard input, does them from the run's folder, says how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ccmcl.compute import Settled
from ccmcl.data import load
from ccmcl.errors import InputError
from ccmcl.methods import condensers
from ccmcl.pipes import Say, opened
from ccmcl.progress import Silent
from ccmcl.running import Keeper, arrange
from ccmcl.store import RunFolder


@dataclass
class Saying(Silent):
    """A reporter that says every step."""

    say: Say

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Say how far a job is."""
        self.say(name=name, about=about, step=done, total=total, loss=loss)


def main() -> None:
    """Do jobs until standard input ends."""
    say, heard = opened()
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
            keeper = Keeper(folder, Saying(say), about["every"], stream.names, len(stream), dict(task["seconds"]))
            keeper({task["name"]: jobs[task["name"]]})
            say(done=task["name"])
    except (InputError, OSError, RuntimeError) as error:
        say(error=" ".join(str(error).split()))


if __name__ == "__main__":
    main()
