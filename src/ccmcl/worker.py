"""One worker process: reads names of jobs on standard input, does them from the run's folder, says how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Hand:
    """Does jobs of one run, made from its folder; ``about`` is what the run says of itself."""

    def __init__(self, about: dict[str, Any], say: Say) -> None:
        torch.set_num_threads(about["threads"])
        self.folder, self.every, self.say = RunFolder.existing(about["folder"]), about["every"], say
        self.experiment = self.folder.experiment()
        data = load(self.experiment.dataset, about["data_dir"] and Path(about["data_dir"]))
        self.stream, _, plan = arrange(self.experiment, data)
        self.plan = Settled(about["compiled"], about["device"], 1).equip(plan)

    def __call__(self, task: dict[str, Any]) -> None:
        """Do one job; its last state is in the folder then."""
        progress, stream = self.folder.load_progress(), self.stream
        jobs = condensers(self.plan, progress.learner, stream[len(progress.tallies)], self.experiment.method)
        seconds = dict(task["seconds"])
        keeper = Keeper(self.folder, Saying(self.say), self.every, stream.names, len(stream), seconds)
        keeper({task["name"]: jobs[task["name"]]})


def main() -> None:
    """Do jobs until standard input ends."""
    say, heard = opened()
    about = heard.get()
    try:
        do = Hand(about, say)
        while True:
            task = heard.get()
            do(task)
            say(done=task["name"])
    except (InputError, OSError, RuntimeError) as error:
        say(error=" ".join(str(error).split()))


if __name__ == "__main__":
    main()
