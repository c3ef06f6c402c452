"""Lay out thousands of finished run folders, and time how long the commands that look through them take.

python benchmarks/many_runs.py [RUNS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ccmcl import Experiment
from ccmcl.files import write_json

ROUNDS = 5
METHODS = ("rehearsal", "bic", "condensation", "composite")


def save_run(out: Path, experiment: Experiment) -> None:
    """Write what a finished run leaves, but for its tensors."""
    folder = out / experiment.name
    folder.mkdir(parents=True)
    rows = [[0.5 if j <= i else None for j in range(5)] for i in range(5)]
    result = {
        "experiment": experiment.as_dict(),
        "accuracy": 0.5,
        "incremental_accuracy": 0.6,
        "forgetting": 0.1,
        "backward_transfer": -0.1,
        "accuracies": [0.9, 0.8, 0.7, 0.6, 0.5],
        "matrix": rows,
        "classes": [str(k) for k in range(10)],
        "groups": [[2 * i, 2 * i + 1] for i in range(5)],
        "confusion": [[100] * 10 for _ in range(10)],
        "per_class": [0.5] * 10,
        "memory": {"images": 40, "scalars": 15760, "bytes": 63080},
    }
    cost = {"seconds": 100.0, "operations": 10**12, "machine": {"threads": 1}, "versions": {}, "engine": {}}
    (folder / ".lock").touch()
    for name, value in {"config": {"experiment": experiment.as_dict()}, "cost": cost, "result": result}.items():
        write_json(folder / f"{name}.json", value)


def timed(arguments: list[str]) -> tuple[float, str]:
    """Run a command several times; return the median of the seconds and what it printed."""
    seconds, printed = [], ""
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        printed = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "ccmcl", *arguments], check=True, capture_output=True, text=True
        ).stdout
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), printed


def main(count: int) -> None:
    """Print a line of JSON for each command."""
    seeds = count // (len(METHODS) * 5) + 1
    with tempfile.TemporaryDirectory() as folder:
        out, table = Path(folder) / "runs", Path(folder) / "table.toml"
        settings = {"dataset": "mnist", "preset": "paper", "method": list(METHODS), "budget": [20, 40, 60, 80, 100]}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        table.write_text("\n".join([*lines, f"seed = {list(range(seeds))}"]))
        made = 0
        for seed in range(seeds):
            for method in METHODS:
                for budget in settings["budget"]:
                    if made < count:
                        given = {"dataset": "mnist", "preset": "paper", "method": method, "seed": seed}
                        save_run(out, Experiment.of(**given, budget=str(budget)))
                        made += 1
        for arguments in (["sweep", str(table), "--out", str(out), "--dry-run"], ["results", str(out)]):
            seconds, printed = timed(arguments)
            told = printed.strip().splitlines()[-1]
            line = {
                "command": arguments[0],
                "runs": count,
                "rounds": ROUNDS,
                "seconds": round(seconds, 2),
                "last": told,
            }
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
