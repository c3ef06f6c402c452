"""Long work in steps over plain tensors, which can be stopped between any two of them and taken up again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from ccmcl.errors import InputError

State = dict[str, Tensor]
HOST = ("step", "generator")
CPU = torch.device("cpu")
TELL_SECONDS = 0.1


@runtime_checkable
class Job(Protocol):
    """Work of ``total`` steps. All it knows between two steps is in its state, so a saved state is a checkpoint."""

    @property
    def total(self) -> int:
        """The number of steps."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the tensors of a state are, but for those that stay with the host."""
        ...

    def init(self) -> State:
        """Make the state before the first step; it holds ``step``, the number of steps done."""
        ...

    def step(self, state: State) -> tuple[State, Tensor]:
        """Take one step, and say the loss that was met."""
        ...


@runtime_checkable
class Drive(Protocol):
    """Brings jobs to their ends. Jobs that are given together are independent and may be done side by side."""

    def __call__(self, jobs: Mapping[str, Job], /) -> dict[str, State]:
        """Do the jobs, each from where it was left if it was begun before, and return their last states.

        A name stands for a job in front of people and in checkpoints.
        """
        ...


def drive(jobs: Mapping[str, Job]) -> dict[str, State]:
    """Do jobs one after the other in one go, with neither checkpoint nor progress: the plainest ``Drive``."""
    states = {}
    for name, job in jobs.items():
        state = job.init()
        while int(state["step"]) < job.total:
            state, _ = job.step(state)
        states[name] = state
    return states


def worth_telling(job: Job, done: int, told: float) -> bool:
    """Say whether to read a loss after ``done`` steps, last read at ``told``: elsewhere than on the CPU that waits."""
    return job.device == CPU or done == job.total or time.monotonic() - told >= TELL_SECONDS


def generator_for(*parts: object) -> Generator:
    """Derive a random stream from what it is for, so that it does not depend on what else was drawn.

    >>> a, b = generator_for(0, "condense", 3), generator_for(0, "condense", 3)
    >>> bool((torch.rand(4, generator=a) == torch.rand(4, generator=b)).all())
    True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def resumed(state: State) -> Generator:
    """Take the random stream up where the state left it."""
    generator = Generator()
    generator.set_state(state["generator"])
    return generator


def section(state: State, prefix: str) -> dict[str, Tensor]:
    """Take the tensors of a state whose names begin with ``prefix``, without it.

    >>> section({"net.a": torch.zeros(1), "step": torch.zeros(1)}, "net")
    {'a': tensor([0.])}
    """
    start = prefix + "."
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> State:
    """Undo ``section``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def placed(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Move tensors to a device; a state's step and random stream stay with the host."""
    return {name: tensor if name in HOST else tensor.to(device) for name, tensor in tensors.items()}


def checked(tensors: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    """Hand tensors on if they are all numbers; work that ran off to infinity must not pass for a result."""
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise InputError(f"The numbers of {what} ran off to infinity: lower its learning rate.")
    return tensors


def counter(value: int) -> Tensor:
    """Hold a whole number as a tensor, as states do."""
    return torch.tensor(value, dtype=torch.int64)
