"""The figures of the paper's Table II: final accuracy in percent, mean and deviation of five seeds, by buffer."""

from __future__ import annotations

from ccmcl.experiment import Experiment

Cell = tuple[float, float]

METHODS = ("rehearsal", "bic", "condensation", "composite")
TABLE: dict[str, dict[int, tuple[Cell, Cell, Cell, Cell]]] = {
    "mnist": {
        20: ((61.4, 2.9), (67.4, 4.4), (85.9, 0.8), (86.0, 2.7)),
        40: ((78.3, 1.46), (81.6, 2.9), (91.1, 0.8), (92.6, 0.4)),
        60: ((85.2, 0.7), (87.2, 1.3), (92.7, 0.3), (93.5, 0.4)),
        80: ((87.3, 1.1), (88.8, 0.9), (93.8, 0.3), (94.3, 0.2)),
        100: ((89.5, 1.3), (90.5, 1.6), (94.1, 0.3), (95.0, 0.1)),
    },
    "fashion-mnist": {
        20: ((54.9, 0.9), (59.7, 4.7), (69.6, 2.5), (69.5, 2.5)),
        40: ((61.4, 1.2), (68.0, 2.3), (72.6, 1.4), (74.5, 2.0)),
        60: ((67.1, 1.4), (72.1, 1.0), (73.7, 1.3), (76.3, 0.8)),
        80: ((69.8, 1.1), (73.3, 1.5), (75.8, 0.8), (77.0, 0.8)),
        100: ((71.6, 1.7), (73.7, 1.8), (76.1, 0.7), (77.5, 0.9)),
    },
    "svhn": {
        100: ((32.3, 1.8), (43.1, 1.6), (53.2, 0.8), (67.0, 0.8)),
        200: ((48.9, 2.9), (60.1, 2.0), (63.4, 1.0), (72.9, 0.7)),
        300: ((55.4, 1.0), (65.3, 0.9), (69.4, 1.1), (74.1, 0.7)),
        400: ((59.2, 0.7), (70.0, 0.9), (70.9, 0.3), (74.7, 0.5)),
        500: ((63.9, 0.6), (72.7, 1.0), (71.3, 1.1), (75.8, 0.5)),
    },
    "cifar10": {
        100: ((24.0, 0.8), (25.5, 1.1), (36.6, 0.7), (39.1, 0.7)),
        200: ((30.4, 0.5), (34.1, 1.1), (40.5, 0.4), (43.3, 0.4)),
        300: ((34.7, 0.5), (38.8, 0.4), (42.1, 0.9), (44.7, 0.4)),
        400: ((38.4, 0.5), (43.2, 1.0), (44.0, 0.9), (46.2, 0.4)),
        500: ((41.2, 0.5), (44.8, 0.9), (46.2, 0.7), (47.9, 0.7)),
    },
}


def comparable(experiment: Experiment) -> bool:
    """Say whether an experiment was judged as the paper's were: on the test set, two classes at a time, in order."""
    return not experiment.holdout and experiment.per_experience == "2" and experiment.order == "ascending"


def paper_figure(dataset: str, method: str, budget: str) -> Cell | None:
    """Look up what the paper reached, where it says.

    >>> paper_figure("cifar10", "composite", "100"), paper_figure("cifar10", "joint", "100")
    ((39.1, 0.7), None)
    """
    row = TABLE.get(dataset, {}).get(int(budget)) if budget.isdecimal() else None
    return row[METHODS.index(method)] if row is not None and method in METHODS else None
