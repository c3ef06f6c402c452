"""The page of results says what the run folders say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from ccmcl.records import read_runs
from ccmcl.results import table
from studied import finished

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("results_page", ROOT / "benchmarks" / "results_page.py")
assert _spec is not None
assert _spec.loader is not None
page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(page)


@pytest.mark.parametrize("name", page.PAGES)
def test_page_in_the_documentation_is_the_one_the_folders_make(name: str) -> None:
    assert (ROOT / "docs" / f"{name}.md").read_text("utf-8") == page.made(ROOT / "results", name)


def test_picture_in_the_documentation_is_of_what_the_folders_hold() -> None:
    assert page.mark_of(page.pictured(ROOT / "results")) in page.PICTURE.read_text("utf-8")


def test_first_table_of_the_readme_is_the_one_the_folders_make() -> None:
    assert (ROOT / "README.md").read_text("utf-8") == page.introduced(ROOT / "results")


def test_choices_have_what_the_study_of_mixing_measured_of_the_same_sets(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": "mnist", "shape": (1, 28, 28), "holdout": 5000}
    finished(tmp_path / "choices", 0.8, bits=8, **settings)
    finished(tmp_path / "mixing", 0.9, **settings)
    finished(tmp_path / "mixing", 0.7, **(settings | {"dataset": "fashion-mnist"}))
    assert {row.accuracy.mean for row in page.pictured(tmp_path)} == {0.8, 0.9}
    finished(tmp_path / "choices", 0.85, **settings)  # measured again
    assert {row.accuracy.mean for row in page.pictured(tmp_path)} == {0.8, 0.85}


def test_budgets_of_one_set_stand_beside_each_other(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": "cifar10", "shape": (3, 32, 32), "holdout": 5000}
    for budget, accuracy in (("1200KiB", 0.6), ("300KiB", 0.5), ("62720B", 0.4)):
        finished(tmp_path, accuracy, budget=budget, **settings)
        finished(tmp_path, accuracy - 0.1, budget=budget, bits=8, **settings)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.choices(table(read_runs(tmp_path)))]
    assert lines[0][1::3] == ["CIFAR10 63 kB, %", "CIFAR10 300 KiB, %", "CIFAR10 1200 KiB, %"]
    assert lines[2][:1] + lines[2][1::3] == ["the preset", "40.0", "50.0", "60.0"]
    assert lines[3][:3] == ["bits 8", "30.0", "-10.0"]


def test_first_table_has_seeds_together_and_leaves_open_what_was_not_measured(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.90, 0.92)):
        finished(tmp_path / "best-test", accuracy, dataset="mnist", shape=(1, 28, 28), preset="best", seed=seed)
    (tmp_path / "fast-test").mkdir()
    lines = page.headline(tmp_path)
    assert lines[2] == "| MNIST 20 | 5 kB | 86.0 ± 2.7 (5) |  | 91.0 ± 1.4 (2) |"
    assert lines[3] == "| MNIST 100 |  | 95.0 ± 0.1 (5) |  |  |"
    assert len(lines) == 2 + 8


def test_page_sets_ours_beside_the_paper(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.85, 0.87)):
        settings: dict[str, Any] = {"dataset": "mnist", "preset": "paper", "shape": (1, 28, 28), "seed": seed}
        finished(tmp_path / "published", accuracy, **settings)
        finished(tmp_path / "optimiser", accuracy, condense_rate=0.1, **settings)
    text = page.made(tmp_path)
    assert "| MNIST 20 | composite | 50 | 2 | 86.0 ± 1.4 | 86.0 ± 2.7 | +0.0 (+0.0 σ) |" in text
    assert "| MNIST | composite | rmsprop | 0.1 | 2 | 86.0 ± 1.4 | 85.0, 87.0 |" in text
    assert "(not measured yet)" in text


def test_fine_images_are_set_beside_many_with_every_seed(tmp_path: Path) -> None:
    given: dict[str, Any] = {"dataset": "mnist", "shape": (1, 28, 28), "budget": "100"}
    for seed, frequencies, accuracy in ((0, 130, 0.9), (0, 65, 0.88), (1, 130, 0.8)):
        finished(tmp_path, accuracy, seed=seed, frequencies=frequencies, **given)
    lines = page.fineness(list(read_runs(tmp_path)))
    assert lines[2:] == ["| MNIST 100 | 65 | 2 | 88.0 |", "| MNIST 100 | 130 | 2 | 90.0, 80.0 |"]


def test_choices_are_told_by_what_was_asked_for_and_set_beside_the_preset(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": "cifar10", "shape": (3, 32, 32), "budget": "100", "holdout": 5000}
    finished(tmp_path, 0.50, **settings)
    finished(tmp_path, 0.45, network="plain", **settings)  # which has another rate, too
    finished(tmp_path, 0.52, method="rehearsal", recipe="paper", rate=0.01, **settings)
    finished(tmp_path, 0.18, method="rehearsal", reduction=2, continued="yes", **settings)  # not by itself
    finished(tmp_path, 0.90, dataset="mnist", shape=(1, 28, 28), holdout=5000, bits=8)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.choices(table(read_runs(tmp_path)))]
    assert lines[0] == ["", "CIFAR10 100, %", "points", "time", "MNIST 20, %", "points", "time"]
    assert [line[:3] for line in lines[2:]] == [
        ["the preset", "50.0", ""],
        ["method rehearsal, recipe paper, rate 0.01", "52.0", "+2.0"],
        ["network plain", "45.0", "-5.0"],
        ["method rehearsal, reduction 2, continued yes", "18.0", "-32.0"],
        ["bits 8", "", ""],
    ]
    assert lines[-1][4:6] == ["90.0", ""]  # nothing to be compared with


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/*")), ids=lambda folder: folder.name)
def test_kept_results_hold_no_data_and_nothing_large(folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {"config.json", "result.json", "cost.json"} <= set(files)
    assert sum(files.values()) < 500_000


def test_picture_names_what_no_cheaper_run_reaches(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": "cifar10", "shape": (3, 32, 32), "budget": "100", "holdout": 5000}
    finished(tmp_path, 0.50, **settings)
    finished(tmp_path, 0.45, network="plain", **settings)
    finished(tmp_path, 0.60, method="rehearsal", **settings)
    figure = page.picture(table(read_runs(tmp_path)))
    over_bytes, over_seconds = figure.axes
    assert [text.get_text() for text in over_bytes.texts] == ["method rehearsal (100)"]  # all have as many bytes here
    assert "network plain" not in [text.get_text() for text in over_seconds.texts][1:]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["condensation", "rehearsal"]
