"""Update rules against torch.optim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ccmcl.catalogue import OPTIMISERS
from ccmcl.errors import InputError
from ccmcl.optimisers import start, update

Tensors = dict[str, Tensor]
MAKERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=0.07),
    "rmsprop": lambda tensors: torch.optim.RMSprop(tensors, lr=0.07, alpha=0.9, eps=1e-7),
    "adam": lambda tensors: torch.optim.Adam(tensors, lr=0.07),
}


def begin() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "components": torch.rand(2, 1, 3, 3, generator=generator, dtype=torch.float64),
        "weights": torch.randn(2, 4, generator=generator, dtype=torch.float64),
    }


def objective(tensors: Tensors) -> Tensor:
    """Something bent, with gradients from large to nothing."""
    mixed = torch.einsum("pchw,pq->qchw", tensors["components"], tensors["weights"])
    return (torch.sin(3 * mixed) + mixed.square()).sum() + 1e-6 * tensors["weights"].sum()


def test_every_rule_is_compared() -> None:
    assert sorted(MAKERS) == sorted(OPTIMISERS)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_many_steps_are_those_of_torch(name: str) -> None:
    tensors, state = begin(), start(name, begin())
    leaves = {key: tensor.requires_grad_() for key, tensor in begin().items()}
    reference = MAKERS[name](list(leaves.values()))
    for _ in range(12):
        reference.zero_grad()
        objective(leaves).backward()  # type: ignore[no-untyped-call]
        reference.step()
        tensors, state = update(name, 0.07, tensors, torch.func.grad(objective)(tensors), state)
        for key, leaf in leaves.items():
            torch.testing.assert_close(tensors[key], leaf.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_update_changes_nothing_in_place(name: str) -> None:
    tensors, state = begin(), start(name, begin())
    copies = [{key: tensor.clone() for key, tensor in part.items()} for part in (tensors, state)]
    gradients = {key: torch.ones_like(tensor) for key, tensor in tensors.items()}
    once = update(name, 0.1, tensors, gradients, state)
    again = update(name, 0.1, tensors, gradients, state)
    for part, copy in zip((tensors, state), copies, strict=True):
        assert all(torch.equal(part[key], copy[key]) for key in copy)
        assert list(part) == list(copy)
    for one, two in zip(once, again, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_gradient_of_nothing_moves_nothing(name: str) -> None:
    tensors = begin()
    gradients = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    after, _ = update(name, 0.1, tensors, gradients, start(name, tensors))
    assert all(torch.equal(after[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_state_keeps_names_shapes_and_types(name: str) -> None:
    tensors = {key: tensor.float() for key, tensor in begin().items()}
    state = start(name, tensors)
    after, moved = update(name, 0.1, tensors, {key: torch.ones_like(t) for key, t in tensors.items()}, state)
    for old, new in ((tensors, after), (state, moved)):
        assert {k: (t.shape, t.dtype) for k, t in old.items()} == {k: (t.shape, t.dtype) for k, t in new.items()}
        assert all(tensor.is_contiguous() for tensor in new.values())


def test_an_optimiser_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        start("rmsprob", begin())
    assert str(caught.value) == (
        "There is no optimiser 'rmsprob': did you mean 'rmsprop'? (known: sgd, rmsprop, adam)."
    )
