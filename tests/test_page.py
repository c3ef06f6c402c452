"""The page, opened in a real browser: nothing goes wrong, nothing leaves it, and it shows what the runs say."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, sync_playwright

from ccmcl.cli import main
from ccmcl.figures import frontier, inline, over, over_buffer, seconds_of, short
from ccmcl.page import MOST_PICTURES, against_paper, embedded, make, write_figures
from ccmcl.records import read_runs
from ccmcl.results import as_dict, table
from ccmcl.sheets import drawn
from ccmcl.tensor_files import read_tensors, write_tensors
from studied import finished

EVIL = '<script>document.title="owned"</script>'
METHODS = ("composite", "condensation", "rehearsal", "bic", "finetune", "joint")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        for method in METHODS:
            finished(out, method=method, seed=seed, budget="20", pictures=True)
            finished(out, method=method, seed=seed, dataset="mnist", preset="paper", shape=(1, 28, 28), pictures=True)
    names = tuple(f"{EVIL}{k}" for k in range(4))
    finished(out, names=names, dataset=f"{EVIL}&\"'.npz", method="composite", pictures=True)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("there is no browser, and this is where it must be tried")
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        opened = playwright.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


class Seen:
    """A page that was opened, and all it did that it should not."""

    def __init__(self, browser: Browser, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.wrong: list[str] = []
        self.asked: list[str] = []
        dark = "dark" if scheme == "dark" else "light"
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=dark)  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        begun = time.monotonic()
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#detail h3")
        self.seconds = time.monotonic() - begun

    def check(self, path: Path) -> None:
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith("data:")] == [path.as_uri()]


@pytest.fixture(scope="module")
def path(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "report.html"
    main(["report", str(runs), "--out", str(page), "--title", f"A study of {EVIL}"])
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_opens_without_error_and_asks_for_nothing(browser: Browser, path: Path, width: int, scheme: str) -> None:
    seen = Seen(browser, path, width, scheme)
    seen.check(path)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
    ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    ink = seen.page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert ink == seen.page.evaluate("getComputedStyle(document.body).color")


def test_table_shows_what_the_results_say(browser: Browser, path: Path, runs: Path) -> None:
    seen = Seen(browser, path)
    rows = [as_dict(row) for row in table(read_runs(runs))]
    heads = seen.page.locator("#results thead th").all_inner_texts()
    shown = [
        dict(zip(heads, line.locator("td").all_inner_texts(), strict=True))
        for line in seen.page.locator("#results tbody tr").all()
    ]
    assert len(shown) == len(rows)
    for cells, row in zip(shown, rows, strict=True):
        assert cells["method"] == row["experiment"]["method"]
        assert cells["data set"] == row["experiment"]["dataset"]
        assert int(cells["n"]) == row["n"]
        mean, _, std = cells["accuracy"].partition(" ± ")
        assert float(mean) == pytest.approx(100 * row["accuracy"]["mean"], abs=0.05001)
        assert (float(std) if std else None) == pytest.approx(
            None if row["accuracy"]["std"] is None else 100 * row["accuracy"]["std"], abs=0.05001
        )
        if (cells["data set"], cells["method"]) == ("mnist", "composite"):
            assert cells["paper"] == "86.0 ± 2.7"
            assert float(cells["difference"]) == pytest.approx(100 * row["accuracy"]["mean"] - 86.0, abs=0.0501)
        if cells["data set"] == "digits":
            assert cells["paper"] == cells["difference"] == ""
    assert int(shown[0]["bytes"].replace(",", "")) == rows[0]["bytes"]


def test_every_run_can_be_looked_at(browser: Browser, path: Path, runs: Path) -> None:
    seen = Seen(browser, path)
    lines = seen.page.locator("#runs tbody tr")
    assert lines.count() == len(list(read_runs(runs)))
    by_name = {record.path.name: record for record in read_runs(runs)}
    met = set()
    for place in range(lines.count()):
        lines.nth(place).click()
        record = by_name[seen.page.locator("#detail h3").first.inner_text()]
        met.add(record.path.name)
        cells = seen.page.locator("#detail .heat tbody tr").last.locator("td").all_inner_texts()
        assert [float(cell) for cell in cells[:-1]] == [round(100 * v, 1) for v in record.result["matrix"][-1]]
        assert seen.page.locator("#detail svg polyline").count() == len(record.result["groups"]) + 1
        seen.page.locator("#detail summary").first.click()
        settings = seen.page.locator("#detail .settings").first.inner_text()
        assert "condense_rate" in settings
        assert str(record.experiment.condense_rate) in settings
    assert met == set(by_name)
    seen.check(path)


def test_slider_shows_a_memory_forming(browser: Browser, path: Path) -> None:
    seen = Seen(browser, path)
    seen.page.fill("#filter", "mnist composite")
    seen.page.locator("#runs tbody tr:visible").first.click()
    slider, image = seen.page.locator("#moment"), seen.page.locator(".sheet img").last
    seen.page.wait_for_function("document.querySelector('.sheet img').naturalWidth > 0")
    seen_at = {}
    for at in range(3):
        slider.fill(str(at))
        seen_at[seen.page.locator("output").inner_text()] = image.screenshot()
    assert list(seen_at) == [f"after {step} of 10 iterations" for step in (0, 1, 10)]
    assert len(set(seen_at.values())) == 3
    assert seen.page.locator(".sheet b").all_inner_texts() == ["components", "composites"]
    seen.check(path)


def test_what_methods_remember_is_named_for_what_it_is(browser: Browser, path: Path) -> None:
    seen = Seen(browser, path)
    expected = {"condensation": "free images", "rehearsal": "stored examples", "finetune": None}
    for method, title in expected.items():
        seen.page.fill("#filter", f"digits {method}")
        seen.page.locator("#runs tbody tr:visible").first.click()
        titles = seen.page.locator(".sheet b").all_inner_texts()
        assert titles == ([] if title is None else [title])


def test_names_stay_text(browser: Browser, path: Path) -> None:
    seen = Seen(browser, path)
    seen.page.fill("#filter", "script")
    assert seen.page.locator("#runs tbody tr:visible").count() == 1
    seen.page.locator("#runs tbody tr:visible").click()
    assert EVIL in seen.page.locator("#detail").inner_text()
    assert EVIL in seen.page.locator("h1").inner_text()
    assert seen.page.title() == f"A study of {EVIL}"
    assert seen.page.locator("script").count() == 2
    seen.check(path)


def test_page_of_400_runs_opens_at_once_and_is_not_large(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("many")
    for dataset, shape in {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}.items():
        for budget in ("20", "40", "60", "80", "100"):
            for method in METHODS[:4]:
                for seed in range(10):
                    settings = {"dataset": dataset, "budget": budget, "method": method, "seed": seed}
                    finished(out, shape=shape, pictures=True, **settings)  # type: ignore[arg-type]
    page = out / "report.html"
    main(["report", str(out), "--out", str(page)])
    assert page.stat().st_size < 10_000_000
    # The browser's own start is not the page's, nor is what else the machine does just then.
    opened = (Seen(browser, page) for _ in range(8))
    seen = next((one for one in opened if one.seconds < 2), None)
    assert seen is not None
    assert seen.page.locator("#runs tbody tr").count() == 400
    seen.check(page)


def test_pictures_stop_where_the_page_would_grow_too_large(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(list(read_runs(runs)), "title")
    monkeypatch.setattr("ccmcl.page.MOST_PICTURES", 30_000)
    less = make(list(read_runs(runs)), "title")
    assert less.count("data:image/webp") < whole.count("data:image/webp")
    assert sum(map(len, re.findall(r"data:image/webp;base64,[\w+/=]+", less))) <= 30_000 < MOST_PICTURES


def test_damaged_memory_is_left_out_and_the_rest_is_shown(runs: Path, tmp_path: Path) -> None:
    folder = finished(tmp_path, pictures=True)
    whole = make(list(read_runs(tmp_path)), "title")
    folder.memory_file.write_bytes(b"damaged")
    assert "data:image" in whole
    assert "data:image" not in make(list(read_runs(tmp_path)), "title")


@pytest.mark.parametrize("shape", [(0, 1, 2**40, 1), (1, 1, 9, 9), (9, 1, 8, 8)], ids=str)
def test_what_formed_in_another_size_is_left_out_and_takes_no_room(shape: tuple[int, ...], tmp_path: Path) -> None:
    folder = finished(tmp_path, pictures=True)
    assert "sheets" in (drawn(folder, 10**7) or {})["forming"]
    images = read_tensors(folder.forming_file)[0]
    write_tensors(folder.forming_file, images | {"0-0-0": torch.empty(shape, dtype=torch.uint8)}, {})
    assert set(drawn(folder, 10**7) or {}) >= {"images", "classes"}, "what is remembered is still shown"
    assert "forming" not in (drawn(folder, 10**7) or {})


def test_data_sets_with_odd_names_and_equal_beginnings_are_drawn_each(tmp_path: Path) -> None:
    names = [r"C:\data\1.npz", "/d/a b.npz", "/d/a-b.npz", "tab\t and \x1b.npz"]
    for name in names:
        finished(tmp_path, dataset=name, method="finetune")
        finished(tmp_path, dataset=name, method="composite")
    records = list(read_runs(tmp_path))
    text = make(records, "title")
    assert "\x1b" not in text
    assert len(set(write_figures(records, tmp_path / "figures"))) == 4 * len(names)


def test_memory_of_very_many_classes_is_drawn_in_part(tmp_path: Path) -> None:
    names = tuple(map(str, range(700)))
    finished(tmp_path, names=names, shape=(1, 28, 28), dataset="many.npz", pictures=True)
    assert "data:image/webp" in make(list(read_runs(tmp_path)), "title")


def test_the_same_runs_make_the_same_page(runs: Path) -> None:
    records = list(read_runs(runs))
    assert make(records, "title") == make(records, "title")


def test_figures_are_written_for_a_paper(runs: Path, tmp_path: Path) -> None:
    names = write_figures(list(read_runs(runs)), tmp_path)
    assert {"mnist-buffer", "digits-bytes", "mnist-seconds", "mnist-operations"} <= set(names)
    for name in names:
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text("utf-8")


@pytest.mark.parametrize("settings", [{"holdout": 5000}, {"per_experience": "10"}, {"order": "random"}], ids=str)
def test_what_was_judged_otherwise_is_not_set_beside_the_paper(tmp_path: Path, settings: dict[str, Any]) -> None:
    def beside() -> tuple[bool, bool]:
        rows = table(read_runs(tmp_path))
        figure = over_buffer("mnist", rows)
        return any(map(against_paper, rows)), "composite, paper" in figure.axes[0].get_legend_handles_labels()[1]

    shared: dict[str, Any] = {"dataset": "mnist", "shape": (1, 28, 28), "method": "composite", "preset": "paper"}
    finished(tmp_path, **shared, **settings)
    assert beside() == (False, False)
    finished(tmp_path, **shared)
    assert beside() == (True, True)


def test_one_run_alone_can_be_drawn(tmp_path: Path) -> None:
    finished(tmp_path, 0.5, method="composite")
    rows = table(read_runs(tmp_path))
    for figure in (over_buffer("digits", rows), over("digits", rows, "seconds", seconds_of)):
        assert "composite" in inline(figure, "name", "about")
    assert short(1234.0) == "1.234 k"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=12))
def test_the_front_is_what_nothing_else_beats(points: list[tuple[float, float]]) -> None:
    def beaten(one: tuple[float, float]) -> bool:
        return any(x <= one[0] and y >= one[1] and (x, y) != one for x, y in points)

    assert frontier(points) == sorted({one for one in points if not beaten(one)})


def test_the_most_that_a_cost_buys_is_drawn_where_some_runs_are_beaten(tmp_path: Path) -> None:
    def labels() -> list[str]:
        figure = over("digits", table(read_runs(tmp_path)), "seconds", lambda row: float(row.experiment.budget))
        return figure.axes[0].get_legend_handles_labels()[1]

    finished(tmp_path, 0.5, method="composite", budget="10")
    finished(tmp_path, 0.7, method="rehearsal", budget="20")
    assert "the most up to there" not in labels()
    finished(tmp_path, 0.6, method="composite", budget="30")
    assert "the most up to there" in labels()


def test_lines_of_one_method_by_other_settings_look_different(tmp_path: Path) -> None:
    for updates in range(1, 9):
        finished(tmp_path, method="condensation", updates=updates)
    (axes,) = over("digits", table(read_runs(tmp_path)), "seconds", seconds_of).axes
    marks = [line for line in axes.get_lines() if line.get_marker() == "s"]
    assert len({(mark.get_fillstyle(), mark.get_markersize()) for mark in marks}) == 8


def test_no_finished_run_is_a_sentence_and_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")])
    assert ended.value.code == 2
    assert "no finished run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_data_cannot_end_their_element() -> None:
    text = str(embedded({"a": "</script><!--", "b": [1, None]}))
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--", "b": [1, None]}
