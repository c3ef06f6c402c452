"""One folder a run: its settings, what happened, what came out, and while unfinished what it needs to go on."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ccmcl.condense import FORMING_IMAGES
from ccmcl.errors import InputError
from ccmcl.evaluate import Tally
from ccmcl.experiment import Experiment, from_dict
from ccmcl.files import read_json, storage_error, write_json
from ccmcl.locks import LOCK, LOOK_SECONDS
from ccmcl.loop import CPU, State, placed, prefixed, section
from ccmcl.memory import Memory
from ccmcl.memory_file import load_memory, pack, save_memory, unpack
from ccmcl.nets import Params
from ccmcl.plan import Learner
from ccmcl.records import CONFIG, COST, FAILED, RESULT, read_cost, read_experiment, read_result
from ccmcl.tensor_files import read_tensors, write_tensors


class Busy(InputError):  # noqa: N818
    """Another process is at work in the folder."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come: what goes on to the next experience, and the counts taken so far."""

    learner: Learner
    tallies: tuple[Tally, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """what each class was taken for after the last experience"""
    cost: tuple[tuple[str, float], ...] = ()


def same(settings: object, experiment: Experiment) -> bool:
    """Tell whether settings in a file are those of an experiment; what did not exist yet is at its default."""
    try:
        return isinstance(settings, dict) and from_dict(settings) == experiment
    except InputError:
        return False


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Every file in it is whole or absent, and ``result.json`` is written last.

    ``result.json`` holds only what the experiment decides, so that two runs of it can be compared byte by
    byte; what depends on the day and the machine is in ``cost.json``.
    """

    path: Path

    @staticmethod
    def of(out: Path | str, experiment: Experiment) -> RunFolder:
        """Name the folder of an experiment, whether it exists or not."""
        return RunFolder(Path(out) / experiment.name)

    @staticmethod
    def existing(path: Path | str) -> RunFolder:
        """Take up a folder that a run left."""
        folder = RunFolder(Path(path))
        if not folder.config_file.is_file():
            raise InputError(f"{path} is not a run: there is no config.json in it.")
        return folder

    @property
    def config_file(self) -> Path:
        """The settings, as JSON."""
        return self.path / CONFIG

    @property
    def result_file(self) -> Path:
        """The accuracies and the size of the memory; there when the run is finished."""
        return self.path / RESULT

    @property
    def memory_file(self) -> Path:
        """What the run remembers after its last experience."""
        return self.path / "memory.safetensors"

    @property
    def network_file(self) -> Path:
        """The network after the last experience."""
        return self.path / "network.safetensors"

    @property
    def forming_file(self) -> Path:
        """What the memory of each class looked like at a few moments, where it was learned."""
        return self.path / "forming.safetensors"

    @property
    def resume(self) -> Path:
        """What an unfinished run needs to go on."""
        return self.path / "resume"

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result_file.is_file()

    def experiment(self) -> Experiment:
        """Read the settings."""
        return read_experiment(self.path)

    def result(self) -> dict[str, Any]:
        """Read what came out."""
        return read_result(self.path)

    def cost(self) -> dict[str, Any]:
        """Read what it took."""
        return read_cost(self.path)

    def memory(self) -> tuple[Memory, tuple[str, ...]]:
        """Read the memory and the names of its classes."""
        return load_memory(self.memory_file)

    def open(self, experiment: Experiment, fingerprint: str) -> None:
        """Make the folder, or make sure that the one there is of the same experiment on the same data."""
        settings = {"experiment": experiment.as_dict(), "data": fingerprint}
        if self.config_file.is_file():
            there = read_json(self.config_file)
            if not isinstance(there, dict) or not same(there.get("experiment"), experiment):
                raise InputError(f"{self.path} holds another experiment; choose another place with --out.")
            if there.get("data") != fingerprint:
                raise InputError(
                    f"The data of {experiment.dataset!r} have changed since the run in {self.path} was made; "
                    "remove that folder, or choose another place with --out."
                )
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(self.path, error) from error
        write_json(self.config_file, settings)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of an unfinished run; the lock goes with the process that held it."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=LOOK_SECONDS)
        except Timeout:
            raise Busy(f"{self.path} is being worked on by another process.") from None
        except OSError as error:
            raise storage_error(self.path / LOCK, error) from error
        try:
            yield
        finally:
            lock.release()

    def event(self, kind: str, **details: object) -> None:
        """Add a line to the record of what happened; a line cut off by a crash is dropped first."""
        path = self.path / "events.jsonl"
        line = json.dumps({"event": kind, "time": round(time.time(), 3), **details}) + "\n"
        try:
            with path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":
                        file.truncate(path.read_bytes().rfind(b"\n") + 1)
                file.write(line.encode())
        except OSError as error:
            raise storage_error(path, error) from error

    def save_job(self, name: str, state: State, cost: dict[str, float]) -> None:
        """Keep how far a piece of work has come, and what the run has cost until then."""
        write_tensors(self._job(name), placed(state, CPU), {"job": name, "cost": cost})

    def load_job(self, name: str) -> tuple[State, dict[str, float]] | None:
        """Take up a piece of work; a damaged checkpoint is as good as none."""
        try:
            state, about = read_tensors(self._job(name))
        except InputError:
            return None
        whole = (
            about.get("job") == name and isinstance(about.get("cost"), dict) and {"step", "generator"} <= state.keys()
        )
        return (state, about["cost"]) if whole else None

    def save_forming(self, name: str, images: dict[str, Tensor]) -> None:
        """Keep what a memory looked like while it formed, by the steps done; the name is that of the work."""
        write_tensors(self.resume / f"forming-{name.replace(' ', '-')}.safetensors", images, {"job": name})

    def forming(self) -> dict[tuple[int, int], dict[int, Tensor]]:
        """Read how the memories formed: by experience and class, then by the steps done, in eight bits."""
        if not self.forming_file.is_file():
            return {}
        found: dict[tuple[int, int], dict[int, Tensor]] = {}
        for name, images in read_tensors(self.forming_file)[0].items():
            try:
                experience, label, done = map(int, name.split("-"))
            except ValueError:
                raise InputError(f"{self.forming_file} does not hold how memories formed.") from None
            if images.dtype != torch.uint8 or images.dim() != 4 or not 1 <= len(images) <= FORMING_IMAGES:
                raise InputError(f"{self.forming_file} does not hold how memories formed.")
            found.setdefault((experience, label), {})[done] = images
        return {key: dict(sorted(found[key].items())) for key in sorted(found)}

    def _gather_forming(self) -> None:
        gathered: dict[str, Tensor] = {}
        for path in self.resume.glob("forming-*.safetensors"):
            try:
                images, about = read_tensors(path)
            except InputError:
                continue  # a picture of how it went is not worth a result
            where = str(about.get("job", "")).rpartition(" ")[2]
            gathered |= {f"{where}-{done}": tensor for done, tensor in images.items()}
        if gathered:
            write_tensors(self.forming_file, gathered, {})

    def begin_code(self, code: str) -> None:
        """Take note of what the run computes by compiled code, so that it goes on as it was begun."""
        write_json(self.resume / "engine.json", {"code": code})

    def begun_code(self) -> str | None:
        """Tell what the run was begun with; None where it was not begun."""
        path = self.resume / "engine.json"
        values = read_json(path) if path.is_file() else {}
        code = values.get("code") if isinstance(values, dict) else None
        return code if isinstance(code, str) else None

    def save_progress(self, progress: Progress, keep_memory: bool) -> None:
        """Keep what an experience ended with, in one file and one stroke; then forget the work it was made of."""
        tensors, about = pack(progress.learner.memory if keep_memory else Memory())
        params = prefixed("params", progress.learner.params or {})
        write_tensors(
            self.resume / "progress.safetensors",
            {**prefixed("memory", tensors), **params, "confusion": torch.tensor(progress.confusion)},
            {"memory": about, "tallies": progress.tallies, "cost": progress.cost},
        )
        for job in self.resume.glob("job-*.safetensors"):
            job.unlink(missing_ok=True)

    def load_progress(self) -> Progress:
        """Take up a run after its last whole experience; nothing yet is a beginning."""
        path = self.resume / "progress.safetensors"
        if not path.is_file():
            return Progress(Learner(Memory()))
        tensors, about = read_tensors(path)
        try:
            memory, _ = unpack(section(tensors, "memory"), dict(about["memory"]), str(path))
            cost = tuple((str(kind), float(seconds)) for kind, seconds in about["cost"])
            confusion = tuple(tuple(row) for row in tensors["confusion"].tolist())
            return Progress(Learner(memory, section(tensors, "params")), tuple(about["tallies"]), confusion, cost)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}); remove that folder to start the run again.") from error

    def finish(
        self,
        memory: Memory | None,
        names: tuple[str, ...],
        params: Params,
        result: dict[str, Any],
        cost: dict[str, Any],
    ) -> None:
        """Write what came out, the result last, and clear away what only an unfinished run needs."""
        if memory is not None:
            save_memory(memory, self.memory_file, names)
        self._gather_forming()
        write_tensors(self.network_file, params, {"names": names})
        write_json(self.path / COST, cost)
        write_json(self.result_file, result)
        self.clear()

    def clear(self) -> None:
        """Remove what a finished run no longer needs."""
        shutil.rmtree(self.resume, ignore_errors=True)
        (self.path / FAILED).unlink(missing_ok=True)
        for left in self.path.glob(".*.tmp"):
            left.unlink(missing_ok=True)

    def _job(self, name: str) -> Path:
        return self.resume / f"job-{name.replace(' ', '-')}.safetensors"
