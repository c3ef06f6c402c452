"""Learn a thousand classes of tiny pictures, ten at a time, and print how long each took and how much memory.

    python benchmarks/many_classes.py [CLASSES]

The time for a class should be the same at the beginning and at the end.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time

import numpy as np
import torch

from ccmcl import ContinualClassifier

AT_ONCE, PICTURES, SIDE = 10, 20, 8


def main(classes: int) -> None:
    """Learn, and print a line of JSON for every hundred classes and one at the end."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    classifier = ContinualClassifier(
        "1/class", width=16, outer=1, inner=2, matching=2, condense_batch=16, steps=10, batch=16
    )
    seconds: list[float] = []
    for start in range(0, classes, AT_ONCE):
        patterns = random.random((AT_ONCE, 1, SIDE, SIDE))
        noise = 0.2 * random.standard_normal((AT_ONCE, PICTURES, SIDE, SIDE))
        pictures = np.clip(patterns + noise, 0, 1).astype(np.float32).reshape(-1, SIDE, SIDE)
        labels = np.repeat(np.arange(start, start + AT_ONCE), PICTURES)
        begun = time.perf_counter()
        classifier.partial_fit(pictures, labels)
        seconds.append((time.perf_counter() - begun) / AT_ONCE)
        if (start + AT_ONCE) % 100 == 0:
            recent = statistics.median(seconds[-10:])
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(json.dumps({"classes": start + AT_ONCE, "seconds_per_class": round(recent, 4), "peak_mib": peak}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
