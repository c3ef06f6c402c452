"""What a sweep says while it works."""

from __future__ import annotations

import io

from rich.console import Console

from ccmcl.board import Board


def log() -> Console:
    return Console(file=io.StringIO(), highlight=False, width=80)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def heard(board: Board) -> None:
    with board:
        board.hear({"run": "a", "about": "experience 1/5: learn", "step": 3, "total": 10})
        board.hear({"run": "b", "about": "begins", "step": 0, "total": 1})
        board.hear({"done": "a", "outcome": "finished"})
        board.hear({"done": "b", "outcome": "failed", "reason": "it rained\x1b[31m"})
        board.hear({"done": "c", "outcome": "busy"})


def test_log_has_plain_lines() -> None:
    plain = log()
    heard(Board(["a", "b", "c"], lambda names: 60.0 * len(names), console=plain, every=0.0))
    lines = text(plain).splitlines()
    assert "  a  experience 1/5: learn  3/10" in lines
    assert "[0/3] runs done, about 3 min 0 s left" in lines
    assert any(line.startswith("[1/3]  a finished in ") for line in lines)
    assert any(line.startswith("[2/3]  b failed: it rained") for line in lines)
    assert "\x1b" not in text(plain)
    assert not any(line.startswith("[3/3]") for line in lines), "another process has c"


def test_log_is_not_flooded() -> None:
    plain = log()
    with Board(["a"], lambda _: None, console=plain) as board:
        for step in range(1000):
            board.hear({"run": "a", "about": "learn", "step": step, "total": 1000})
    assert text(plain) == ""


def test_unknown_time_is_said_to_be() -> None:
    plain = log()
    heard(Board(["a"], lambda _: None, console=plain, every=0.0))
    assert "time left unknown" in text(plain)


def test_terminal_shows_every_run_at_work() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    board = Board(["a", "b", "c"], lambda names: 60.0 * len(names), console=screen)
    heard(board)
    assert "a finished in" in text(screen)
    assert board.outcomes == {"a": "finished", "b": "failed"}
