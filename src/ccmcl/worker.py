"""One worker process: reads names of jobs on standard input, does them from the run's folder, says how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ccmcl.compute import Settled
from ccmcl.condensing import condensers, courses, leading
from ccmcl.data import load
from ccmcl.errors import InputError, StorageError
from ccmcl.loop import Job, placed
from ccmcl.pipes import Say, opened
from ccmcl.plan import Learner
from ccmcl.progress import Silent
from ccmcl.running import Keeper, Stopped, arrange
from ccmcl.store import RunFolder
from ccmcl.stream import Experience


@dataclass
class Saying(Silent):
    """A reporter that says every step."""

    say: Say

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Say how far a job is."""
        self.say(name=name, about=about, step=done, total=total, loss=loss)


class Hand:
    """Does jobs of one run, made from its folder; ``about`` is what the run says of itself."""

    def __init__(self, about: dict[str, Any], say: Say, stop: Callable[[], bool] = lambda: False) -> None:
        torch.set_num_threads(about["threads"])
        self.folder, self.every = RunFolder.existing(about["folder"]), about["every"]
        self.say, self.stop = say, stop
        self.experiment = self.folder.experiment()
        data = load(self.experiment.dataset, about["data_dir"] and Path(about["data_dir"]))
        self.stream, _, plan = arrange(self.experiment, data)
        self.plan = Settled(about["code"], about["device"], 1).equip(plan)

    def __call__(self, task: dict[str, Any]) -> None:
        """Do one job; its last state is in the folder then. Told to stop, it keeps where it is and is ``Stopped``."""
        progress, stream = self.folder.load_progress(), self.stream
        jobs = self._jobs(task["name"], progress.learner, stream[len(progress.tallies)])
        seconds = dict(task["seconds"])
        keeper = Keeper(self.folder, Saying(self.say), self.every, stream.names, len(stream), seconds)
        keeper.stop = self.stop
        keeper({task["name"]: jobs[task["name"]]})

    def _jobs(self, name: str, learner: Learner, experience: Experience) -> Mapping[str, Job]:
        """Make the jobs of an experience that are of one kind with this one."""
        method = self.experiment.method
        training = leading(self.plan, learner, experience)
        if name in training or not training:
            return training or condensers(self.plan, learner, experience, method, only=name)
        states = {}
        for one in training:
            kept = self.folder.load_job(one)
            if kept is None:
                raise InputError(f"{self.folder.path} is damaged: the networks of this experience are missing.")
            states[one] = placed(kept[0], self.plan.device)
        return condensers(self.plan, learner, experience, method, courses(training, states, self.plan), name)


def main() -> None:
    """Do jobs until standard input ends."""
    stop = threading.Event()
    say, heard = opened(stop)
    about = heard.get()
    try:
        do = Hand(about, say, stop.is_set)
        while True:
            task = heard.get()
            with suppress(Stopped):
                do(task)
            say(done=task["name"])
    except (InputError, OSError, RuntimeError) as error:
        say(error=" ".join(str(error).split()), storage=isinstance(error, StorageError))


if __name__ == "__main__":
    main()
