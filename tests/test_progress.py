"""What a run says while it works: estimates of time, plain lines, and a live line on a terminal."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from ccmcl.progress import Display, Lines, Pace, Reporter, Silent, duration, reporter


class Clock:
    """A clock that goes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def display() -> Iterator[Display]:
    display = Display(Console(file=Terminal(), force_terminal=True, width=100, highlight=False))
    yield display
    display.end()


def shown(display: Display) -> str:
    assert isinstance(display.console.file, io.StringIO)
    return display.console.file.getvalue()


def test_time_left_follows_from_the_pace_so_far(clock: Clock) -> None:
    pace = Pace({"condense": 100})
    pace.step("condense class 0", 0)
    for done in range(1, 11):
        clock.now += 2
        pace.step("condense class 0", done)
    assert pace.left() == (180.0, False)
    assert str(pace) == "3 min 0 s left"
    for done in range(11, 101):
        clock.now += 2
        pace.step("condense class 0", done)
    assert pace.left() == (0.0, False)


def test_kinds_of_work_have_paces_of_their_own(clock: Clock) -> None:
    pace = Pace({"condense": 20, "train": 50})
    pace.step("condense class 0", 0)
    clock.now += 30
    pace.step("condense class 0", 10)
    assert pace.left() == (30.0, True)
    assert str(pace) == "more than 30 s left"
    pace.step("train 0", 0)
    clock.now += 1
    pace.step("train 0", 10)
    assert pace.left() == (30.0 + 4.0, False)
    assert str(pace) == "34 s left"


def test_several_jobs_of_a_kind_use_up_the_same_work(clock: Clock) -> None:
    pace = Pace({"condense": 30})
    for label in range(2):
        pace.step(f"condense class {label}", 0)
        clock.now += 10
        pace.step(f"condense class {label}", 10)
    assert pace.left() == (10.0, False)


def test_what_was_done_before_a_restart_does_not_count_for_the_pace(clock: Clock) -> None:
    pace = Pace({"condense": 100})
    pace.step("condense class 0", 90)
    clock.now += 10
    pace.step("condense class 0", 95)
    assert pace.left() == (10.0, False)


def test_a_first_step_in_which_all_is_compiled_does_not_count_for_the_pace(clock: Clock) -> None:
    pace = Pace({"learn": 1000})
    pace.step("learn 1", 500)
    clock.now += 60
    pace.step("learn 1", 501)
    assert pace.left() == (0, True)
    clock.now += 2
    pace.step("learn 1", 502)
    assert pace.left() == (996.0, False)
    pace.step("learn 2", 0)
    clock.now += 4
    pace.step("learn 2", 1)
    assert pace.left() == (497 * 3.0, False)


def test_before_any_work_nothing_is_known(clock: Clock) -> None:
    assert Pace({"train": 5}).left() == (0, True)
    assert str(Pace({"train": 5})) == "more than 0 s left"
    assert Pace({}).left() == (0, False)


def test_more_work_than_was_said_leaves_no_negative_time(clock: Clock) -> None:
    pace = Pace({"train": 2})
    for done in range(5):
        pace.step("train", done)
        clock.now += 1
    assert pace.left() == (0.0, False)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (61, "1 min 1 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (7199, "1 h 59 min"),
        (90_061, "25 h 1 min"),
    ],
)
def test_times_are_written_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_log_gets_plain_lines_now_and_then(clock: Clock, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        lines = Lines(stream, every=10)
        lines.begin("digits with composite", {"condense": 100})
        for done in range(26):
            lines.step("condense class 0", "class 0 of 10", done, 100, 0.123456)
            clock.now += 1
        lines.line("Accuracy 90.0 %")
        lines.end()
        assert (tmp_path / "log").read_text().splitlines() == [
            "digits with composite",
            "  class 0 of 10  10/100  loss 0.1235  1 min 30 s left",
            "  class 0 of 10  20/100  loss 0.1235  1 min 20 s left",
            "Accuracy 90.0 %",
        ], "a log can be read while the run goes on"


def test_plain_lines_have_no_escape_codes_even_on_a_terminal(clock: Clock) -> None:
    screen, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        assert stream.isatty()
        lines = Lines(stream, every=0)
        lines.begin("[bold]title[/bold]", {"train": 2})
        lines.step("train", "[red]about", 1, 2, 1e-9)
        lines.line(":cat:")
        lines.end()
        seen = b""
        while seen.count(b"\n") < 3:  # a terminal hands out what it has so far
            seen += os.read(screen, 10_000)
    os.close(screen)
    assert seen.decode().replace("\r\n", "\n") == (
        "[bold]title[/bold]\n  [red]about  1/2  loss 1e-09  more than 0 s left\n:cat:\n"
    )


def test_a_second_run_is_estimated_by_itself(clock: Clock, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        lines = Lines(stream, every=0)
        for seconds in (100, 1):
            lines.begin("run", {"train": 4})
            for done in range(3):
                lines.step("train", "train", done, 4, 0)
                clock.now += seconds
    assert (tmp_path / "log").read_text().splitlines()[-1] == "  train  2/4  loss 0  2 s left"


@pytest.mark.parametrize(("done", "filled"), [(0, 0), (1, 2), (6, 12), (12, 24)])
def test_the_terminal_shows_a_bar(done: int, filled: int, display: Display, clock: Clock) -> None:
    display.begin("digits", {"condense": 12})
    display.step("condense class 0", "class 0", done, 12, 0.5)
    display.end()
    assert f"  class 0  {'━' * filled}{'─' * (24 - filled)}  {done}/12  loss 0.5  " in shown(display)


def test_the_terminal_is_left_clean(display: Display) -> None:
    display.begin("digits", {"train": 2})
    display.step("train", "train", 1, 2, 0.5)
    display.end()
    text = shown(display)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.rindex("\x1b[2K") > text.rindex("━")
    assert display.live is None
    display.end()
    assert shown(display) == text


def test_what_should_stay_is_written_as_it_is(display: Display) -> None:
    for text in ("Accuracy [bold]90[/bold] %", "class :cat: in C:\\x:dog:", "100 %"):
        display.begin(f"title {text}", {"train": 2})
        display.line(text)
        display.end()
        assert f"title {text}" in shown(display)
        assert f"{text}\n" in shown(display).replace("\r", "").split(f"title {text}")[1]


@pytest.mark.parametrize("width", [100, 80, 40])
def test_the_live_line_is_one_line(width: int) -> None:
    console = Console(file=Terminal(), force_terminal=True, width=width)
    display = Display(console)
    display.begin("mnist", {"condense": 500, "train": 100})
    try:
        for done in range(3):
            display.step("condense class 0", "condensing class 0 of 10 (trouser)", done, 500, 0.123456)
        assert display.live is not None
        assert len(console.render_lines(display.live.get_renderable(), pad=False)) == 1
    finally:
        display.end()


def test_before_it_begins_the_terminal_stays_empty(display: Display) -> None:
    display.step("train", "train", 1, 2, 0.5)
    display.end()
    assert shown(display) == ""


def test_a_second_run_closes_the_first_one_s_line(display: Display) -> None:
    display.begin("first", {"train": 2})
    first = display.live
    display.begin("second", {"train": 2})
    assert first is not None
    assert not first.is_started
    assert display.live is not first


def test_the_reporter_fits_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(reporter(), Display)
    assert isinstance(reporter(quiet=True), Silent)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(reporter(), Lines)


def test_quiet_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    silent = reporter(quiet=True)
    silent.begin("title", {"train": 1})
    silent.step("train", "train", 1, 1, 0.0)
    silent.line("text")
    silent.end()
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_stderr_and_leaves_stdout_to_results(capfd: pytest.CaptureFixture[str]) -> None:
    for one in (Lines(every=0), Display()):
        assert isinstance(one, Reporter)
        one.begin("title", {"train": 1})
        one.step("train", "train", 1, 1, 0.0)
        one.line("text")
        one.end()
        out, err = capfd.readouterr()
        assert out == ""
        assert "title" in err
        assert "text" in err
