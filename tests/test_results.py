"""Finished runs as a table: the right means, every format, and nothing in a cell that is not text."""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccmcl.cli import main
from ccmcl.errors import InputError
from ccmcl.published import METHODS, TABLE, paper_figure
from ccmcl.records import read_runs
from ccmcl.results import FORMATS, Figure, latex, markdown, rendered, table, telling
from studied import finished

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tmp_path = tmp_path / "runs"
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        finished(tmp_path, accuracy, seed=seed, method="composite", budget="20")
    finished(tmp_path, 0.4, method="rehearsal", budget="20")
    finished(tmp_path, 0.8, method="composite", budget="100")
    finished(tmp_path, 0.9, method="composite", dataset="mnist", preset="paper", shape=(1, 28, 28))
    return tmp_path


def test_runs_that_differ_in_the_seed_alone_are_one_row(runs: Path) -> None:
    rows = table(read_runs(runs))
    assert [(row.experiment.dataset, row.experiment.budget, row.experiment.method, row.n) for row in rows] == [
        ("digits", "20", "composite", 3),
        ("digits", "20", "rehearsal", 1),
        ("digits", "100", "composite", 1),
        ("mnist", "20", "composite", 1),
    ]
    assert rows[0].accuracy.mean == pytest.approx(0.6)
    assert rows[0].accuracy.std == pytest.approx(0.1)
    assert rows[1].accuracy.std is None
    assert rows[0].seeds == (0, 1, 2)


def test_time_is_that_of_the_runs_of_which_it_was_kept(tmp_path: Path) -> None:
    first, second = (finished(tmp_path, seed=seed) for seed in (0, 1))
    (second.path / "cost.json").unlink()
    (row,) = table(read_runs(tmp_path))
    assert (row.n, row.seconds) == (2, first.cost()["seconds"])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_figure_is_the_mean_and_the_deviation_of_a_sample(values: list[float]) -> None:
    figure = Figure.of(values)
    assert figure.mean == pytest.approx(sum(values) / len(values))
    assert figure.std == pytest.approx(statistics.stdev(values))


def test_settings_are_shown_where_they_tell_rows_apart(runs: Path) -> None:
    assert telling(table(read_runs(runs))) == []
    finished(runs, 0.7, method="composite", budget="20", updates=7)
    assert telling(table(read_runs(runs))) == ["updates"]
    assert "updates" in rendered(table(read_runs(runs)), "markdown").splitlines()[0]


def test_what_comes_with_a_preset_is_not_said_beside_it(tmp_path: Path) -> None:
    finished(tmp_path, method="condensation", preset="fast")
    assert telling(table(read_runs(tmp_path))) == []
    finished(tmp_path, method="composite", preset="paper")
    assert telling(table(read_runs(tmp_path))) == ["preset"]
    finished(tmp_path, method="condensation", preset="paper")
    assert telling(table(read_runs(tmp_path))) == ["preset"]
    finished(tmp_path, method="rehearsal", preset="best")
    assert telling(table(read_runs(tmp_path))) == ["preset"]
    finished(tmp_path, method="condensation", preset="paper", outer=7)
    assert telling(table(read_runs(tmp_path))) == ["preset", "outer"]


def test_what_an_accuracy_is_of_is_always_said(tmp_path: Path) -> None:
    finished(tmp_path, holdout=100, order="random")
    assert telling(table(read_runs(tmp_path))) == ["order", "holdout"]


def test_runs_of_one_experiment_and_seed_count_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = finished(tmp_path, 0.5)
    for name, accuracy in (("a-copy", 0.9), ("z-copy", 0.1)):
        shutil.copytree(now.path, tmp_path / name)
        path = tmp_path / name / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": accuracy}))
    (row,) = table(read_runs(tmp_path))
    assert (row.n, row.accuracy.mean) == (1, 0.5)
    assert [name for name in ("a-copy", "z-copy", now.path.name) if f"{name} is left out" in caplog.text] == [
        "a-copy",
        "z-copy",
    ]


def test_infinite_numbers_are_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    path = folder.path / "cost.json"
    path.write_text(path.read_text().replace('"platform": "test"', '"platform": 1e999'))
    with pytest.raises(InputError, match=r"cost\.json is damaged"):
        list(read_runs(tmp_path))


def test_every_format_has_every_row(runs: Path, capsys: Capture) -> None:
    for form in FORMATS:
        main(["results", str(runs), "--format", form])
        printed = capsys.readouterr().out
        assert "rehearsal" in printed
        assert ("0.6" if form in ("csv", "json") else "60.0") in printed, form
        if form not in ("csv", "json"):
            assert "60.0 ± 10.0" in printed.replace(r"$\pm$", "±")


def test_formats_for_programs_can_be_read_back(runs: Path) -> None:
    rows = table(read_runs(runs))
    as_json = json.loads(rendered(rows, "json"))
    assert [one["accuracy"]["mean"] for one in as_json] == [row.accuracy.mean for row in rows]
    assert as_json[0]["seeds"] == [0, 1, 2]
    lines = list(csv.DictReader(io.StringIO(rendered(rows, "csv"))))
    assert [float(line["accuracy_mean"]) for line in lines] == [row.accuracy.mean for row in rows]
    assert [line["method"] for line in lines] == [row.experiment.method for row in rows]


def test_cells_stay_text(tmp_path: Path) -> None:
    finished(tmp_path, 0.5, dataset=r"a|b_$%&\{}.npz", shape=(1, 8, 8))
    rows = table(read_runs(tmp_path))
    assert rendered(rows, "markdown").splitlines()[2].count("|") - rendered(rows, "markdown").count(r"\|") == 10
    assert r"a|b\_\$\%\&\textbackslash{}\{\}.npz" in rendered(rows, "latex")
    assert markdown("<b>") == r"\<b\>"
    assert latex(r"1 $\pm$ 2") == r"1 $\pm$ 2"


def test_unknown_format_is_a_sentence(runs: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'latex'"):
        rendered(table(read_runs(runs)), "latexx")


def test_unfinished_runs_and_other_files_are_passed_over(runs: Path) -> None:
    (runs / "begun").mkdir()
    (runs / "begun" / "config.json").write_text("{}")
    (runs / "report.html").write_text("a page")
    assert len(list(read_runs(runs))) == 6


def test_damaged_result_is_named(runs: Path) -> None:
    folder = finished(runs, 0.5, seed=9)
    folder.result_file.write_text("{")
    with pytest.raises(InputError, match=folder.path.name):
        list(read_runs(runs))


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("result", {"accuracy": float("nan")}),
        ("result", {"accuracy": float("inf")}),
        ("result", {"accuracy": "high"}),
        ("result", {"accuracies": [None] * 5}),
        ("result", {"groups": [[0.0]] * 5}),
        ("result", {"groups": [[99]] * 5}),
        ("result", {"matrix": [[0.5]]}),
        ("result", {"memory": {"bytes": 10**400}}),
        ("result", {"memory": {"bytes": -1}}),
        ("cost", {"operations": "x"}),
        ("cost", {"operations": None}),
        ("cost", {"seconds": float("nan")}),
        ("cost", {"seconds": -1.0}),
        ("cost", {"machine": {"threads": 0}}),
        ("config", {"experiment": {"ratio": 10**400}}),
        ("config", {"experiment": 3}),
        ("config", {"experiment": {"tomorrow": 1}}),
    ],
    ids=str,
)
def test_folder_with_nonsense_in_it_is_one_sentence(
    tmp_path: Path, capsys: Capture, file: str, changed: dict[str, Any]
) -> None:
    folder = finished(tmp_path, 0.5)
    path = folder.path / f"{file}.json"
    values = json.loads(path.read_text())
    if file == "config" and isinstance(changed["experiment"], dict):
        changed = {"experiment": {**values["experiment"], **changed["experiment"]}}
    path.write_text(json.dumps({**values, **changed}))
    for command in (["results", str(tmp_path)], ["report", str(tmp_path), "--out", str(tmp_path / "page.html")]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert folder.path.name in capsys.readouterr().err


def test_control_signs_do_not_reach_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    finished(tmp_path, 0.5, dataset="\x1b[31mred.npz")
    for form in FORMATS:
        main(["results", str(tmp_path), "--format", form])
        assert "\x1b" not in capsys.readouterr().out, form


def test_no_finished_run_is_a_sentence(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["results", str(tmp_path)])
    assert ended.value.code == 2
    assert "no finished run" in capsys.readouterr().err


def snippet(language: str) -> str:
    """Take an example out of the documentation."""
    text = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text("utf-8")
    return next(part.split("```")[0] for part in text.split("```" + language)[1:] if "result.json" in part)


def test_documentation_reads_the_folder_with_pandas(runs: Path) -> None:
    names: dict[str, Any] = {}
    exec(snippet("python"), names)
    assert names["frame"]["accuracy"].mean() == pytest.approx((0.5 + 0.6 + 0.7 + 0.4 + 0.8 + 0.9) / 6)
    assert set(names["frame"]["experiment.method"]) == {"composite", "rehearsal"}


def test_documentation_reads_the_folder_with_duckdb(runs: Path) -> None:
    found = duckdb.connect().execute(snippet("sql")).fetchall()
    assert ("digits", "composite", "20", 3) in [row[:4] for row in found]


def test_figures_of_the_paper_are_as_printed() -> None:
    assert paper_figure("mnist", "composite", "20") == (86.0, 2.7)
    assert paper_figure("cifar10", "bic", "500") == (44.8, 0.9)
    assert paper_figure("svhn", "condensation", "300") == (69.4, 1.1)
    assert paper_figure("fashion-mnist", "rehearsal", "80") == (69.8, 1.1)
    for missing in (("digits", "composite", "20"), ("mnist", "joint", "20"), ("mnist", "bic", "2KiB")):
        assert paper_figure(*missing) is None
    assert sum(len(row) for rows in TABLE.values() for row in rows.values()) == 4 * 5 * len(METHODS)
