"""Budgets: read as they are written, kept to the byte, and used up."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ccmcl.budget import Budget, Layout, images_of
from ccmcl.errors import InputError
from ccmcl.forms import Form
from ccmcl.frequencies import Frequencies
from ccmcl.kinds import Composite, Exemplars, Pixels, Remembered, formed, nbytes
from ccmcl.memory import Memory
from ccmcl.memory_file import pack

Shape = tuple[int, int, int]
UNITS = {"": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 10**6, "KiB": 1024, "kib": 1024, "MiB": 2**20}
KINDS = ("exemplars", "with logits", "pixels", "composite")
shapes = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))
ratios = st.sampled_from([0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.7, 10.0])


def decimal(number: int, places: int) -> str:
    """Write number / 10**places."""
    return f"{number // 10**places}.{number % 10**places:0{places}d}" if places else str(number)


@st.composite
def byte_budgets(draw: st.DrawFn) -> tuple[str, Fraction]:
    """Draw a budget as a user would write it, and what it is in bytes, exactly."""
    unit, most = draw(st.sampled_from([("B", 60_000), ("kB", 60), ("KiB", 60), ("MB", 0.06), ("MiB", 0.06)]))
    places = {"B": 0, "kB": 2, "KiB": 2, "MB": 5, "MiB": 5}[unit]
    number = draw(st.integers(1, int(most * 10**places)))
    written = decimal(number, places)
    space, upper = draw(st.sampled_from(["", " "])), draw(st.booleans())
    return written + space + (unit.upper() if upper else unit), Fraction(written) * UNITS[unit]


def build(kind: str, shape: Shape, count: int, logits: int, ratio: float) -> Remembered:
    match kind:
        case "exemplars":
            return Exemplars(torch.empty(count, *shape, dtype=torch.uint8))
        case "with logits":
            return Exemplars(torch.empty(count, *shape, dtype=torch.uint8), torch.empty(count, logits))
        case "pixels":
            return Pixels(torch.empty(count, *shape))
        case _:
            return Composite(torch.empty(count, *shape), torch.empty(count, images_of(count, ratio)))


def fitting(budget: Budget, kind: str, shape: Shape, classes: int, logits: int, ratio: float) -> int:
    match kind:
        case "exemplars":
            return budget.exemplars(shape, classes)
        case "with logits":
            return budget.exemplars(shape, classes, logits)
        case "pixels":
            return budget.pixels(shape, classes)
        case _:
            return budget.components(shape, classes, ratio)


def memory_of(kept: Remembered, classes: int) -> Memory:
    memory = Memory()
    for label in range(classes):
        memory = memory.plus(label, kept)
    return memory


@settings(max_examples=300)
@given(
    written=byte_budgets(),
    each=st.booleans(),
    kind=st.sampled_from(KINDS),
    shape=shapes,
    classes=st.integers(1, 12),
    logits=st.integers(1, 12),
    ratio=ratios,
)
def test_a_budget_in_bytes_is_never_exceeded_and_used_up(
    written: tuple[str, Fraction], each: bool, kind: str, shape: Shape, classes: int, logits: int, ratio: float
) -> None:
    text, exact = written
    limit = exact * classes if each else exact
    if exact < 1:
        with pytest.raises(InputError):
            Budget.parse(text)
        return
    budget = Budget.parse(text + "/class" * each)
    try:
        count = fitting(budget, kind, shape, classes, logits, ratio)
    except InputError:
        count = 0
    if count:
        assert memory_of(build(kind, shape, count, logits, ratio), classes).nbytes <= limit
    more = memory_of(build(kind, shape, count + 1, logits, ratio), classes).nbytes
    assert more > budget.amount * (classes if each else 1)


@given(
    amount=st.integers(1, 500),
    each=st.booleans(),
    kind=st.sampled_from(KINDS),
    shape=shapes,
    classes=st.integers(1, 60),
    logits=st.integers(1, 5),
    ratio=ratios,
)
def test_a_budget_in_examples_is_never_exceeded_and_shared_evenly(
    amount: int, each: bool, kind: str, shape: Shape, classes: int, logits: int, ratio: float
) -> None:
    budget = Budget.parse(f"{amount}{'/class' if each else ''}")
    if kind == "composite" and ratio > 2:  # more weights than the paper has are counted
        room = amount * math.prod(shape) // (1 if each else classes)
        try:
            count = fitting(budget, kind, shape, classes, logits, ratio)
        except InputError:
            count = 0
        size = math.prod(shape)
        assert count * (size + images_of(count, ratio)) <= room or not count
        assert (count + 1) * (size + images_of(count + 1, ratio)) > room
        return
    if not each and amount < classes:
        with pytest.raises(InputError, match=f"A budget of {amount} shared by {classes} classes is smaller than one"):
            fitting(budget, kind, shape, classes, logits, ratio)
        return
    count = fitting(budget, kind, shape, classes, logits, ratio)
    if each:
        assert count == amount
    else:
        assert count * classes <= amount < (count + 1) * classes


def test_what_one_class_has_left_of_an_example_is_not_lost() -> None:
    layout = Layout(frequencies=170)
    few = [Budget.parse(str(amount)).pixels((3, 32, 32), 10, layout) for amount in (9, 10, 15, 20)]
    assert few == [10, 12, 18, 24]


@settings(deadline=None)
@given(
    room=st.integers(2_000, 60_000),
    shape=shapes,
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    ratio=ratios,
    bits=st.sampled_from([8, 32]),
    reduction=st.integers(1, 3),
    targets=st.sampled_from([0, 6]),
)
def test_a_memory_made_smaller_again_and_again_keeps_the_budget(
    room: int, shape: Shape, steps: list[int], ratio: float, bits: int, reduction: int, targets: int
) -> None:
    budget, layout, classes = Budget.parse(f"{room}B"), Layout(reduction, bits, targets), 0
    small = (shape[0], -(-shape[1] // reduction), -(-shape[2] // reduction))
    kept: Remembered | None = None
    for more in steps:
        classes += more
        try:
            count = budget.components(shape, classes, ratio, layout)
        except InputError:
            return
        images = images_of(count, ratio)
        if kept is None:
            drawn = Composite.draw(torch.Generator().manual_seed(0), count, small, torch.float32, images=images)
            soft = torch.zeros(images, targets, dtype=torch.float16) if targets else None
            kept = formed(Composite, drawn.tensors(), Form(shape[1:], squash=True, bits=bits), soft)
        kept = kept.shrunk(count, images)
        assert memory_of(kept, classes).nbytes <= room


@pytest.mark.parametrize("buffer", [20, 40, 60, 80, 100, 200, 300, 400, 500])
def test_the_paper_s_buffers_give_the_paper_s_memories(buffer: int) -> None:
    p = Budget.parse(str(buffer)).components((1, 28, 28), classes=10, ratio=2)
    assert (p, images_of(p, 2)) == (buffer // 10, buffer // 5)
    assert Budget.parse(str(buffer)).pixels((1, 28, 28), classes=10) == p
    assert Budget.parse(str(buffer)).exemplars((1, 28, 28), classes=10, logits=10) == p


@pytest.mark.parametrize(
    ("text", "amount", "in_bytes", "each"),
    [
        ("100", 100, False, False),
        (" 7 / class ", 7, False, True),
        ("300KiB", 307_200, True, False),
        ("300 kb", 300_000, True, False),
        ("1.5MiB", 1_572_864, True, False),
        ("0.25mb/CLASS", 250_000, True, True),
        ("12B", 12, True, False),
        ("1.1KiB", 1126, True, False),
    ],
)
def test_budgets_are_read_as_users_write_them(text: str, amount: int, in_bytes: bool, each: bool) -> None:
    assert Budget.parse(text) == Budget(amount, in_bytes, each)


@given(st.integers(1, 10**6) | st.integers(10**15, 10**18), st.booleans(), st.booleans())
@example(2**53 + 3, True, False)
def test_a_budget_reads_what_it_writes(amount: int, in_bytes: bool, each: bool) -> None:
    budget = Budget(amount, in_bytes, each)
    assert Budget.parse(str(budget)) == budget


@example(1001, 3, "kB")
@given(st.integers(1, 10**6), st.integers(0, 6), st.sampled_from(["kB", "MB", "KiB", "MiB"]))
def test_decimals_are_read_exactly(number: int, places: int, unit: str) -> None:
    exact = math.floor(Fraction(number, 10**places) * UNITS[unit])
    if exact:
        assert Budget.parse(decimal(number, places) + unit).amount == exact


@pytest.mark.parametrize("text", ["0", "0/class", "0KiB", "0.0MB", "0.5B", "00", "0.0009kB"])
def test_a_budget_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Budget.parse(f" {text} ")
    assert str(caught.value) == (f"A budget of '{text}' leaves nothing to remember: give at least one example a class.")


@pytest.mark.parametrize(
    "text",
    [
        "-5",
        "abc",
        "1.5",
        "10XB",
        "",
        " ",
        "1e3",
        "100 examples",
        "10/klass",
        "/class",
        "1,000",
        "KiB",
        "1.5/class",
        ".5MB",
    ],
)
def test_what_is_no_budget_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Budget.parse(text)
    assert str(caught.value) == (
        f"Cannot read the budget {text!r}: give a number of examples like '100', or bytes like '300KiB' "
        "('/class' may follow)."
    )


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("9" * 400 + "kB", 10**402),
        ("9" * 400 + ".5MiB", 10**406),
        ("9" * 5000, 10**4999),
        ("9" * 5000 + "B", 10**4999),
        ("1." + "9" * 5000 + "MB", 1_999_999),
    ],
    ids=["kB", "MiB", "examples", "B", "decimals"],
)
def test_a_number_without_end_is_read_or_refused(text: str, least: int) -> None:
    try:
        budget = Budget.parse(text)
    except InputError:
        return
    assert budget.amount >= least


@pytest.mark.parametrize(
    ("text", "kind", "classes", "sentence"),
    [
        ("9", "pixels", 10, "A budget of 9 shared by 10 classes is smaller than one image per class"),
        ("9", "composite", 10, "A budget of 9 shared by 10 classes is smaller than one component per class"),
        ("679B", "exemplars", 10, "A budget of 679B shared by 10 classes is smaller than one picture per class"),
        ("67B/class", "exemplars", 10, "A budget of 67B/class is smaller than one picture per class"),
        ("259B/class", "pixels", 10, "A budget of 259B/class is smaller than one image per class"),
        ("267B/class", "composite", 10, "A budget of 267B/class is smaller than one component per class"),
        ("1B", "composite", 10, "A budget of 1B shared by 10 classes is smaller than one component per class"),
    ],
)
def test_a_budget_one_byte_too_small_is_refused(text: str, kind: str, classes: int, sentence: str) -> None:
    shape = (1, 8, 8)
    with pytest.raises(InputError) as caught:
        fitting(Budget.parse(text), kind, shape, classes, 0, 2.0)
    assert str(caught.value) == f"{sentence}: give a larger one."


@pytest.mark.parametrize(("text", "kind"), [("68B", "exemplars"), ("260B", "pixels"), ("268B", "composite")])
def test_the_smallest_budget_that_is_enough_is_used_to_the_last_byte(text: str, kind: str) -> None:
    count = fitting(Budget.parse(f"{text}/class"), kind, (1, 8, 8), 10, 0, 2.0)
    assert count == 1
    assert nbytes(build(kind, (1, 8, 8), count, 0, 2.0)) == int(text[:-1])


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_budget_of_terabytes_is_worked_out_at_once() -> None:
    with at_most(seconds=1):
        count = Budget.parse("8000000MiB").components((1, 8, 8), classes=10, ratio=2)
    share = 8_000_000 * 2**20 // 10
    assert 4 + 4 * count * (64 + 2 * count) <= share < 4 + 4 * (count + 1) * (64 + 2 * (count + 1))


def of_form(layout: Layout, shape: Shape) -> Form:
    size = None if layout.reduction == 1 else shape[1:]
    frequencies = Frequencies(shape, layout.frequencies) if layout.frequencies else None
    return Form(size, bits=layout.bits, frequencies=frequencies)


@settings(max_examples=200)
@given(
    amount=st.integers(1, 10**9),
    unit=st.sampled_from(["", "B", "KiB", "B/class", "/class"]),
    side=st.sampled_from([8, 28, 64, 128, 200]),
    channels=st.sampled_from([1, 3]),
    classes=st.sampled_from([2, 10, 100]),
    layout=st.one_of(
        st.builds(Layout, st.sampled_from([1, 2, 16]), st.sampled_from([8, 16, 32])),
        st.builds(Layout, bits=st.sampled_from([8, 32]), frequencies=st.sampled_from([1, 32, 42])),
    ),
    kind=st.sampled_from(["exemplars", "pixels", "composite"]),
    ratio=ratios,
)
@example(600, "MiB", 128, 3, 10, Layout(bits=8, frequencies=42), "pixels", 2.0)
@example(5, "MiB", 64, 3, 10, Layout(16), "exemplars", 2.0)
@example(11_000, "", 128, 3, 10, Layout(frequencies=42), "pixels", 2.0)
def test_whatever_a_budget_chooses_can_be_saved_and_read(
    amount: int, unit: str, side: int, channels: int, classes: int, layout: Layout, kind: str, ratio: float
) -> None:
    shape, budget = (channels, side, side), Budget.parse(f"{amount}{unit}")
    form, low = of_form(layout, shape), -(-side // layout.reduction)
    row = (1, 1, layout.small(shape)) if layout.frequencies else (channels, low, low)
    learned = {32: torch.float32, 16: torch.float16, 8: torch.uint8}[layout.bits]

    def zeros(*sizes: int, dtype: torch.dtype = learned) -> torch.Tensor:
        return torch.zeros(1, dtype=dtype).expand(*sizes)  # as large as is said, without the room

    try:
        match kind:
            case "exemplars":
                count = budget.exemplars(shape, classes, reduction=layout.reduction)
                size = None if layout.reduction == 1 else shape[1:]
                kept: Remembered = Exemplars(zeros(count, channels, low, low, dtype=torch.uint8), form=Form(size))
            case "pixels":
                count = budget.pixels(shape, classes, layout)
                scales = zeros(count, 2, dtype=torch.float16) if layout.bits == 8 else None
                kept = Pixels(zeros(count, *row), scales, form=form)
            case _:
                count = budget.components(shape, classes, ratio, layout)
                scales = zeros(count, 4, dtype=torch.float16) if layout.bits == 8 else None
                kept = Composite(zeros(count, *row), zeros(count, images_of(count, ratio)), scales, form=form)
    except InputError:
        return
    pack(memory_of(kept, classes))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_free_images_in_the_paper_s_shape_are_counted_whatever_their_numbers_take(bits: int) -> None:
    assert Budget.parse("100").pixels((3, 32, 32), 10, Layout(bits=bits)) == 10
    assert Budget.parse("10").pixels((3, 32, 32), 10, Layout(bits=bits)) == 1


@given(components=st.integers(1, 10_000), ratio=st.floats(0.001, 100))
def test_images_follow_the_ratio_and_are_never_none(components: int, ratio: float) -> None:
    images = images_of(components, ratio)
    assert images >= 1
    assert images == 1 or abs(images - ratio * components) <= 0.5
