"""What a node of a Ray cluster does for a sweep: a run as a task, or one class of it; and how a run's files travel."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, chdir, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ccmcl.errors import InputError
from ccmcl.experiment import from_dict
from ccmcl.files import write
from ccmcl.workers import Crew, Workers

MOST_DEATHS = 5
"""Times that a run is begun again after its process or its node died."""
TELL_SECONDS = 0.5
Files = dict[str, bytes]
KEPT = (
    "config.json",
    "events.jsonl",
    "resume/*.json",
    "resume/*.safetensors",
    "*.safetensors",
    "*.json",
    "tensorboard/*",
)


@dataclass
class Desk:
    """Where tasks say how far they are, and are told whether to stop: an actor beside the driver."""

    words: list[dict[str, Any]] = field(default_factory=list)
    stopping: bool = False

    def tell(self, words: dict[str, Any]) -> bool:
        """Take in what a task says, and tell it whether to stop."""
        self.words.append(words)
        return self.stopping

    def heard(self) -> list[dict[str, Any]]:
        """Hand out what was said since the last call."""
        words, self.words = self.words, []
        return words

    def stop(self) -> None:
        """Have every task stop."""
        self.stopping = True


@dataclass
class Teller:
    """The reporter of a run that is a task. What the desk answers decides whether the run goes on."""

    desk: Any
    run: str
    told: float = 0.0
    stopping: bool = False

    def begin(self, title: str, steps: object) -> None:  # noqa: ARG002
        """Say that the run begins."""
        self._tell({"run": self.run, "about": "begins", "step": 0, "total": 1})

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:  # noqa: ARG002
        """Say how far it is, now and then."""
        if time.monotonic() - self.told >= TELL_SECONDS:
            self._tell({"run": self.run, "about": about, "step": done, "total": total})

    def line(self, text: str) -> None:  # noqa: D102
        pass

    def end(self) -> None:  # noqa: D102
        pass

    def still_here(self) -> None:
        """Say that others are at work for this run."""
        self._tell({"run": self.run, "about": "classes side by side", "step": 0, "total": 1})

    def _tell(self, words: dict[str, Any]) -> None:
        with suppress(RayError):  # a desk that cannot be reached is no reason to stop
            self.stopping = bool(ray.get(self.desk.tell.remote(words), timeout=5))
        self.told = time.monotonic()


def packed(folder: Path) -> Files:
    """Read the files of a run folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for pattern in KEPT
        for path in folder.glob(pattern)
        if path.is_file()
    }


def unpacked(files: Files, folder: Path) -> None:
    """Write files into a folder, ``result.json`` last, so that a half-written run is an unfinished one."""
    for name in sorted(files, key=lambda name: name == "result.json"):
        if not any(place_fits(name, pattern) for pattern in KEPT):
            raise InputError(f"A run folder has no file {name!r}.")
        write(folder / name, files[name])


def place_fits(name: str, pattern: str) -> bool:
    """Tell whether a file's place in a run folder is as the pattern says, folder by folder."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and ".." not in parts and all(map(fnmatch, parts, wanted))


def where(folder: str) -> AbstractContextManager[None]:
    """Be where the sweep was started, if that is there on this node: data sets may be named from there."""
    return chdir(folder) if Path(folder).is_dir() else nullcontext()


def do_run(settings: dict[str, Any], about: dict[str, Any], desk: Any, files: Files | None) -> dict[str, Any]:
    """Do one run as a task: in the sweep's folder where it can be reached, else here, and hand its files back."""
    import torch

    from ccmcl.runner import attempt
    from ccmcl.system import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(about["threads"])
    experiment = from_dict(settings)
    teller = Teller(desk, experiment.name)

    teller.begin(experiment.name, {})
    if teller.stopping:
        return {"done": experiment.name, "outcome": "stopped"}

    def crew(count: int, told: dict[str, Any]) -> Crew:
        if not about["apart"]:  # processes share what the run has asked for
            return Workers(count, told)
        return Classes(count, {**told, "cwd": about["cwd"]}, about["mark"], teller.still_here)

    def done_in(out: Path) -> dict[str, Any]:
        with where(about["cwd"]):
            said = attempt(experiment, {**about, "out": str(out)}, teller, lambda: teller.stopping, crew)
        return {"done": experiment.name, **said}

    shared = Path(about["out"])
    if (shared / about["mark"]).is_file():
        return done_in(shared)
    with tempfile.TemporaryDirectory(prefix="ccmcl-") as own:
        unpacked(files or {}, Path(own) / experiment.name)
        (Path(own) / about["mark"]).touch()  # for classes that are done on this machine
        said = done_in(Path(own))
        return {**said, "files": packed(Path(own) / experiment.name)}


def do_class(task: dict[str, Any], about: dict[str, Any], mark: str, files: Files | None) -> Files | None:
    """Do one class of a run as a task: in the run's folder where it can be reached, else from its files and back."""
    from ccmcl.system import keep_freed_memory
    from ccmcl.worker import Hand

    keep_freed_memory()
    folder = Path(about["folder"])
    if (folder.parent / mark).is_file() and (folder / "config.json").is_file():
        with where(about["cwd"]):
            Hand(about, lambda **_: None)(task)
        return None
    assert files is not None
    with tempfile.TemporaryDirectory(prefix="ccmcl-") as own:
        place = Path(own) / folder.name
        unpacked(files, place)
        with where(about["cwd"]):
            Hand({**about, "folder": str(place)}, lambda **_: None)(task)
        found = packed(place)
    return {name: data for name, data in found.items() if name not in files or files[name] != data}


@dataclass
class Classes:
    """A crew of tasks: the classes of an experience, wherever the cluster has room."""

    count: int
    about: dict[str, Any]
    mark: str
    tick: Callable[[], None] = lambda: None
    """called now and then while the tasks are at work"""
    stopping: bool = False

    def __call__(self, jobs: Iterable[dict[str, Any]], heard: Callable[[dict[str, Any]], None]) -> None:
        """Do the jobs; one whose process or node dies is done again from its last checkpoint within reach."""
        folder = Path(self.about["folder"])
        remote = ray.remote(do_class).options(
            num_cpus=self.about["threads"], num_gpus=int(self.about["device"] == "cuda"), max_retries=0
        )

        def begun(task: dict[str, Any]) -> Any:
            return remote.remote(task, self.about, self.mark, packed(folder))

        doing = {begun(task): task for task in jobs}
        try:
            self._through(doing, begun, folder, heard)
        finally:
            for reference in doing:
                ray.cancel(reference, force=True)

    def _through(
        self,
        doing: dict[Any, dict[str, Any]],
        begun: Callable[[dict[str, Any]], Any],
        folder: Path,
        heard: Callable[[dict[str, Any]], None],
    ) -> None:
        deaths = Counter[str]()
        while doing and not self.stopping:
            ready, _ = ray.wait(list(doing), num_returns=1, timeout=1.0)
            if not ready:
                self.tick()
                heard({"done": ""})  # a moment at which the run may be stopped
                continue
            task = doing.pop(ready[0])
            try:
                files = ray.get(ready[0])
            except RayTaskError:
                raise
            except RayError:
                deaths[task["name"]] += 1
                if deaths[task["name"]] > MOST_DEATHS:
                    raise
                doing[begun(task)] = task
                continue
            if files:
                unpacked({name: data for name, data in files.items() if name.startswith("resume/")}, folder)
            heard({"done": task["name"]})

    def stop(self) -> None:
        """Let the tasks go with their last checkpoints."""
        self.stopping = True

    def close(self) -> None:
        """Nothing is kept between jobs."""
