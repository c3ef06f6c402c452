"""Algorithms 1 and 2 written down line by line, with no thought of speed: the reference for proof and for measurement.

Nothing of the library's mathematics is used here: the network is made of torch.nn layers, gradients come from
torch.autograd, updates from torch.optim. Random numbers are drawn in the documented order from the generator.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn


class Net(nn.Module):
    """Three blocks of convolution, InstanceNorm, ReLU and average pooling, then a linear layer."""

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        filters: int,
        blocks: int,
        outputs: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList()
        self.norms = nn.ModuleList()
        for _ in range(blocks):
            self.convolutions.append(nn.Conv2d(channels, filters, 3, padding=1))
            self.norms.append(nn.InstanceNorm2d(filters, affine=True))
            channels, height, width = filters, height // 2, width // 2
        self.head = nn.Linear(channels * height * width, outputs)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nn.functional.avg_pool2d(torch.relu(norm(convolution(x))), 2)
        result: Tensor = self.head(x.flatten(1))
        return result

    def reinitialise(self, generator: Generator) -> None:
        """Draw the weights uniformly after Glorot, layer by layer; biases 0, norms 1 and 0."""
        with torch.no_grad():
            for layer in [*self.convolutions, self.head]:
                assert isinstance(layer, nn.Conv2d | nn.Linear)
                outgoing, incoming = layer.weight.shape[:2]
                field = 9 if isinstance(layer, nn.Conv2d) else 1
                limit = (6 / (field * incoming + field * outgoing)) ** 0.5
                layer.weight.copy_(
                    limit * (2 * torch.rand(layer.weight.shape, generator=generator, dtype=layer.weight.dtype) - 1)
                )
                assert layer.bias is not None
                layer.bias.zero_()
            for norm in self.norms:
                assert isinstance(norm, nn.InstanceNorm2d)
                norm.weight.fill_(1.0)
                norm.bias.zero_()

    def matched(self) -> list[nn.Parameter]:
        """The weight matrices and kernels, whose gradients are compared."""
        return [parameter for parameter in self.parameters() if parameter.ndim >= 2]


def distance(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Σ over layers, Σ over output nodes, of 1 − cosine."""
    cosines = [nn.functional.cosine_similarity(x.flatten(1), y.flatten(1)) for x, y in zip(a, b, strict=True)]
    return (1 - torch.cat(cosines)).sum()


def loss_on(net: Net, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy."""
    return nn.functional.cross_entropy(net(images), labels)


def mixed(components: Tensor, weights: Tensor) -> Tensor:
    """x_j = σ(Σ_i w_ij c_i)."""
    return torch.sigmoid(torch.tensordot(weights.T, components, 1))


def images_of(memory: list[Tensor]) -> Tensor:
    """The images of a memory: of components and weights, or free ones."""
    return mixed(*memory) if len(memory) == 2 else memory[0]


def memory_distance(net: Net, memory: list[Tensor], label: int, real: list[Tensor]) -> Tensor:
    """D(g_T, g_M) as a differentiable function of the memory."""
    images = images_of(memory)
    loss = loss_on(net, images, torch.full((len(images),), label))
    return distance(real, list(torch.autograd.grad(loss, net.matched(), create_graph=True)))


def algorithm_1(
    net: Net,
    pixels: Tensor,
    label: int,
    memory: list[Tensor],
    buffer: tuple[Tensor, Tensor] | None,
    generator: Generator,
    *,
    outer: int,
    inner: int,
    matching: int,
    training: int,
    batch: int,
    rate: float,
    network_rate: float,
    optimiser: str,
) -> list[Tensor]:
    """Condense the pictures of one class."""
    memory = [tensor.clone().requires_grad_() for tensor in memory]  # 1: initialised by the caller
    rules: dict[str, torch.optim.Optimizer] = {
        "rmsprop": torch.optim.RMSprop(memory, rate, alpha=0.9, eps=1e-7),
        "sgd": torch.optim.SGD(memory, rate),
        "adam": torch.optim.Adam(memory, rate),
    }
    condensing = rules[optimiser]
    for _ in range(outer):  # 2
        net.reinitialise(generator)  # 3
        learning = torch.optim.SGD(net.parameters(), network_rate)
        for _ in range(inner):  # 4
            chosen = torch.randperm(len(pixels), generator=generator)[:batch]  # 5
            images = pixels[chosen].to(memory[0].dtype) / 255
            labels = torch.full((len(images),), label)
            for _ in range(matching):  # 9
                real = torch.autograd.grad(loss_on(net, images, labels), net.matched())  # 7
                condensing.zero_grad()
                torch.autograd.backward(memory_distance(net, memory, label, list(real)), inputs=memory)  # 8
                condensing.step()  # 10
            both, both_labels = images, labels
            if buffer is not None:  # 12
                drawn = torch.randint(len(buffer[0]), (len(images),), generator=generator)
                both = torch.cat([images, buffer[0][drawn]])
                both_labels = torch.cat([labels, buffer[1][drawn]])
            for _ in range(training):  # 13
                learning.zero_grad()
                torch.autograd.backward(loss_on(net, both, both_labels))
                learning.step()  # 14
    return [tensor.detach() for tensor in memory]


def algorithm_2(
    net: Net, images: Tensor, labels: Tensor, generator: Generator, *, steps: int, batch: int, rate: float
) -> dict[str, Tensor]:
    """Train a new network from the buffer alone."""
    net.reinitialise(generator)
    learning = torch.optim.SGD(net.parameters(), rate)
    for _ in range(steps):
        drawn = torch.randint(len(images), (batch,), generator=generator)
        learning.zero_grad()
        torch.autograd.backward(loss_on(net, images[drawn], labels[drawn]))
        learning.step()
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}
