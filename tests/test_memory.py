"""What memories hold, what they become, and what they cost: the paper's storage figures from real objects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ccmcl.budget import LABEL_BYTES
from ccmcl.kinds import KINDS, Composite, Encoded, Exemplars, Pixels, Remembered, nbytes, remaining, scalars
from ccmcl.memory import Memory
from ccmcl.values import unit

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def composite(
    p: int, q: int, shape: tuple[int, int, int] = (1, 6, 5), dtype: torch.dtype = torch.float64, seed: int = 0
) -> Composite:
    return Composite.draw(seeded(seed), p, shape, dtype, images=q)


def mixed(memory: Composite) -> Tensor:
    """Undo the sigmoid: what the components are mixed into."""
    return torch.logit(memory.images()).flatten(1)


@pytest.mark.parametrize(
    ("shape", "buffer", "printed"),
    [
        (GREY, 20, "0.10"),
        (GREY, 40, "0.41"),
        (GREY, 60, "0.92"),
        (GREY, 80, "1.63"),
        (GREY, 100, "2.55"),
        (COLOUR, 100, "0.65"),
        (COLOUR, 200, "2.60"),
        (COLOUR, 300, "5.86"),
        (COLOUR, 400, "10.4"),
        (COLOUR, 500, "16.3"),
    ],
)
def test_the_overhead_of_a_memory_is_the_one_in_table_two(
    shape: tuple[int, int, int], buffer: int, printed: str
) -> None:
    size, p = math.prod(shape), buffer // 10
    memory, generator = Memory(), seeded()
    for label in range(10):
        memory = memory.plus(label, Composite.draw(generator, p, shape, torch.float32, images=2 * p))
    weights = sum(kept.tensors()["weights"].numel() for kept in memory.values())
    assert f"{weights / size:.{len(printed.partition('.')[2])}f}" == printed
    assert memory.scalars == buffer * size + weights
    assert memory.count == 2 * buffer
    assert memory.nbytes == 4 * memory.scalars + 10 * LABEL_BYTES


def test_storage_grows_with_the_images_as_in_figure_one() -> None:
    size = 3 * 32 * 32
    for q in range(1, 1001):
        assert scalars(Pixels(torch.empty(q, *COLOUR))) == q * size
        for p in (1, 10, 50):
            assert scalars(Composite(torch.empty(p, *COLOUR), torch.empty(p, q))) == p * (size + q)


def test_a_composite_of_ten_stays_almost_constant_where_free_images_grow_with_their_number() -> None:
    first, last = (scalars(Composite(torch.empty(10, *COLOUR), torch.empty(10, q))) for q in (1, 1000))
    assert (first, last) == (30730, 40720)
    assert scalars(Pixels(torch.empty(1000, *COLOUR))) == 3072000
    crossing = next(
        q
        for q in range(1, 1001)
        if scalars(Composite(torch.empty(10, *COLOUR), torch.empty(10, q))) < scalars(Pixels(torch.empty(q, *COLOUR)))
    )
    assert crossing == 11


def test_a_composite_image_is_the_sigmoid_of_the_weighted_components() -> None:
    memory = composite(3, 5)
    images = memory.images()
    for j in range(5):
        for channel, row, column in np.ndindex(1, 6, 5):
            total = sum(
                memory.weights[i, j].item() * memory.components[i, channel, row, column].item() for i in range(3)
            )
            assert images[j, channel, row, column].item() == pytest.approx(1 / (1 + math.exp(-total)), abs=1e-14)


def test_composites_start_from_uniform_components_and_normal_weights() -> None:
    memory = composite(100, 200, (1, 20, 20), torch.float32)
    components, weights = memory.components, memory.weights
    assert 0 <= components.min() < 0.001
    assert 0.999 < components.max() <= 1
    assert components.mean().item() == pytest.approx(1 / 2, abs=0.01)
    assert components.var().item() == pytest.approx(1 / 12, abs=0.002)
    assert weights.mean().item() == pytest.approx(0, abs=0.03)
    assert weights.std().item() == pytest.approx(1, abs=0.03)
    assert (weights.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.006)


def test_what_is_drawn_depends_on_the_generator_alone() -> None:
    torch.manual_seed(1)
    one, free = composite(2, 4, seed=7), Pixels.draw(seeded(7), 3, (1, 4, 4), torch.float32)
    torch.manual_seed(2)
    same, again = composite(2, 4, seed=7), Pixels.draw(seeded(7), 3, (1, 4, 4), torch.float32)
    assert torch.equal(one.components, same.components)
    assert torch.equal(one.weights, same.weights)
    assert torch.equal(free.images(), again.images())
    assert not torch.equal(one.components, composite(2, 4, seed=8).components)


def test_exemplars_are_seen_as_they_came() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    images = Exemplars(pixels).images()
    assert images.flatten().tolist() == pytest.approx([value / 255 for value in range(256)], abs=1e-7)
    assert (images.min().item(), images.max().item()) == (0, 1)
    assert torch.equal((images * 255).round().to(torch.uint8), pixels)
    assert unit(pixels, torch.float64).dtype == torch.float64


def test_the_first_pictures_survive_shrinking_with_their_own_logits() -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 1, 4, 4)
    logits = torch.arange(10.0).reshape(5, 2)
    shrunk = Exemplars(pixels, logits).shrunk(2)
    assert shrunk.logits is not None
    assert shrunk.pixels[:, 0, 0, 0].tolist() == [0, 1]
    assert shrunk.logits.tolist() == [[0, 1], [2, 3]]
    assert Exemplars(pixels).shrunk(2).logits is None
    assert torch.equal(Pixels(logits.reshape(5, 1, 1, 2)).shrunk(3).pixels.flatten(), torch.arange(6.0))


@pytest.mark.parametrize(("p", "q", "count"), [(6, 12, 3), (6, 12, 1), (5, 5, 2), (8, 4, 3), (7, 3, 5)])
def test_a_shrunk_composite_is_the_nearest_of_its_size(p: int, q: int, count: int) -> None:
    memory = composite(p, q)
    kept = max(1, q * count // p)
    small = memory.shrunk(count, kept)
    original = mixed(memory)[:kept]
    assert len(small.components) <= count
    assert small.weights.shape[1] == kept
    values = np.linalg.svd(original.numpy(), compute_uv=False)
    error = torch.linalg.norm(mixed(small) - original).item()
    assert error == pytest.approx(math.sqrt((values[count:] ** 2).sum()), rel=1e-6, abs=1e-9)


@given(total=st.integers(1, 40), count=st.integers(1, 40), away=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_what_remains_are_so_many_set_apart_and_then_the_others(total: int, count: int, away: tuple[int, int]) -> None:
    was = min(max(away), total)
    apart = min(*away, was, count)
    places = remaining(total, count, apart, was).tolist()
    assert len(places) == len(set(places)) == min(total, count)
    assert places[:apart] == list(range(apart))
    if count < total and count - apart <= total - was:
        assert places[apart:] == list(range(was, was + count - apart))


def test_components_set_apart_outlive_shrinking_by_themselves() -> None:
    memory = composite(8, 16)
    weights = memory.weights.clone()
    weights[:2], weights[:, :2] = 0, 0
    weights[:2, :2] = torch.eye(2)
    memory = replace(memory, weights=weights)
    small = memory.shrunk(4, 8, 1, 2)
    assert small.weights.shape == (4, 8)
    assert torch.equal(small.components[0], memory.components[0])
    assert torch.equal(small.weights[0], torch.eye(1, 8, dtype=weights.dtype)[0])
    assert not small.weights[1:, 0].any()
    original = mixed(memory)[2:9]  # the second image, which was set apart, is gone
    values = np.linalg.svd(original.numpy(), compute_uv=False)
    error = torch.linalg.norm(mixed(small)[1:] - original).item()
    assert error == pytest.approx(math.sqrt((values[3:] ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
def test_encoded_pictures_that_remain_are_the_same_files(codec: str) -> None:
    pictures = torch.randint(256, (9, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    kept = Encoded.of(pictures, codec, 60, torch.arange(18.0).reshape(9, 2))
    fewer = kept.shrunk(4, 4, 1, 3)
    places = [0, 3, 4, 5]
    assert torch.equal(fewer.images(), kept.images()[places])
    assert kept.logits is not None
    assert fewer.logits is not None
    assert torch.equal(fewer.logits, kept.logits[places])
    assert len(fewer.files) == int(fewer.ends[-1]) < len(kept.files)


def test_shrinking_to_as_many_components_as_there_are_changes_nothing() -> None:
    memory = composite(4, 8)
    assert torch.equal(memory.shrunk(4, 8).images(), memory.images())
    assert torch.equal(memory.shrunk(9, 9).images(), memory.images())


def examples() -> list[Remembered]:
    return [
        Exemplars(torch.full((3, 1, 4, 4), 9, dtype=torch.uint8)),
        Exemplars(torch.full((3, 1, 4, 4), 9, dtype=torch.uint8), torch.zeros(3, 2)),
        Pixels(torch.full((3, 1, 4, 4), 0.5)),
        composite(2, 3, (1, 4, 4), torch.float32),
    ]


@pytest.mark.parametrize("kept", examples(), ids=["exemplars", "with logits", "pixels", "composite"])
def test_every_kind_keeps_the_contract_of_a_memory(kept: Remembered) -> None:
    assert isinstance(kept, Remembered)
    assert kept.images().shape == (3, 1, 4, 4)
    assert kept.images().dtype == torch.float32
    assert type(kept) is KINDS[kept.kind]
    again = KINDS[kept.kind](**kept.tensors())  # type: ignore[arg-type]
    assert torch.equal(again.images(), kept.images())
    smaller = kept.shrunk(1, 1)
    assert smaller.kind == kept.kind
    assert nbytes(smaller) < nbytes(kept)
    assert scalars(smaller) < scalars(kept)
    assert smaller.images().shape[1:] == (1, 4, 4)


@pytest.mark.parametrize(("kept", "stored"), list(zip(examples(), [48, 72, 192, 152], strict=True)))
def test_bytes_count_every_stored_tensor_and_four_for_the_label(kept: Remembered, stored: int) -> None:
    assert nbytes(kept) == stored + 4
    assert Memory().plus(0, kept).plus(5, kept).nbytes == 2 * (stored + 4)


def test_a_memory_lists_its_classes_in_the_order_of_their_labels() -> None:
    memory = Memory()
    for label in (5, 0, 3):
        memory = memory.plus(label, Pixels(torch.full((label + 1, 1, 2, 2), float(label))))
    assert list(memory) == [0, 3, 5]
    assert memory.labels().tolist() == [0] * 1 + [3] * 4 + [5] * 6
    assert memory.images()[:, 0, 0, 0].tolist() == memory.labels().tolist()
    assert memory.images(torch.float64).dtype == torch.float64
    assert memory.count == 11
    assert len(memory) == 3


def test_adding_a_class_leaves_the_memory_there_was_as_it_was() -> None:
    before = Memory().plus(1, Pixels(torch.zeros(1, 1, 2, 2)))
    after = before.plus(2, Pixels(torch.ones(1, 1, 2, 2))).plus(1, Pixels(torch.ones(2, 1, 2, 2)))
    assert list(before) == [1]
    assert before.images().sum() == 0
    assert after.count == 3
