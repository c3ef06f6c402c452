"""Processes that do jobs of a run side by side. All they share with the run is its folder."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ccmcl.errors import StorageError

MOST_DEATHS = 3
LOST = "Its process keeps dying; is there enough memory?"
Heard = Callable[[dict[str, Any]], None]


class WorkerError(StorageError):
    """A worker could not do its job."""


@runtime_checkable
class Crew(Protocol):
    """Does jobs of a run side by side and leaves their last states in its folder."""

    def __call__(self, jobs: Iterable[dict[str, Any]], heard: Heard) -> None:
        """Have the jobs done; ``heard`` gets what is said of them meanwhile."""
        ...

    def stop(self) -> None:
        """Have the jobs stopped, each kept as it is where that can be; then the call above returns."""
        ...

    def close(self) -> None:
        """Let go of whatever does the jobs."""
        ...


@dataclass
class Workers:
    """Some processes, started when first needed, that are told about the run once and then handed names of jobs.

    A worker makes its job from the run's folder and leaves its checkpoints there, so nothing but names and counts
    goes through the pipes. A worker that dies is started again and goes on from the last checkpoint; when this
    process ends, however it ends, the workers end with it.
    """

    count: int
    about: dict[str, Any]
    module: str = "ccmcl.worker"
    forgiving: bool = False
    """go on without a job whose worker keeps dying"""
    stopping: bool = False
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    said: queue.Queue[tuple[int, dict[str, Any] | None]] = field(default_factory=queue.Queue)

    def __call__(self, jobs: Iterable[dict[str, Any]], heard: Heard) -> None:
        """Have the jobs done; ``heard`` gets what the workers say of them."""
        waiting, doing, deaths = list(jobs), dict[int, dict[str, Any]](), Counter[str]()
        while len(self.running) < min(self.count, len(waiting)):
            self.running.append(self._started(len(self.running)))
        for place in range(len(self.running)):
            if waiting and not self.stopping:
                doing[place] = self._hand(place, waiting.pop(0))
        while doing:
            place, words = self.said.get()
            if words is None:
                self._buried(self.running[place])
                if not self.stopping:
                    self.running[place] = self._started(place)
                if place not in doing:
                    continue
                deaths[name := doing[place]["name"]] += 1
                if self.stopping:
                    words = {"done": name, "outcome": "stopped"}
                elif deaths[name] <= MOST_DEATHS:
                    self._hand(place, doing[place])
                    continue
                elif self.forgiving:
                    words = {"done": name, "outcome": "failed", "reason": LOST, "lost": True}
                else:
                    raise WorkerError("The worker processes keep dying; is there enough memory? Try --workers 1.")
            if words.get("storage"):
                raise StorageError(words["error"])
            if "error" in words:
                raise WorkerError(f"A worker failed: {words['error']}")
            heard(words)
            if "done" in words:
                del doing[place]
                if waiting and not self.stopping:
                    doing[place] = self._hand(place, waiting.pop(0))

    def stop(self) -> None:
        """Ask the workers to stop what they do, and hand out nothing more."""
        self.stopping = True
        for process in self.running:
            self._tell(process, {"stop": True})

    def close(self) -> None:
        """Let the workers go."""
        for process in self.running:
            self._buried(process)
        self.running.clear()

    @staticmethod
    def _buried(process: subprocess.Popen[str]) -> None:
        """Wait for the end of a process that was told to go, or is dead already."""
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()

    def _started(self, place: int) -> subprocess.Popen[str]:
        # Threads are counted by the worker itself; what the environment says was meant for one process.
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", self.module],  # what lies in the current folder is not ours to run
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": str(self.about["threads"])},
            process_group=0,  # the keyboard speaks to this process, which decides for the others
        )
        self._tell(process, self.about)
        if self.stopping:
            self._tell(process, {"stop": True})
        threading.Thread(target=self._listen, args=(place, process), daemon=True).start()
        return process

    def _listen(self, place: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as stream:
                for line in stream:
                    self.said.put((place, json.loads(line)))
        except ValueError:  # a line cut off: it was killed
            pass
        finally:
            self.said.put((place, None))

    def _hand(self, place: int, job: dict[str, Any]) -> dict[str, Any]:
        self._tell(self.running[place], job)
        return job

    @staticmethod
    def _tell(process: subprocess.Popen[str], words: dict[str, Any]) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it is dead, and the listener says so, or it was let go
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
