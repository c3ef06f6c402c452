"""What TensorBoard reads back of a run, with its own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from ccmcl.cli import main
from ccmcl.store import RunFolder

FLAGS = [
    "--preset=paper",
    "--width=4",
    "--outer=1",
    "--inner=3",
    "--matching=1",
    "--steps=5",
    "--per-experience=5",
    "--quiet",
    "--tensorboard",
]


def read(folder: Path) -> Any:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    return events


@pytest.mark.parametrize("command", [["run"], ["sweep", "--workers=1", "--threads=1"]])
def test_curves_accuracies_and_images_can_be_read(tmp_path: Path, command: list[str]) -> None:
    main([*command, *FLAGS, f"--out={tmp_path}"])
    (path,) = tmp_path.iterdir()
    folder, events = RunFolder(path), read(path)
    scalars = events.Tags()["scalars"]
    assert {"loss/learn 0", "loss/learn 1", "loss/condense 0-3", "accuracy/all", "accuracy/experience 2"} <= set(
        scalars
    )
    assert [point.step for point in events.Scalars("loss/learn 1")] == [1, 2, 3, 4, 5]
    found = [point.value for point in events.Scalars("accuracy/all")]
    assert found == pytest.approx(folder.result()["accuracies"])
    assert f"memory/{len(folder.memory()[0]) - 1}" in events.Tags()["images"]
    before = sorted(path.rglob("*"))
    main([*command, *FLAGS, f"--out={tmp_path}"])  # it is done: nothing is written again
    assert sorted(path.rglob("*")) == before
