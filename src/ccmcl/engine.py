"""The few heavy steps that condensing and learning share, each one pure function of tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from ccmcl.memory import Composite, Pixels
from ccmcl.nets import ConvNet, Params
from ccmcl.objectives import gradient_distance, matched

Learned = Pixels | Composite


def loss(
    net: ConvNet,
    params: Params,
    images: Float[Tensor, "n c h w"],
    labels: Int64[Tensor, "n"],
    weights: Float[Tensor, "n"],
) -> Float[Tensor, ""]:
    """Compute the weighted mean of the cross-entropy; the weights add up to 1."""
    return (F.cross_entropy(net(params, images), labels, reduction="none") * weights).sum()


def loss_gradient(
    net: ConvNet,
    params: Params,
    images: Tensor,
    labels: Tensor,
    weights: Tensor,
    names: list[str] | None = None,
) -> Params:
    """Differentiate the loss by the parameters called ``names`` (all of them where none are named)."""
    chosen = {name: params[name] for name in (names or params)}

    def of(part: Params) -> Tensor:
        return loss(net, params | part, images, labels, weights)

    gradient: Params = torch.func.grad(of)(chosen)
    return gradient


def match(
    net: ConvNet, params: Params, real: Params, kind: type[Learned], tensors: dict[str, Tensor], label: int
) -> tuple[dict[str, Tensor], Float[Tensor, ""]]:
    """Measure how far a memory's gradient is from the real one, and differentiate that by the memory."""
    names = matched(params)

    def distance(stored: dict[str, Tensor]) -> Tensor:
        images = kind(**stored).images()
        labels = torch.full((len(images),), label, device=images.device)
        gradient = loss_gradient(net, params, images, labels, even(len(images), images), names)
        return gradient_distance(real, gradient)

    gradients, value = torch.func.grad_and_value(distance)(tensors)
    return gradients, value


def descend(params: Params, gradients: Params, rate: float) -> Params:
    """Take one plain gradient step; parameters without a gradient stay.

    The result is laid out plainly whatever the layout of the gradient, as it would come back from a file.
    """
    return {
        name: (tensor - rate * gradients[name]).contiguous() if name in gradients else tensor
        for name, tensor in params.items()
    }


def even(count: int, like: Tensor) -> Float[Tensor, "n"]:
    """Weigh ``count`` images alike."""
    return torch.full((count,), 1 / count, dtype=like.dtype, device=like.device)


def draw(
    images: Float[Tensor, "n c h w"], labels: Int64[Tensor, "n"], batch: int, generator: Generator
) -> tuple[Float[Tensor, "m c h w"], Int64[Tensor, "m"], Float[Tensor, "m"]]:
    """Draw a batch with replacement: its distinct images, their labels, and how much of the batch each one is.

    InstanceNorm sees every image by itself, so a weighting of the distinct images has exactly the gradient of
    the batch. Where the batch is smaller than what is drawn from, it is returned as it was drawn.
    """
    drawn = torch.randint(len(images), (batch,), generator=generator)
    if len(images) <= batch:
        counts = torch.bincount(drawn, minlength=len(images))
        return images, labels, counts.to(images) / batch
    return images[drawn], labels[drawn], even(batch, images)
