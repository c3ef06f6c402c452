"""Pictures of memories: they open, show what is stored, and put up with any name."""

from __future__ import annotations

import io
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from ccmcl.errors import InputError, StorageError
from ccmcl.forms import Form
from ccmcl.kinds import Composite, Encoded, Exemplars, Pixels, Remembered, formed
from ccmcl.memory import Memory
from ccmcl.pictures import draw_memory, mosaic
from ccmcl.terminal import stored_shape
from ccmcl.values import scaled

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
Colour = tuple[int, int, int]
LONG = "a name that is quite as long as forty letters and longer"


def plain(*colours: Colour, side: int = 8) -> Exemplars:
    pixels = torch.tensor(colours, dtype=torch.uint8)[:, :, None, None]
    return Exemplars(pixels.expand(-1, -1, side, side).contiguous())


def composite(p: int, q: int, shape: tuple[int, int, int] = (3, 8, 8)) -> Composite:
    return Composite.draw(torch.Generator().manual_seed(0), p, shape, torch.float32, images=q)


def drawn(memory: Memory, names: list[str], folder: Path) -> NDArray[np.uint8]:
    """Draw a memory, and decode the file with another library."""
    path = folder / "memory.png"
    draw_memory(memory, names, path)
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        assert image.format == "PNG"
        image.load()
        return np.asarray(image.convert("RGB"))


def of(colour: Colour, sheet: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Say which pixels have a colour, nearly."""
    near: NDArray[np.bool_] = (np.abs(sheet.astype(int) - np.array(colour)) <= 2).all(2)
    return near


def test_every_image_is_seen_with_its_colour_in_its_place(tmp_path: Path) -> None:
    memory = Memory().plus(0, plain(RED, GREEN)).plus(1, plain(BLUE, (90, 90, 90)))
    sheet = drawn(memory, ["one", "two"], tmp_path)
    assert 50 < sheet.shape[0] < 1000
    assert 50 < sheet.shape[1] < 1000
    places = {}
    for name, colour in (("red", RED), ("green", GREEN), ("blue", BLUE), ("grey", (90, 90, 90))):
        found = np.argwhere(of(colour, sheet))
        assert len(found) >= 8 * 8, f"{name} is not to be seen"
        places[name] = found.mean(0)
    assert places["red"][1] < places["green"][1]
    assert places["red"][0] < places["blue"][0]
    assert places["red"][0] == pytest.approx(places["green"][0], abs=1)
    assert places["red"][1] == pytest.approx(places["blue"][1], abs=1)


def test_shades_of_grey_pictures_are_true(tmp_path: Path) -> None:
    pixels = torch.tensor([0, 64, 128, 200], dtype=torch.uint8)[:, None, None, None].expand(4, 1, 8, 8)
    sheet = drawn(Memory().plus(0, Exemplars(pixels)), ["x"], tmp_path)
    for shade in (0, 64, 128, 200):
        assert of((shade, shade, shade), sheet).sum() >= 8 * 8
        alone = drawn(Memory().plus(0, Exemplars(pixels[:1] * 0 + shade)), ["x"], tmp_path)
        assert of((shade, shade, shade), alone).sum() >= 8 * 8


def test_a_composite_is_shown_by_its_components_and_its_images(tmp_path: Path) -> None:
    components = torch.zeros(1, 3, 8, 8)
    components[:, 0] = 1
    weights = torch.tensor([[20.0, -20.0]])
    sheet = drawn(Memory().plus(0, Composite(components, weights)), ["x"], tmp_path)
    component, image = of(RED, sheet), of((255, 127, 127), sheet)
    other = of((0, 127, 127), sheet)
    assert min(component.sum(), image.sum(), other.sum()) >= 8 * 8
    columns = [np.argwhere(found).mean(0)[1] for found in (component, image, other)]
    assert columns == sorted(columns)


def test_every_class_has_its_own_components_beside_its_name(tmp_path: Path) -> None:
    memory = Memory()
    for label, channel in ((2, 0), (5, 1), (7, 2)):
        components = torch.zeros(1, 3, 8, 8)
        components[:, channel] = 1
        memory = memory.plus(label, Composite(components, torch.zeros(1, 2)))
    sheet = drawn(memory, [], tmp_path)
    found = [np.argwhere(of(colour, sheet)) for colour in (RED, GREEN, BLUE)]
    assert min(map(len, found)) >= 8 * 8
    rows = [places.mean(0)[0] for places in found]
    assert rows == sorted(rows)


def test_kinds_are_shown_side_by_side(tmp_path: Path) -> None:
    blue = torch.zeros(1, 3, 8, 8)
    blue[:, 2] = 1
    memory = Memory().plus(0, plain(RED)).plus(1, Pixels(blue))
    sheet = drawn(memory, [], tmp_path)
    red, seen = np.argwhere(of(RED, sheet)).mean(0), np.argwhere(of(BLUE, sheet)).mean(0)
    assert red[0] < seen[0]
    assert red[1] < seen[1]


@pytest.mark.parametrize(
    "name",
    [
        "$",
        "$x^2$",
        "$\\frac{$",
        "\\$",
        "100 % & _under_ ^{",
        "<script>alert(1)</script>",
        "Ж é ß",
        "日本語",
        "🙂",
        "عربى",
        "two\nlines",
        "",
        "\x1b[31mred",
        "\ud800",
        "x" * 39 + "$$",
        LONG,
    ],
    ids=ascii,
)
def test_no_name_breaks_the_picture(name: str, tmp_path: Path) -> None:
    sheet = drawn(Memory().plus(0, plain(RED, GREEN)), [name], tmp_path)
    assert of(RED, sheet).sum() >= 8 * 8
    assert of(GREEN, sheet).sum() >= 8 * 8


def test_a_name_is_written_and_a_formula_is_not_made_of_it(tmp_path: Path) -> None:
    memory = Memory().plus(0, plain(RED))
    ink = {}
    for name in ("$x$", "$$$", "x", ""):
        ink[name] = int((drawn(memory, [name], tmp_path).max(2) < 150).sum())
    assert ink["x"] > ink[""]
    assert ink["$x$"] > ink["x"] + (ink["$$$"] - ink[""]) / 2, "two dollar signs are two thirds of three"


def test_a_class_without_a_name_is_called_by_its_number(tmp_path: Path) -> None:
    memory = Memory().plus(3, plain(RED))
    assert (drawn(memory, ["a", "b"], tmp_path) == drawn(memory, ["a", "b", "c", "3"], tmp_path)).all()


def test_a_hundred_classes_are_drawn_in_seconds(tmp_path: Path) -> None:
    memory = Memory()
    for label in range(100):
        memory = memory.plus(label, plain(*[RED] * (label + 1 < 100), *[GREEN] * 4))
    start = time.process_time()
    sheet = drawn(memory, [f"class {label}" for label in range(100)], tmp_path)
    assert time.process_time() - start < 10
    rows = of(RED, sheet).any(1).astype(int).tolist()
    assert sum(below > above for above, below in pairwise(rows)) == 99, "each class has a band of its own"


def test_two_hundred_images_are_drawn_in_seconds(tmp_path: Path) -> None:
    memory = Memory()
    for label in range(3):
        memory = memory.plus(label, composite(100, 200, (3, 32, 32)))
    start = time.process_time()
    sheet = drawn(memory, ["a", "b", "c"], tmp_path)
    assert time.process_time() - start < 10
    assert max(sheet.shape) < 4000


def test_pictures_too_long_to_be_drawn_are_refused_and_long_ones_are_drawn_smaller(tmp_path: Path) -> None:
    def strips(length: int) -> Memory:
        return Memory().plus(0, Exemplars(torch.zeros(2, 1, 1, length, dtype=torch.uint8)))

    with pytest.raises(InputError, match="too large to be drawn"):
        draw_memory(strips(60_000), [], tmp_path / "memory.png")
    sheet = drawn(strips(2_000), [], tmp_path)
    assert 1000 < sheet.shape[1] <= 60_000


def test_an_empty_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        draw_memory(Memory(), [], tmp_path / "memory.png")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"Cannot write .*memory\.png"):
        draw_memory(Memory().plus(0, plain(RED)), [], tmp_path / "file" / "memory.png")


@pytest.mark.parametrize(("count", "lines", "columns"), [(1, 1, 1), (20, 1, 20), (21, 2, 20), (200, 5, 20)])
def test_the_first_hundred_images_stand_in_lines_of_twenty_with_white_between(
    count: int, lines: int, columns: int
) -> None:
    images = torch.arange(count)[:, None, None, None].expand(count, 1, 3, 4) / 255
    sheet = mosaic(images)
    assert sheet.shape == (lines * 4 - 1, columns * 5 - 1)
    covered = np.zeros(sheet.shape, bool)
    for number in range(count):
        top, left = number // 20 * 4, number % 20 * 5
        assert (sheet[top : top + 3, left : left + 4] == np.float32(number / 255)).all()
        covered[top : top + 3, left : left + 4] = True
    assert (sheet[~covered] == 1).all()


@pytest.mark.parametrize(("channels", "shape"), [(1, (3, 4)), (2, (3, 4)), (3, (3, 4, 3)), (4, (3, 4, 3))])
def test_pictures_of_any_channels_can_be_shown(channels: int, shape: tuple[int, ...]) -> None:
    assert mosaic(torch.rand(1, channels, 3, 4)).shape == shape


def test_only_images_that_leave_the_interval_are_stretched() -> None:
    images = torch.tensor([[0.2, 0.4], [-1.0, 3.0], [0.5, 1.5], [2.0, 2.0]])[:, None, None]
    expected = torch.tensor([[0.2, 0.4], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(scaled(images).reshape(4, 2), expected)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (plain(RED), "1 stored picture"),
        (plain(RED, BLUE), "2 stored pictures"),
        (Exemplars(plain(RED, BLUE).pixels, torch.zeros(2, 3)), "2 stored pictures with logits"),
        (Pixels(torch.zeros(1, 1, 4, 4)), "1 free image"),
        (Pixels(torch.zeros(3, 1, 4, 4)), "3 free images"),
        (composite(1, 2), "1 component mixed into 2 images"),
        (composite(10, 20), "10 components mixed into 20 images"),
        (Encoded.of(plain(RED, BLUE).pixels, "jpeg", 75), "2 encoded pictures"),
        (Exemplars(plain(RED).pixels, form=Form((16, 16))), "1 stored picture of 8×8 pixels"),
        (formed(Pixels, {"pixels": torch.rand(2, 1, 4, 4)}, Form(bits=8)), "2 free images in 8 bits"),
        (
            Pixels(torch.zeros(99, 1, 1, 8, dtype=torch.int16), form=Form(step=0.5)),
            "99 free images coded, 0.1 bits a number",
        ),
        (
            formed(
                Composite,
                {"components": torch.rand(3, 1, 4, 6), "weights": torch.rand(3, 5)},
                Form((8, 12), bits=16),
                torch.rand(5, 2).half(),
            ),
            "3 components of 4×6 pixels in 16 bits mixed into 5 images with soft labels",
        ),
    ],
)
def test_what_is_stored_is_said_in_words(kept: Remembered, words: str) -> None:
    assert stored_shape(kept) == words


def test_small_components_in_few_bits_are_drawn_as_large_as_their_images(tmp_path: Path) -> None:
    numbers = {"components": torch.rand(2, 3, 4, 4), "weights": torch.rand(2, 3)}
    kept = formed(Composite, numbers, Form((8, 8), bits=8))
    assert isinstance(kept, Composite)
    assert kept.parts(9).shape == (2, 3, 8, 8)
    drawn(Memory().plus(0, kept), ["x"], tmp_path)
    drawn(Memory().plus(0, Encoded.of(plain(RED).pixels, "webp", 80)), ["x"], tmp_path)
