"""From counts of right and wrong answers to accuracy, forgetting and backward transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ccmcl.learn import AS_IT_IS, Views, logits_of
from ccmcl.loop import CPU
from ccmcl.nets import ConvNet, Params

Confusion = list[list[int]]
Tally = list[list[int]]
"""For each class, how many test images there are and how many of them are right."""


def confusion(
    net: ConvNet,
    params: Params,
    pixels: UInt8[Tensor, "n c h w"],
    labels: Int64[Tensor, "n"],
    classes: int,
    device: torch.device = CPU,
    views: Views = AS_IT_IS,
) -> Confusion:
    """Count, for each class (row), what it was taken for (column), seen so."""
    taken = logits_of(net, params, pixels, device=device, views=views).argmax(1)
    counts = torch.bincount(labels * classes + taken, minlength=classes * classes)
    rows: Confusion = counts.reshape(classes, classes).tolist()
    return rows


def tally(counts: Confusion) -> Tally:
    """Count the images of each class, and those that are right.

    >>> tally([[9, 1], [2, 8]])
    [[10, 9], [10, 8]]
    """
    return [[sum(row), row[k]] for k, row in enumerate(counts)]


@dataclass(frozen=True)
class Scores:
    """The accuracies of a run, from the tallies taken after each experience.

    ``tallies[i]`` covers the classes seen up to experience i; ``groups[j]`` are the classes of experience j.
    R[i][j] below is the share of the test images of experience j that are right after experience i.

    >>> after_first = [[9, 1], [2, 8]]
    >>> after_second = [[6, 0, 4], [0, 8, 2], [0, 0, 10]]
    >>> scores = Scores([tally(after_first), tally(after_second)], ((0, 1), (2,)))
    >>> scores.matrix
    [[0.85, None], [0.7, 1.0]]
    >>> scores.accuracy, scores.incremental, round(scores.forgetting, 6), round(scores.backward_transfer, 6)
    (0.8, 0.825, 0.15, -0.15)
    """

    tallies: Sequence[Tally]
    groups: Sequence[Sequence[int]]

    @cached_property
    def matrix(self) -> list[list[float | None]]:
        """R, the accuracy on experience j (column) after experience i (row); None for classes not met yet."""
        rows: list[list[float | None]] = []
        for i, counts in enumerate(self.tallies):
            met = [_share(counts, group) for group in self.groups[: i + 1]]
            rows.append([*met, *[None] * (len(self.groups) - i - 1)])
        return rows

    @property
    def accuracies(self) -> list[float]:
        """A_i, the share of all test images of the classes seen that are right after experience i."""
        return [_share(counts, range(len(counts))) for counts in self.tallies]

    @property
    def accuracy(self) -> float:
        """A_T, average accuracy over all classes seen, after the last experience: the paper's figure."""
        return self.accuracies[-1]

    @property
    def incremental(self) -> float:
        """Average incremental accuracy, (1/T) Σ_i A_i."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def forgetting(self) -> float:
        """(1/(T−1)) Σ_{j<T} (max_{i<T} R[i][j] − R[T][j]): what was lost from the best there was; 0 if T = 1."""
        best = [max(row[j] or 0.0 for row in self.matrix[j:-1]) for j in range(len(self.tallies) - 1)]
        return _mean([top - (self.matrix[-1][j] or 0.0) for j, top in enumerate(best)])

    @property
    def backward_transfer(self) -> float:
        """(1/(T−1)) Σ_{j<T} (R[T][j] − R[j][j]): what later experiences did to earlier ones; 0 if T = 1."""
        matrix = self.matrix
        return _mean([(matrix[-1][j] or 0.0) - (matrix[j][j] or 0.0) for j in range(len(matrix) - 1)])

    @property
    def per_class(self) -> list[dict[str, int]]:
        """For each class, how many test images there are and how many are right after the last experience."""
        return [{"images": images, "right": right} for images, right in self.tallies[-1]]

    def as_dict(self) -> dict[str, object]:
        """Lay all of it out for a file."""
        return {
            "accuracy": self.accuracy,
            "incremental_accuracy": self.incremental,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
            "accuracies": self.accuracies,
            "matrix": self.matrix,
            "per_class": self.per_class,
        }


def _share(counts: Tally, classes: Sequence[int]) -> float:
    images = sum(counts[k][0] for k in classes)
    return sum(counts[k][1] for k in classes) / images if images else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
