"""The page of results says what the run folders say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from studied import finished

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("results_page", ROOT / "benchmarks" / "results_page.py")
assert _spec is not None
assert _spec.loader is not None
page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(page)


def test_page_in_the_documentation_is_the_one_the_folders_make() -> None:
    assert (ROOT / "docs" / "results.md").read_text("utf-8") == page.made(ROOT / "results")


def test_page_sets_ours_beside_the_paper(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.85, 0.87)):
        settings: dict[str, Any] = {"dataset": "mnist", "preset": "paper", "shape": (1, 28, 28), "seed": seed}
        finished(tmp_path / "published", accuracy, **settings)
        finished(tmp_path / "optimiser", accuracy, condense_rate=0.1, **settings)
    text = page.made(tmp_path)
    assert "| MNIST 20 | composite | 50 | 2 | 86.0 ± 1.4 | 86.0 ± 2.7 | +0.0 (+0.0 σ) |" in text
    assert "| MNIST | composite | rmsprop | 0.1 | 2 | 86.0 ± 1.4 | 85.0, 87.0 |" in text
    assert "(not measured yet)" in text


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/*")), ids=lambda folder: folder.name)
def test_kept_results_hold_no_data_and_nothing_large(folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {"config.json", "result.json", "cost.json"} <= set(files)
    assert sum(files.values()) < 500_000
