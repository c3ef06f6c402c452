"""The buffer: what is remembered of all the classes seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ccmcl.kinds import Composite, Remembered, count_of, nbytes, scalars


@dataclass(frozen=True)
class Memory(Mapping[int, Remembered]):
    """The buffer: what is remembered of each class, by its label. Never changed in place.

    >>> from ccmcl.kinds import Exemplars
    >>> memory = Memory().plus(3, Exemplars(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)))
    >>> memory.count, memory.scalars, memory.nbytes, memory.labels().tolist()
    (2, 128, 132, [3, 3])
    """

    classes: Mapping[int, Remembered] = field(default_factory=dict)

    def __getitem__(self, label: int) -> Remembered:
        return self.classes[label]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.classes))

    def __len__(self) -> int:
        return len(self.classes)

    def plus(self, label: int, memory: Remembered) -> Memory:
        """Add the memory of a class, or replace the one there is."""
        return Memory({**self.classes, label: memory})

    def images(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n c h w"]:
        """Return the images of all classes, in the order of their labels."""
        kept = list(self.values())
        parts = [one for one in kept if isinstance(one, Composite)]
        alike = {(one.weights.shape, one.components.shape, one.form) for one in parts}
        if len(parts) == len(kept) and len(alike) == 1:  # a thousand classes in one stroke
            numbers = [one.numbers() for one in parts]
            stacked = {name: torch.stack([one[name] for one in numbers]) for name in numbers[0]}
            return parts[0].form.decoded(stacked).flatten(0, 1).to(dtype)
        return torch.cat([memory.images().to(dtype) for memory in kept])

    def labels(self) -> Tensor:
        """Return the label of each image."""
        counts = [count_of(memory) for memory in self.values()]
        return torch.tensor(list(self), dtype=torch.int64).repeat_interleave(torch.tensor(counts, dtype=torch.int64))

    @property
    def count(self) -> int:
        """The number of images."""
        return sum(count_of(memory) for memory in self.values())

    @property
    def scalars(self) -> int:
        """The number of stored real numbers."""
        return sum(scalars(memory) for memory in self.values())

    @property
    def nbytes(self) -> int:
        """The exact payload of the file: every stored tensor, labels included."""
        return sum(nbytes(memory) for memory in self.values())
