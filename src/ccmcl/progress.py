"""What a long run says while it works: a live display on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.text import Text


@runtime_checkable
class Reporter(Protocol):
    """Hears what a run is doing."""

    def begin(self, title: str, steps: Mapping[str, int]) -> None:
        """Say that a run starts; ``steps`` counts the work of each kind that lies ahead."""
        ...

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Say how far the work called ``name`` is."""
        ...

    def line(self, text: str) -> None:
        """Say something that should stay readable."""
        ...

    def end(self) -> None:
        """Say that the run is over."""
        ...


class Silent:
    """Says nothing."""

    def begin(self, title: str, steps: Mapping[str, int]) -> None:  # noqa: D102
        pass

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:  # noqa: D102
        pass

    def line(self, text: str) -> None:  # noqa: D102
        pass

    def end(self) -> None:  # noqa: D102
        pass


@dataclass
class Pace:
    """Estimates the time left from the pace of each kind of work so far.

    The first step of a kind says nothing of the others: what they need is compiled or loaded in it.
    """

    ahead: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    clock: float = field(default_factory=time.monotonic)

    def step(self, name: str, done: int) -> None:
        """Take note that the work called ``name`` (its kind is the first word) has come to step ``done``."""
        kind, now = name.split()[0], time.monotonic()
        before = self.position.get(name)
        self.position[name] = done
        # What was restored or has just begun does not count for the pace, nor does the first step alone.
        self.ahead[kind] = self.ahead.get(kind, 0) - (done - (before or 0))
        if before is not None and (kind in self.warm or done - before > 1):
            self.steps[kind] = self.steps.get(kind, 0) + done - before
            self.seconds[kind] = self.seconds.get(kind, 0.0) + now - self.clock
        if before is not None and done > before:
            self.warm.add(kind)
        self.clock = now

    def left(self) -> tuple[float, bool]:
        """Return the seconds left of the kinds met so far, and whether there are others ahead."""
        known = sum(
            self.seconds[kind] / steps * max(0, self.ahead[kind]) for kind, steps in self.steps.items() if steps
        )
        return known, any(count > 0 and not self.steps.get(kind) for kind, count in self.ahead.items())

    def __str__(self) -> str:
        seconds, more = self.left()
        return f"{'more than ' if more else ''}{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Write a time for people.

    >>> duration(8), duration(95), duration(7300)
    ('8 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _loss(loss: float) -> str:
    return "" if loss != loss else f"loss {loss:.4g}  "


@dataclass
class Lines:
    """Writes plain lines, at most one every few seconds: for logs."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 10.0
    pace: Pace = field(default_factory=lambda: Pace({}))
    told: float = 0.0

    def begin(self, title: str, steps: Mapping[str, int]) -> None:
        """Start a new estimate."""
        self.pace, self.told = Pace(dict(steps)), time.monotonic()
        self.line(title)

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Write a line when the last one is old enough."""
        self.pace.step(name, done)
        if time.monotonic() - self.told >= self.every:
            self.told = time.monotonic()
            self.line(f"  {about}  {done}/{total}  {_loss(loss)}{self.pace}")

    def line(self, text: str) -> None:
        """Write a line."""
        print(text, file=self.stream, flush=True)

    def end(self) -> None:
        """Nothing is left to do."""


@dataclass
class Display:
    """Keeps one live line at the bottom of a terminal, with what stays above it."""

    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    pace: Pace = field(default_factory=lambda: Pace({}))
    live: Live | None = None

    def begin(self, title: str, steps: Mapping[str, int]) -> None:
        """Open the live line."""
        self.end()
        self.pace = Pace(dict(steps))
        self.console.print(title, markup=False, emoji=False)
        self.live = Live(console=self.console, refresh_per_second=8, transient=True)
        self.live.start()

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Redraw the live line."""
        self.pace.step(name, done)
        if self.live is not None:
            width = 24
            filled = width * done // max(1, total)
            bar = "━" * filled + "─" * (width - filled)
            self.live.update(
                Text(f"  {about}  {bar}  {done}/{total}  {_loss(loss)}{self.pace}", overflow="ellipsis", no_wrap=True)
            )

    def line(self, text: str) -> None:
        """Write a line above the live one."""
        self.console.print(text, markup=False, emoji=False)

    def end(self) -> None:
        """Close the live line."""
        if self.live is not None:
            self.live.stop()
            self.live = None


def reporter(quiet: bool = False) -> Reporter:
    """Choose how to report: not at all, on a terminal, or into a log."""
    if quiet:
        return Silent()
    return Display() if sys.stderr.isatty() else Lines()
