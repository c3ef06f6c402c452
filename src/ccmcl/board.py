"""What a sweep says while it works: a line for every run at work on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ccmcl.errors import printable
from ccmcl.progress import duration

WIDTH = 24


@dataclass
class Board:
    """Follows the runs of a sweep; ``left`` tells the seconds that the runs with these names should still take."""

    names: list[str]
    """the runs to be done"""
    left: Callable[[list[str]], float | None]
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    every: float = 10.0
    running: dict[str, tuple[float, str]] = field(default_factory=dict)
    """since when, and what each is doing"""
    outcomes: dict[str, str] = field(default_factory=dict)
    live: Live | None = None
    told: float = 0.0
    ahead: str = ""
    looked: float = 0.0

    def __enter__(self) -> Board:
        self.told = time.monotonic()
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def hear(self, words: dict[str, Any]) -> None:
        """Take in what the engine says."""
        if "done" in words:
            self._end(words["done"], words["outcome"], words.get("reason", ""))
        else:
            since, _ = self.running.get(words["run"], (time.monotonic(), ""))
            filled = WIDTH * words["step"] // max(1, words["total"])
            bar = f"{'━' * filled}{'─' * (WIDTH - filled)}  " if self.live is not None else ""
            self.running[words["run"]] = since, f"{words['about']}  {bar}{words['step']}/{words['total']}"
        self._show()

    def say(self, text: str) -> None:
        """Say something that should stay readable."""
        self.console.print(text, markup=False, emoji=False, soft_wrap=True)

    def _end(self, name: str, outcome: str, reason: str) -> None:
        since, _ = self.running.pop(name, (time.monotonic(), ""))
        if outcome == "busy":  # another process has it
            return
        self.outcomes[name] = outcome
        took = f" in {duration(time.monotonic() - since)}" if outcome == "finished" else ""
        why = f": {printable(reason)}" if reason else ""
        self.say(f"{self._count()}  {name} {outcome}{took}{why}")

    def _count(self) -> str:
        return f"[{len(self.outcomes)}/{len(self.names)}]"

    def _ahead(self) -> str:
        now = time.monotonic()
        if now - self.looked >= 1 or not self.ahead:
            self.looked, self.ahead = now, "time left unknown"
            seconds = self.left([name for name in self.names if name not in self.outcomes])
            if seconds is not None:
                running = sum(now - since for since, _ in self.running.values()) / max(1, len(self.running))
                self.ahead = f"about {duration(max(0.0, seconds - running))} left"
        return self.ahead

    def _show(self) -> None:
        if self.live is not None:
            lines = [f"  {name}  {about}" for name, (_, about) in self.running.items()]
            summary = f"{self._count()} runs done, {self._ahead()}"
            self.live.update(Group(*(Text(line, overflow="ellipsis", no_wrap=True) for line in [*lines, summary])))
        elif time.monotonic() - self.told >= self.every:
            self.told = time.monotonic()
            for name, (_, about) in self.running.items():
                self.say(f"  {name}  {about}")
            self.say(f"{self._count()} runs done, {self._ahead()}")
