"""Runs of a sweep in processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ccmcl.errors import StorageError
from ccmcl.experiment import Experiment
from ccmcl.files import write_json
from ccmcl.records import FAILED
from ccmcl.workers import Workers


@dataclass
class Local:
    """An engine of so many processes, each with its share of the threads. One that dies is started again."""

    workers: int
    out: Path
    threads: int = 1
    """of each process"""
    data_dir: Path | None = None
    compile: str = "auto"
    device: str = "auto"
    every: float = 15.0
    tensorboard: bool = False
    stopping: bool = False
    pool: Workers | None = field(default=None, repr=False)

    def __call__(self, experiments: Sequence[Experiment], hear: Callable[[dict[str, Any]], None]) -> None:
        """Do experiments, as many at a time as there are processes."""
        about = {
            "out": str(self.out),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "compile": self.compile,
            "device": self.device,
            "every": self.every,
            "threads": self.threads,
            "tensorboard": self.tensorboard,
        }

        def note(words: dict[str, Any]) -> None:
            if words.get("lost"):
                with suppress(StorageError):
                    write_json(self.out / words["done"] / FAILED, {"reason": words["reason"], "trace": ""})
            hear(words)

        if self.stopping:
            return
        self.pool = Workers(self.workers, about, "ccmcl.runner", forgiving=True)
        try:
            self.pool([{"name": one.name, "experiment": one.as_dict()} for one in experiments], note)
        finally:
            self.pool.close()

    def stop(self) -> None:
        """Have every run stop at its next step, kept; nothing more is begun."""
        self.stopping = True
        if self.pool is not None:
            self.pool.stop()
