"""Finished run folders made by hand, for tests of what reads them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from ccmcl.experiment import Experiment
from ccmcl.files import write_json
from ccmcl.kinds import Composite, Exemplars, Pixels, Remembered
from ccmcl.memory import Memory
from ccmcl.memory_file import save_memory
from ccmcl.store import RunFolder
from ccmcl.tensor_files import write_tensors


def finished(
    out: Path,
    accuracy: float | None = None,
    names: tuple[str, ...] = tuple("0123456789"),
    shape: tuple[int, int, int] = (1, 8, 8),
    pictures: bool = False,
    **settings: Any,
) -> RunFolder:
    """Write the folder of a run that came to an accuracy, as a run would leave it."""
    experiment = Experiment.of(shape=shape, **settings)
    folder = RunFolder.of(out, experiment)
    chance = random.Random(experiment.name)
    reached = chance.uniform(0.2, 0.9) if accuracy is None else accuracy
    groups = [[k, k + 1] for k in range(0, len(names), 2)]
    matrix = [[reached if j <= i else None for j in range(len(groups))] for i in range(len(groups))]
    count = 2
    result = {
        "experiment": experiment.as_dict(),
        "accuracy": reached,
        "incremental_accuracy": reached + 0.05,
        "forgetting": 0.1,
        "backward_transfer": -0.1,
        "accuracies": [reached] * len(groups),
        "matrix": matrix,
        "classes": list(names),
        "groups": groups,
        "per_class": [reached] * len(names),
        "memory": {"images": 20, "scalars": 1280, "bytes": 5160},
    }
    cost = {
        "seconds": chance.uniform(1, 100),
        "operations": chance.randrange(10**9, 10**12),
        "machine": {"threads": 1, "platform": "test"},
        "versions": {"ccmcl": "0"},
    }
    write_json(folder.config_file, {"experiment": experiment.as_dict(), "data": "test"})
    write_json(folder.path / "cost.json", cost)
    if pictures and experiment.method not in ("finetune", "joint"):
        generator = torch.Generator().manual_seed(0)
        kept: Remembered
        if experiment.method == "composite":
            kept = Composite.draw(generator, count, shape, torch.float32, 2 * count)
        elif experiment.method == "condensation":
            kept = Pixels.draw(generator, count, shape, torch.float32)
        else:
            kept = Exemplars(torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8))
        save_memory(Memory(dict.fromkeys(range(len(names)), kept)), folder.memory_file, names)
        if experiment.method in ("composite", "condensation"):
            images = {
                f"{k // 2}-{k}-{step}": torch.randint(256, (4, *shape), generator=generator, dtype=torch.uint8)
                for k in range(len(names))
                for step in (0, 1, 10)
            }
            write_tensors(folder.forming_file, images, {})
    write_json(folder.result_file, result)
    return folder
