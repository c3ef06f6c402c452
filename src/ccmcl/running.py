"""The loop over experiences: all of continual learning on one page, seeded, checkpointed, resumable."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ccmcl._version import __version__
from ccmcl.compute import Compute, Settled, device_of, operations, settle
from ccmcl.data import Dataset, Images, load
from ccmcl.errors import InputError
from ccmcl.evaluate import Scores, confusion, tally
from ccmcl.experiment import Experiment
from ccmcl.files import check_writable
from ccmcl.locks import CLAIM, held
from ccmcl.loop import Job, State, generator_for, placed, section, worth_telling
from ccmcl.memory import Memory
from ccmcl.methods import METHODS, check, everything, plan_steps
from ccmcl.plan import Learner, Plan
from ccmcl.planning import edge_of, plan_of
from ccmcl.progress import Reporter, Silent
from ccmcl.store import Busy, Progress, RunFolder
from ccmcl.stream import Stream, class_order
from ccmcl.system import give_back_freed_memory
from ccmcl.threads import limited
from ccmcl.workers import Crew, Workers


class Stopped(Exception):  # noqa: N818
    """A run was told to stop, and can go on from where it is."""


def run(
    experiment: Experiment,
    out: Path | str = "runs",
    data_dir: Path | str | None = None,
    reporter: Reporter | None = None,
    checkpoint_seconds: float = 15.0,
    compute: Compute = Compute(),  # noqa: B008
    stop: Callable[[], bool] = lambda: False,
    crew: Callable[[int, dict[str, Any]], Crew] = Workers,
    claimed: bool = False,
) -> RunFolder:
    """Do an experiment, or go on with it, or find it done; its folder has the result.

    As soon as ``stop`` says so, where it has come to is kept and ``Stopped`` is raised. ``crew`` makes what does jobs
    side by side, from how many there may be and what they must know. A run that another process has claimed is
    ``Busy``, unless it is done for that one (``claimed``).

    >>> import tempfile
    >>> tiny = Experiment.of(method="rehearsal", budget="20", steps=2, width=4, per_experience="5")
    >>> with tempfile.TemporaryDirectory() as out:
    ...     folder = run(tiny, out)
    ...     sorted(path.name for path in folder.path.iterdir() if path.name[0] != ".")
    ['config.json', 'cost.json', 'events.jsonl', 'memory.safetensors', 'network.safetensors', 'result.json']
    """
    reporter = reporter or Silent()
    folder = RunFolder.of(out, experiment)
    data = load(experiment.dataset, data_dir, progress=not isinstance(reporter, Silent))
    stream, test, plan = arrange(experiment, data)
    method = METHODS[experiment.method]
    device_of(compute.device)
    check_writable(out)
    folder.open(experiment, data.fingerprint)
    with folder.locked():
        if not claimed and held(folder.path / CLAIM):
            raise Busy(f"{folder.path} is being worked on by another process.")
        if folder.finished:
            folder.clear()
            return folder
        progress = folder.load_progress()
        settled = settle(compute, plan, experiment.method, stream.groups, folder.begun_code())
        folder.begin_code(settled.code)
        work = sum(operations(plan, experiment.method, stream.groups))
        plan = settled.equip(plan)
        about = {
            "folder": str(folder.path),
            "data_dir": None if data_dir is None else str(data_dir),
            "code": settled.code,
            "device": settled.device,
            "every": checkpoint_seconds,
        }
        keeper = Keeper(
            folder, reporter, checkpoint_seconds, stream.names, len(stream), dict(progress.cost), settled.workers, about
        )
        keeper.stop, keeper.crew = stop, crew
        learner = progress.learner
        done = len(progress.tallies)
        if method.keeps_all and done:
            learner = Learner(everything(Memory(), [stream[i] for i in range(done)]), learner.params)
        folder.event("resume" if done else "start", versions=versions(), machine=machine())
        reporter.begin(experiment.name, plan_steps(experiment.method, plan, stream.groups[done:]))
        try:
            for experience in (stream[i] for i in range(done, len(stream))):
                learner = method.meet(plan, learner, experience, keeper)

                seen = range(experience.classes[-1] + 1)
                with keeper.timing("evaluate"):
                    assert learner.params is not None
                    shown, views = stream.cut(test, seen), plan.recipe.style.views
                    counts = confusion(plan.net, learner.params, *shown, len(seen), plan.device, views)
                tallies = (*progress.tallies, tally(counts))
                progress = Progress(learner, tallies, tuple(map(tuple, counts)), tuple(keeper.seconds.items()))
                folder.save_progress(progress, keep_memory=not method.keeps_all)
                scores = Scores(progress.tallies, stream.groups)
                folder.event(
                    "experience",
                    index=experience.index,
                    accuracies=scores.accuracies,
                    matrix=scores.matrix[-1],
                )
                reporter.line(
                    f"  experience {experience.index + 1}/{len(stream)}"
                    f" ({', '.join(stream.names[k] for k in experience.classes)}):"
                    f" accuracy {scores.accuracy:.1%} on {len(seen)} classes"
                )
        finally:
            keeper.close()
            reporter.end()
        assert learner.params is not None
        result = {
            "classes": list(stream.names),
            "groups": [list(group) for group in stream.groups],
            "experiment": experiment.as_dict(),
            "memory": size_of(learner.memory),
            "confusion": progress.confusion,
            **Scores(progress.tallies, stream.groups).as_dict(),
        }
        kept = learner.memory if learner.memory and not method.keeps_all else None
        folder.finish(kept, stream.names, learner.params, result, cost_of(keeper.seconds, settled, work))
        folder.event("finish", accuracy=result["accuracy"])
    return folder


@dataclass
class Keeper:
    """Drives jobs with a checkpoint every few seconds and after each, and tells how far they are.

    Jobs given together are done side by side by worker processes, or one after the other where there are none. Each
    gets its share of the threads either way: with another number of threads, sums would be rounded otherwise.
    """

    folder: RunFolder
    reporter: Reporter
    every: float
    names: Sequence[str]
    experiences: int
    seconds: dict[str, float]
    workers: int = 1
    about: dict[str, Any] = field(default_factory=dict)
    pools: dict[int, Crew] = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False
    crew: Callable[[int, dict[str, Any]], Crew] = Workers

    def __call__(self, jobs: Mapping[str, Job]) -> dict[str, State]:
        """Do the jobs, each from its last checkpoint if there is one."""
        share = max(1, torch.get_num_threads() // len(jobs))
        if self.workers > 1 and len(jobs) > 1:
            self._side_by_side(jobs, share)
        try:
            with limited(share):
                return {name: self._drive(name, job) for name, job in jobs.items()}
        finally:
            give_back_freed_memory()

    def close(self) -> None:
        """Let the workers go."""
        for pool in self.pools.values():
            pool.close()
        self.pools.clear()

    def _side_by_side(self, jobs: Mapping[str, Job], threads: int) -> None:
        """Have the jobs done that are not; their last states are left in the folder."""
        ahead = []
        for name, job in jobs.items():
            kept = self.folder.load_job(name)
            done = 0 if kept is None else int(kept[0]["step"])
            if done < job.total:
                ahead.append({"name": name, "seconds": self.seconds})
        if threads not in self.pools:
            self.close()
            self.pools[threads] = self.crew(self.workers, {**self.about, "threads": threads})

        def hear(words: dict[str, Any]) -> None:
            if self.stop():
                self.pools[threads].stop()
            if "done" not in words:
                self.reporter.step(words["name"], words["about"], words["step"], words["total"], words["loss"])

        with self.timing(next(iter(jobs)).split()[0]):
            self.pools[threads](ahead, hear)
        if self.stop():
            raise Stopped

    def _drive(self, name: str, job: Job) -> State:
        """Do one job in this process."""
        kept = self.folder.load_job(name)
        if kept is None:
            state = job.init()
        else:
            state, cost = kept
            state = placed(state, job.device)
            self.seconds |= {kind: max(spent, self.seconds.get(kind, 0.0)) for kind, spent in cost.items()}
        about, done = self._about(name), int(state["step"])
        self.reporter.step(name, about, done, job.total, float("nan"))
        saved = told = time.monotonic()
        while done < job.total:
            with self.timing(name.split()[0]):
                state, loss = job.step(state)
            done, now = int(state["step"]), time.monotonic()
            if worth_telling(job, done, told):
                self.reporter.step(name, about, done, job.total, float(loss))
                told = now
            stopping = self.stop()
            if done == job.total or stopping or now - saved >= self.every:
                self.folder.save_job(name, state, self.seconds)
                self.folder.event("progress", job=name, step=done, total=job.total, loss=float(loss))
                saved = time.monotonic()
            if stopping:
                raise Stopped(name)
        if forming := section(state, "forming"):
            self.folder.save_forming(name, forming)
        return state

    def timing(self, kind: str) -> Timing:
        """Count the seconds spent on one kind of work."""
        return Timing(self.seconds, kind)

    def _about(self, name: str) -> str:
        """Say in words what a job does: 'condense 2-5' condenses class 5 in experience 2, 'learn 2-1' is a network."""
        kind, _, where = name.partition(" ")
        index, _, label = where.partition("-")
        if not label:
            what = ""
        elif kind == "condense":
            what = f" {self.names[int(label)]}"
        else:
            what = f" {int(label) + 1}"
        return f"experience {int(index) + 1}/{self.experiences}: {kind}{what}"


@dataclass
class Timing:
    """Adds the time spent in a block to a sum."""

    seconds: dict[str, float]
    kind: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.kind] = self.seconds.get(self.kind, 0.0) + time.perf_counter() - self.start


def arrange(experiment: Experiment, data: Dataset) -> tuple[Stream, Images, Plan]:
    """Make the stream of an experiment, the images it is judged on (test images, or training images held out) and
    the plan of its method; whatever of this cannot be is an ``InputError``, before any work is done.
    """  # noqa: D205
    train, test = data.train, data.test
    if experiment.holdout:
        if experiment.holdout >= len(train.labels):
            raise InputError(f"Cannot hold out {experiment.holdout} of {len(train.labels)} training images.")
        shuffled = torch.randperm(len(train.labels), generator=generator_for("holdout"))
        held, kept = (
            shuffled[: experiment.holdout].sort().values,
            shuffled[experiment.holdout :].sort().values,
        )
        test = Images(train.pixels[held], train.labels[held], train.classes)
        train = Images(train.pixels[kept], train.labels[kept], train.classes)
        if len(torch.unique(train.labels)) < len(train.classes):
            raise InputError(f"Holding out {experiment.holdout} images leaves a class without any to learn from.")
    order = class_order(experiment.order, len(train.classes), experiment.seed)
    stream = Stream.of(train, order, experiment.sizes())
    edge = edge_of(experiment, stream[0].pixels)
    plan = plan_of(experiment, shape(data), len(stream.order), stream.names, edge)
    check(plan, experiment.method, len(stream.order))
    return stream, test, plan


def shape(data: Dataset) -> tuple[int, int, int]:
    """Return channels, height and width of a data set's pictures."""
    _, channels, height, width = data.train.pixels.shape
    return channels, height, width


def size_of(memory: Memory) -> dict[str, int]:
    """Measure a memory for the result."""
    return {"images": memory.count, "scalars": memory.scalars, "bytes": memory.nbytes}


def cost_of(seconds: dict[str, float], settled: Settled, work: int) -> dict[str, Any]:
    """Gather what a run took: operations, time by kind of work, peak memory, and on what."""
    return {
        "operations": work,
        "seconds": sum(seconds.values()),
        "seconds_by_kind": dict(seconds),
        "peak_memory_bytes": peak_memory(),
        "engine": {**asdict(settled), "compiled": settled.compiled},
        "machine": machine(),
        "versions": versions(),
    }


def peak_memory() -> int | None:
    """Return the largest memory this process has had, in bytes, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """Name the versions that a result may depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "ccmcl": __version__}
