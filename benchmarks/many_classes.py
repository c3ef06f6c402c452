"""Learn a thousand classes of tiny pictures, ten at a time, and print how long each took and how much memory.

    python benchmarks/many_classes.py [CLASSES]

The time for a class should be the same at the beginning and at the end. A machine is not equally fast all day, so a
second classifier that knows ten classes learns the same pictures in turn with the first, every time from the same
file: what counts is the ratio of the two.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ccmcl import ContinualClassifier

AT_ONCE, PICTURES, SIDE = 10, 20, 8


def experiences(seed: int) -> Iterator[np.ndarray]:
    """Ten new classes of pictures after another, without end."""
    random = np.random.default_rng(seed)
    while True:
        patterns = random.random((AT_ONCE, 1, SIDE, SIDE))
        noise = 0.2 * random.standard_normal((AT_ONCE, PICTURES, SIDE, SIDE))
        yield np.clip(patterns + noise, 0, 1).astype(np.float32).reshape(-1, SIDE, SIDE)


def learn(classifier: ContinualClassifier, pictures: np.ndarray, first: int) -> float:
    """Seconds for one of the ten classes numbered from ``first``."""
    labels = np.repeat(np.arange(first, first + AT_ONCE), PICTURES)
    begun = time.perf_counter()
    classifier.partial_fit(pictures, labels)
    return (time.perf_counter() - begun) / AT_ONCE


def main(classes: int) -> None:
    """Learn, and print a line of JSON for every hundred classes."""
    torch.set_num_threads(1)
    stream = experiences(0)
    classifier = ContinualClassifier(
        "1/class", width=16, outer=1, inner=2, matching=2, condense_batch=16, steps=10, batch=16
    )
    learn(classifier, next(stream), 0)
    with tempfile.TemporaryDirectory() as folder:
        young = Path(folder) / "young.safetensors"
        classifier.save(young)
        seconds: list[tuple[float, float]] = []
        for start in range(AT_ONCE, classes, AT_ONCE):
            pictures = next(stream)
            fresh = ContinualClassifier.load(young)
            pair = (learn(classifier, pictures, start), learn(fresh, pictures, AT_ONCE))
            seconds.append(pair)
            if (start + AT_ONCE) % 100 == 0:
                recent = seconds[-10:]
                old, new = (statistics.median(each) for each in zip(*recent, strict=True))
                line = {
                    "classes": start + AT_ONCE,
                    "seconds_per_class": round(old, 4),
                    "seconds_per_class_at_10": round(new, 4),
                    "ratio": round(statistics.median(one / other for one, other in recent), 3),
                    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
