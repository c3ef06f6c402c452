"""The few heavy steps that condensing and learning share, each a pure function of tensors, compiled or as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from ccmcl import optimisers
from ccmcl.compiling import Graphs, code_folder
from ccmcl.forms import Form
from ccmcl.nets import ConvNet, Params, outputs_of
from ccmcl.objectives import gradient_distance, matched
from ccmcl.threads import limited, shared_out, side_by_side
from ccmcl.tiles import tiled

Batch = tuple[Tensor, ...]
"""Images, labels, weights and what else a judge wants of each image."""
BLOCK_PIXELS = 1 << 15
"""Pixels that are computed at once."""
MIXED = 64
"""Images of a batch that are computed at once, about, where they have a part in each other."""
SHUT = -1e30
"""The bias of an output that no class has yet: it never wins and never learns."""


@runtime_checkable
class Judge(Protocol):
    """A loss that is a sum over images, so that the gradient of a batch is the sum of those of its parts.

    It is hashable, and two that are equal compute the same. An image of weight 0 adds nothing. Where the network mixes
    the images of a batch, these are the images of a part.
    """

    @property
    def net(self) -> ConvNet:
        """The network that is judged."""
        ...

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        """Compute the loss of parameters on the tensors of a batch."""
        ...

    def widened(self, batch: Batch, outputs: int) -> Batch:
        """Make a batch fit a network of so many outputs, those that are new being shut."""
        ...


@dataclass(frozen=True)
class Classify:
    """Judges by the cross-entropy of the labels; the weights of a batch add up to 1."""

    net: ConvNet

    def __call__(
        self,
        params: Params,
        images: Float[Tensor, "n c h w"],
        labels: Int64[Tensor, "n"],
        weights: Float[Tensor, "n"],
    ) -> Float[Tensor, ""]:
        """Compute the weighted sum."""
        return (F.cross_entropy(self.net(params, images), labels, reduction="none") * weights).sum()

    def widened(self, batch: Batch, outputs: int) -> Batch:  # noqa: ARG002
        """Labels fit any number of outputs."""
        return batch


@dataclass(frozen=True)
class Answer:
    """The logits of images."""

    net: ConvNet

    def __call__(self, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        """Compute them."""
        return self.net(params, images)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a loss by all parameters, and the loss."""

    judge: Judge

    def __call__(self, params: Params, *batch: Tensor) -> tuple[Params, Tensor]:
        """Differentiate."""
        return gradient_of(self.judge, params, params, batch)


@dataclass(frozen=True)
class Update:
    """One matching update: memory → images → gradient → distance → gradient of the memory → memory."""

    net: ConvNet
    form: Form
    optimiser: str
    rate: float

    def __call__(
        self, params: Params, real: Params, tensors: Params, slots: Params, label: Int64[Tensor, ""], kept: Params
    ) -> tuple[Params, Params, Float[Tensor, ""]]:
        """Return the memory and its optimiser after the update, and the distance before it."""
        gradients, distance = match(self.net, params, real, self.form, tensors, label, kept)
        return *optimisers.update(self.optimiser, self.rate, tensors, gradients, slots), distance


@dataclass(frozen=True)
class Engine:
    """How the heavy steps are computed. Each saving can be switched off by itself: what comes out is the same.

    ``once`` computes the real gradient once for each state of a network, not for each update of the memory;
    ``reuse`` steps the network by gradients that are there already; ``weighting`` takes a draw with replacement
    as a weighting of the distinct images; ``graphs`` are compiled, None computes operation by operation, with
    ``tiles`` at least the convolutions by machine code of our own (graphs have these too).
    """

    once: bool = True
    reuse: bool = True
    weighting: bool = True
    graphs: Graphs | None = None
    tiles: bool = False

    def gradient(self, judge: Judge, params: Params, batch: Batch) -> tuple[Params, Float[Tensor, ""]]:
        """Differentiate a loss, block by block: what a block needs stays in the cache of the processor."""
        outputs, function = outputs_of(params), Gradient(judge)
        if self.graphs is not None:
            room = capacity(outputs)
            params, batch = widened(params, room), judge.widened(batch, room)
        blocks = list(_evenly(batch, MIXED) if judge.net.mixes else self._blocks(batch, judge.net))
        total: Params = {}
        value = batch[0].new_zeros(())
        for part, loss in self._each(function, params, blocks):
            value = value + loss
            if not total:
                total = part
            else:
                torch._foreach_add_(list(total.values()), list(part.values()))
        return {name: _cut(name, tensor, outputs).contiguous() for name, tensor in total.items()}, value

    def update(
        self, function: Update, params: Params, real: Params, tensors: Params, slots: Params, label: Tensor
    ) -> tuple[Params, Params, Float[Tensor, ""]]:
        """Update a memory once."""
        result: tuple[Params, Params, Tensor] = self.run(
            function, params, real, tensors, slots, label, function.form.rounded(tensors)
        )
        return result

    def features(
        self, function: Any, net: ConvNet, params: Params, images: Tensor, table: Tensor
    ) -> Float[Tensor, "n f"]:
        """Compute features, block by block."""
        batch = (images, table.expand(len(images), -1))
        blocks = self._blocks(batch, net)
        rows = [self.run(function, params, *(part.contiguous() for part in block)) for block in blocks]
        return torch.cat(rows)[: len(images)]

    @torch.no_grad()
    def logits(self, net: ConvNet, params: Params, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        """Compute logits, block by block."""
        outputs = outputs_of(params)
        if self.graphs is not None:
            params = widened(params, capacity(outputs))
        rows = self._each(Answer(net), params, list(self._blocks((images,), net)))
        return torch.cat(list(rows))[: len(images), :outputs]

    def run(self, function: Any, *arguments: Any) -> Any:
        """Compute a function of tensors, compiled or as it is; it tells by its hash what it computes."""
        if self.graphs is not None:
            return self.graphs(function, *arguments)
        with tiled(code_folder() if self.tiles else None):
            return function(*arguments)

    def _each(self, function: Any, params: Params, blocks: Sequence[Batch]) -> Iterable[Any]:
        """Compute a function of each block; on the CPU side by side, once it is compiled for all of them."""

        def of(block: Batch) -> Any:
            return self.run(function, params, *block)

        if blocks[0][0].device.type != "cpu":
            return map(of, blocks)
        if self.graphs is not None:
            with limited(shared_out(len(blocks))[1]):
                if not all(self.graphs.has(function, params, *block) for block in blocks):
                    return [of(block) for block in blocks]
        return side_by_side(of, blocks)

    def _blocks(self, batch: Batch, net: ConvNet) -> Iterator[Batch]:
        """Cut a batch into blocks; for compiled graphs they are of two sizes, the last filled up with weight 0."""
        large = block_size(net)
        small = large // 4 if self.graphs is not None else 1
        count = len(batch[0])
        missing = -count % small
        if missing:
            batch = tuple(F.pad(part, (0, 0) * (part.ndim - 1) + (0, missing)) for part in batch)
            count += missing
        start = 0
        while start < count:
            rest = count - start
            size = large if rest >= large else small if self.graphs is not None else rest
            yield tuple(part[start : start + size] for part in batch)
            start += size


def _evenly(batch: Batch, size: int) -> Iterator[Batch]:
    """Deal a batch out into blocks of about a size, and add nothing.

    Batches have new pictures first and remembered ones behind: each block has its share of both.
    """
    blocks = max(1, round(len(batch[0]) / size))
    for first in range(blocks):
        yield tuple(part[first::blocks].contiguous() for part in batch)


def block_size(net: ConvNet) -> int:
    """Choose how many images are computed at once: as many as fill a core's cache with the first block's output.

    Where images have a part in each other, that is decided by how well they stand for all.
    """
    if net.mixes:
        return MIXED
    _, height, width = net.shape
    fitting = BLOCK_PIXELS // (height * width)
    return min(256, max(4, 1 << max(0, fitting.bit_length() - 1)))


def capacity(outputs: int) -> int:
    """Round the outputs of a network up, so that few sizes occur.

    >>> [capacity(outputs) for outputs in (2, 10, 11, 100)]
    [10, 10, 20, 160]
    """
    room = 10
    while room < outputs:
        room *= 2
    return room


def widened(params: Params, outputs: int) -> Params:
    """Give a network outputs that are shut."""
    more = outputs - outputs_of(params)
    if not more:
        return params
    return params | {
        "head.weight": F.pad(params["head.weight"], (0, 0, 0, more)),
        "head.bias": F.pad(params["head.bias"], (0, more), value=SHUT),
    }


def _cut(name: str, tensor: Tensor, outputs: int) -> Tensor:
    return tensor[:outputs] if name.startswith("head.") else tensor


def gradient_of(judge: Judge, params: Params, chosen: Params, batch: Batch) -> tuple[Params, Float[Tensor, ""]]:
    """Differentiate a loss by the ``chosen`` ones of the parameters, and return the loss as well."""

    def of(part: Params) -> Tensor:
        return judge({**params, **part}, *batch)

    gradient, value = torch.func.grad_and_value(of)(dict(chosen))
    return gradient, value


def match(
    net: ConvNet,
    params: Params,
    real: Params,
    form: Form,
    tensors: dict[str, Tensor],
    label: Tensor,
    kept: Params | None = None,
) -> tuple[dict[str, Tensor], Float[Tensor, ""]]:
    """Measure how far a memory's gradient is from the real one, and differentiate that by the memory."""
    chosen = {name: params[name] for name in matched(params)}

    def distance(stored: dict[str, Tensor]) -> Tensor:
        images = form.images(stored, kept=kept)
        batch = (images, label.expand(len(images)), even(len(images), images))
        gradient, _ = gradient_of(Classify(net), params, chosen, batch)
        return gradient_distance(real, gradient)

    gradients, value = torch.func.grad_and_value(distance)(tensors)
    return gradients, value


def descend(params: Params, gradients: Params, rate: float) -> Params:
    """Take one plain gradient step; parameters without a gradient stay."""
    return {name: tensor - rate * gradients[name] if name in gradients else tensor for name, tensor in params.items()}


def even(count: int, like: Tensor) -> Float[Tensor, "n"]:
    """Weigh ``count`` images alike."""
    return torch.full((count,), 1 / count, dtype=like.dtype, device=like.device)


def weighed(
    images: Float[Tensor, "n c h w"],
    labels: Shaped[Tensor, "n *k"],
    drawn: Int64[Tensor, "b"],
    weighting: bool = True,
) -> tuple[Float[Tensor, "m c h w"], Shaped[Tensor, "m *k"], Float[Tensor, "m"]]:
    """Make a batch of the images drawn, with repeats: the distinct images, and how much of the batch each one is.

    InstanceNorm sees every image by itself, so a weighting of the distinct images has exactly the gradient of
    the batch. Where the batch is smaller than what is drawn from, it is returned as it was drawn.

    >>> images, labels = torch.rand(3, 1, 4, 4), torch.tensor([7, 8, 9])
    >>> _, _, weights = weighed(images, labels, torch.tensor([0, 0, 2, 0]))
    >>> weights
    tensor([0.7500, 0.0000, 0.2500])
    """
    if weighting and len(images) <= len(drawn):
        times = images.new_zeros(len(images)).index_add_(0, drawn, images.new_ones(len(drawn)))
        return images, labels, times / len(drawn)
    return images[drawn], labels[drawn], even(len(drawn), images)
