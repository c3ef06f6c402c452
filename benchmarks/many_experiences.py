"""Run the same 250 classes in streams of more and more experiences, and print the peak memory of each run.

    python benchmarks/many_experiences.py [EXPERIENCES ...]

Pictures of 12×12 pixels. A stream that brings more *classes* holds more: a larger memory, head and table of answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SETTINGS = "--width 32 --outer 1 --inner 2 --matching 2 --condense-batch 16 --steps 20 --batch 32 --threads 1"
SIDE, TRAIN, TEST, CLASSES = 12, 40, 2000, 250


def save_set(path: Path, classes: int = CLASSES) -> None:
    """Write a data set of so many classes, each a random pattern with noise."""
    random = np.random.default_rng(0)
    patterns = random.random((classes, 1, SIDE, SIDE))

    def pictures(of_each: int) -> np.ndarray:
        noise = 0.2 * random.standard_normal((classes, of_each, SIDE, SIDE))
        return (np.clip(patterns + noise, 0, 1) * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)

    labels = np.arange(classes)
    of_test = TEST // classes
    np.savez(
        path,
        x_train=pictures(TRAIN),
        y_train=np.repeat(labels, TRAIN),
        x_test=pictures(of_test),
        y_test=np.repeat(labels, of_test),
    )


def main(lengths: list[int]) -> None:
    """Run each, and print a line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "patterns.npz"
        save_set(data)
        for experiences in lengths:
            command = ["run", "--dataset", str(data), "--per-experience", str(CLASSES // experiences)]
            command += ["--budget", "1/class", "--out", folder, "--json", "--quiet"]
            ran = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "ccmcl", *command, *SETTINGS.split()], check=True, capture_output=True
            )
            cost = json.loads(ran.stdout)["cost"]
            line = {"experiences": experiences, "peak_mib": cost["peak_memory_bytes"] >> 20}
            print(json.dumps(line | {"seconds": round(cost["seconds"], 1)}), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [5, 25, 125, 250])
