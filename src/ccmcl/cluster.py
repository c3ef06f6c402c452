"""The engine of a sweep that hands its runs to a Ray cluster (the extra ``ccmcl[ray]``)."""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock
from ray.exceptions import RayError, RayTaskError

from ccmcl.errors import InputError, StorageError
from ccmcl.experiment import Experiment
from ccmcl.files import write, write_json
from ccmcl.locks import LOCK, claimed
from ccmcl.records import FAILED, RESULT
from ccmcl.tasks import MOST_DEATHS, Desk, Files, do_run, packed, unpacked
from ccmcl.workers import LOST


def check_address(address: str) -> None:
    """Find out at once whether anything answers there; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"There is no Ray cluster at {address} ({error}).") from error


@dataclass
class Cluster:
    """An engine that hands runs to a Ray cluster: one that is there, by its address, or one started here."""

    out: Path
    address: str | None = None
    threads: int = 1
    """of each run"""
    cores: int | None = None
    """of a cluster started here"""
    workers: int | None = None
    """runs at a time at most; None for as many as there is room for"""
    data_dir: Path | None = None
    compile: str = "auto"
    device: str = "auto"
    every: float = 15.0
    tensorboard: bool = False
    stopping: bool = False
    desk: Any = field(default=None, repr=False)

    def __call__(self, experiments: Sequence[Experiment], hear: Callable[[dict[str, Any]], None]) -> None:
        """Do experiments, as many at a time as the cluster has room for."""
        mark = f".sweep-{secrets.token_hex(8)}"
        write(self.out / mark, b"")
        try:
            with self._joined():
                self._through(experiments, mark, hear)
        finally:
            (self.out / mark).unlink(missing_ok=True)
            self.desk = None

    def stop(self) -> None:
        """Have every run stop at its next word to the desk, kept where the folder is shared."""
        self.stopping = True
        if self.desk is not None:
            self.desk.stop.remote()

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Join the cluster, or start one that only this machine can reach."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "ignore_reinit_error": True}
        was_there = ray.is_initialized()
        if self.address is not None:
            check_address(self.address)
            try:
                ray.init(address=self.address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(f"There is no Ray cluster at {self.address} ({error}).") from error
        elif not was_there:
            ray.init(
                address="local", num_cpus=self.cores, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet
            )
        try:
            yield
        finally:
            if not was_there:
                ray.shutdown()

    def _through(self, experiments: Sequence[Experiment], mark: str, hear: Callable[[dict[str, Any]], None]) -> None:
        near = {"resources": {"node:__internal_head__": 0.001}}
        self.desk = ray.remote(Desk).options(num_cpus=0, max_restarts=-1, **near).remote()
        if self.stopping:
            self.desk.stop.remote()
        waiting, deaths = list(experiments), Counter[str]()
        room = max(1, int(ray.cluster_resources().get("CPU", 1)) // self.threads)  # type: ignore[no-untyped-call]
        gpus = int(self.device == "cuda")
        apart = not gpus and room > len(experiments)  # a run that waits for its classes keeps its GPU
        most = 2 * room if self.workers is None else self.workers  # some wait in the queue, so that no place is free
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        largest = max(node.get("CPU", 0) for node in nodes)
        if largest < self.threads:
            raise InputError(f"A run asks for {self.threads} CPUs; no node has more than {largest:g}: give --threads.")
        about = {
            "out": str(self.out.resolve()),
            "mark": mark,
            "data_dir": None if self.data_dir is None else str(self.data_dir.resolve()),
            "compile": self.compile,
            "device": self.device,
            "every": self.every,
            "threads": self.threads,
            "tensorboard": self.tensorboard,
            "claimed": True,
            "apart": apart,
            "workers": 1024 if apart else None,
            "cwd": str(Path.cwd()),
        }
        remote = ray.remote(do_run).options(num_cpus=self.threads, num_gpus=gpus, max_retries=0)
        doing: dict[Any, Experiment] = {}
        claims: dict[str, FileLock] = {}
        while doing or (waiting and not self.stopping):
            while waiting and len(doing) < most and not self.stopping:
                one = waiting.pop(0)
                if one.name not in claims and not self._claim(one, claims):
                    hear({"done": one.name, "outcome": "busy"})
                    continue
                begun = packed(place) if (place := self.out / one.name).is_dir() else None
                doing[remote.remote(one.as_dict(), about, self.desk, begun)] = one
            ready, _ = ray.wait(list(doing), num_returns=1, timeout=0.3)
            with suppress(RayError):
                for words in ray.get(self.desk.heard.remote(), timeout=5):
                    hear(words)
            for reference in ready:
                one = doing.pop(reference)
                try:
                    said = ray.get(reference)
                except RayTaskError as error:
                    said = self._failed(one, f"{type(error.cause).__name__}: {error.cause}")
                except RayError:
                    deaths[one.name] += 1
                    if deaths[one.name] <= MOST_DEATHS:
                        waiting.insert(0, one)
                        continue
                    said = self._failed(one, LOST)
                try:
                    self._take(one, said.pop("files", None))
                except StorageError as error:
                    said = {"done": one.name, "outcome": "failed", "reason": str(error)}
                claims.pop(one.name).release()
                hear(said)

    def _claim(self, one: Experiment, claims: dict[str, FileLock]) -> bool:
        """Make a run ours, unless another sweep has it or has just done it."""
        lock = claimed(self.out / one.name)
        if lock is None:
            return False
        if (self.out / one.name / RESULT).is_file():
            lock.release()
            return False
        claims[one.name] = lock
        return True

    def _failed(self, one: Experiment, reason: str) -> dict[str, Any]:
        with suppress(StorageError):
            write_json(self.out / one.name / FAILED, {"reason": reason, "trace": ""})
        return {"done": one.name, "outcome": "failed", "reason": reason}

    def _take(self, one: Experiment, files: Files | None) -> None:
        """Put a run that was done elsewhere into the folder."""
        place = self.out / one.name
        if not files or (place / RESULT).is_file():
            return
        with FileLock(place / LOCK):
            unpacked(files, place)
            if RESULT in files:
                shutil.rmtree(place / "resume", ignore_errors=True)
