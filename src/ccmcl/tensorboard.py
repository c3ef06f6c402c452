"""What a run tells, as TensorBoard shows it (the extra ``ccmcl[tensorboard]``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccmcl.errors import InputError
from ccmcl.progress import Reporter
from ccmcl.store import RunFolder

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:  # pragma: no cover
    raise InputError("TensorBoard is not installed: pip install 'ccmcl[tensorboard]'.") from error

FOLDER = "tensorboard"
MOST_IMAGES = 8


class Curves:
    """A reporter that writes curves into a run's folder, and hands all it hears on to another reporter.

    A run that goes on adds to its curves: each point is at its step of the job.
    """

    def __init__(self, inner: Reporter, path: Path) -> None:
        self.inner, self.path = inner, path / FOLDER
        self.writer: Any = None

    def begin(self, title: str, steps: Mapping[str, int]) -> None:
        """Begin a run that has work to do."""
        self.writer = SummaryWriter(self.path)
        self.inner.begin(title, steps)

    def step(self, name: str, about: str, done: int, total: int, loss: float) -> None:
        """Write the loss."""
        if math.isfinite(loss):
            self.writer.add_scalar(f"loss/{name}", loss, done)
        self.inner.step(name, about, done, total, loss)

    def line(self, text: str) -> None:
        """Hand a line on."""
        self.inner.line(text)

    def end(self) -> None:
        """See to it that what was written can be read, whatever comes next."""
        self.writer.flush()
        self.inner.end()

    def conclude(self, folder: RunFolder) -> None:
        """Write what the run came to: accuracy after each experience, its settings, and the images it remembers."""
        if self.writer is None:  # it was done before
            return
        result = folder.result()
        for place, (accuracy, line) in enumerate(zip(result["accuracies"], result["matrix"], strict=True), 1):
            self.writer.add_scalar("accuracy/all", accuracy, place)
            for group, value in enumerate(line):
                if value is not None:
                    self.writer.add_scalar(f"accuracy/experience {group + 1}", value, place)
        figures = {f"final/{name}": result[name] for name in ("accuracy", "incremental_accuracy", "forgetting")}
        self.writer.add_hparams(folder.experiment().as_dict(), figures, run_name=".")
        if folder.memory_file.is_file():
            for label, kept in folder.memory()[0].items():
                self.writer.add_images(f"memory/{label}", kept.images()[:MOST_IMAGES].clamp(0, 1))
        self.writer.close()
