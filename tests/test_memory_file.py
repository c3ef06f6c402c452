"""Memories in files: exact to the bit and to the byte, and no file, however made, does harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from ccmcl.budget import MOST_DECODED
from ccmcl.errors import InputError
from ccmcl.forms import Form
from ccmcl.frequencies import Frequencies
from ccmcl.kinds import Composite, Encoded, Exemplars, Pixels, Remembered
from ccmcl.memory import Memory
from ccmcl.memory_file import FORMATS, load_memory, pack, save_memory, unpack

Header = dict[str, Any]
BAD_FORMS: list[Any] = [
    None,
    [],
    [None],
    [{}, {}],
    [{"bits": 8}],
    [{"bits": 16}],
    [{"bits": 7}],
    [{"bits": "32"}],
    [{"squash": 1}],
    [{"size": [4]}],
    [{"size": [4, 0]}],
    [{"size": [4, 2.0]}],
    [{"size": [True, 4]}],
    [{"size": [4, 1 << 16]}],
    [{"size": [40000, 40000]}],
]


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Lay tensors out so that -0.0 differs from 0.0."""
    return {name: (t.dtype, tuple(t.shape), t.contiguous().numpy().tobytes()) for name, t in tensors.items()}


def taken_apart(path: Path) -> tuple[Header, bytes]:
    """Read a safetensors file by its specification: eight bytes of length, a JSON header, the payload."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def forge(path: Path, header: Header | bytes, payload: bytes = b"", length: int | None = None) -> Path:
    """Write a file with any header over any payload."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + payload)
    return path


def describe(**changes: object) -> dict[str, str]:
    return {"ccmcl": json.dumps({"format": FORMATS[0], "kinds": ["pixels"], "names": []} | changes)}


def forge_tensors(path: Path, tensors: dict[str, Tensor], **changes: object) -> Path:
    """Write real tensors, laid out rightly, under any description."""
    header: Header = {"__metadata__": describe(**changes)}
    codes = {torch.float32: "F32", torch.float64: "F64", torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8"}
    payload = b""
    for name, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        span = [len(payload), len(payload) + len(data)]
        header[name] = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        payload += data
    return forge(path, header, payload)


def labels(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def small() -> Memory:
    generator = torch.Generator().manual_seed(0)
    composite = Composite.draw(generator, 2, (1, 2, 2), torch.float32, images=3)
    return Memory().plus(0, composite).plus(3, Pixels(torch.rand(1, 1, 2, 2, generator=generator)))


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 3.4028234e38, -3.4028234e38, 1.0])

    def floats(*sizes: int) -> Tensor:
        values = torch.randn(sizes, generator=generator)
        chosen = special[torch.randint(len(special), sizes, generator=generator)]
        return torch.where(torch.rand(sizes, generator=generator) < 0.2, chosen, values)

    def eight_bits(*sizes: int) -> Tensor:
        return torch.randint(0, 256, sizes, generator=generator, dtype=torch.uint8)

    memory = Memory()
    for label in draw(st.lists(st.integers(0, 20) | st.integers(0, 2**31 - 1), unique=True, max_size=5)):
        count, other = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        kept: Remembered
        match draw(st.sampled_from(["exemplars", "with logits", "pixels", "composite"])):
            case "exemplars":
                kept = Exemplars(eight_bits(count, *shape))
            case "with logits":
                kept = Exemplars(eight_bits(count, *shape), floats(count, other))
            case "pixels":
                kept = Pixels(floats(count, *shape))
            case _:
                kept = Composite(floats(count, *shape), floats(count, other))
        memory = memory.plus(label, kept)
    return memory


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memories") / "memory.safetensors"


@given(memory=memories(), names=st.lists(st.text(max_size=8), max_size=5))
def test_a_memory_comes_back_bit_by_bit(memory: Memory, names: list[str], place: Path) -> None:
    save_memory(memory, place, names)
    again, named = load_memory(place)
    assert named == tuple(names)
    assert list(again) == list(memory)
    for label, kept in memory.items():
        assert type(again[label]) is type(kept)
        assert bits(again[label].tensors()) == bits(kept.tensors())


@given(memory=memories())
def test_the_payload_of_the_file_is_what_the_memory_counts(memory: Memory, place: Path) -> None:
    save_memory(memory, place, ["a name"])
    size = place.stat().st_size
    length = struct.unpack("<Q", place.read_bytes()[:8])[0]
    assert size - 8 - length == memory.nbytes


@given(memory=memories(), order=st.randoms(use_true_random=False))
def test_the_same_memory_gives_the_same_bytes(memory: Memory, order: Random, place: Path) -> None:
    save_memory(memory, place, ["x", "y"])
    first = place.read_bytes()
    classes = list(memory.items())
    order.shuffle(classes)
    shuffled = Memory()
    for label, kept in classes:
        copy = {name: tensor.clone() for name, tensor in kept.tensors().items()}
        shuffled = shuffled.plus(label, type(kept)(**copy))
    save_memory(shuffled, place, ["x", "y"])
    assert place.read_bytes() == first


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_memory(small(), path)
    memory, _ = load_memory(path)
    before = bits(memory[0].tensors())
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert bits(memory[0].tensors()) == before


def test_classes_may_share_a_tensor(tmp_path: Path) -> None:
    shared = torch.rand(4, 1, 2, 2)
    memory = Memory().plus(0, Pixels(shared)).plus(1, Pixels(shared)).plus(2, Pixels(shared[1:3]))
    save_memory(memory, tmp_path / "m.safetensors")
    again, _ = load_memory(tmp_path / "m.safetensors")
    assert torch.equal(again.images(), memory.images())


def test_tensors_laid_out_in_any_way_come_back(tmp_path: Path) -> None:
    pixels = torch.rand(3, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    weights = torch.rand(4, 2).T.requires_grad_()
    memory = Memory().plus(0, Pixels(pixels)).plus(1, Composite(torch.rand(5, 4, 3, 2).permute(3, 2, 1, 0), weights))
    save_memory(memory, tmp_path / "m.safetensors")
    again, _ = load_memory(tmp_path / "m.safetensors")
    assert torch.equal(again.images(), memory.images())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_what_can_be_saved_can_be_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    memory = Memory().plus(0, Pixels(torch.rand(2, 1, 2, 2).to(dtype)))
    try:
        save_memory(memory, tmp_path / "m.safetensors")
    except InputError:
        assert not (tmp_path / "m.safetensors").exists()
        return
    again, _ = load_memory(tmp_path / "m.safetensors")
    assert bits(again[0].tensors()) == bits(memory[0].tensors())


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_memory(small(), path, ["zero"])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            load_memory(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError):
        load_memory(path)


@pytest.mark.parametrize("change", [0x01, 0x10, 0x20, 0x80, 0xFF])
def test_a_byte_changed_anywhere_is_refused_or_changes_values_only(change: int, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_memory(small(), path, ["zero"])
    whole = path.read_bytes()
    shapes = {label: [t.shape for t in kept.tensors().values()] for label, kept in small().items()}
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= change
        path.write_bytes(damaged)
        try:
            memory, _ = load_memory(path)
        except InputError:
            refused += 1
        else:
            found = [[t.shape for t in kept.tensors().values()] for kept in memory.values()]
            assert found == list(shapes.values())
    assert refused > 100


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from([None, 0, 2, 2**31, 2**32, 2**60, 2**63, 2**64 - 1]))
def test_bytes_at_random_are_refused(place: Path, content: bytes, length: int | None) -> None:
    forge(place, content[:100], content[100:], length)
    with pytest.raises(InputError):
        load_memory(place)
    place.write_bytes(content)
    with pytest.raises(InputError):
        load_memory(place)


def change_offsets(first: list[int], second: list[int]) -> Header:
    entry = {"dtype": "F32", "shape": [1, 1, 2, 2]}
    return {
        "__metadata__": describe(kinds=["pixels", "pixels"]),
        "labels": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]},
        "0.pixels": entry | {"data_offsets": first},
        "1.pixels": entry | {"data_offsets": second},
    }


def test_the_forger_can_write_a_file_that_is_right(tmp_path: Path) -> None:
    path = forge(tmp_path / "m", change_offsets([8, 24], [24, 40]), struct.pack("<ii8f", 0, 1, *range(8)))
    memory, _ = load_memory(path)
    assert memory.images().flatten().tolist() == list(range(8))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([8, 24], [24, 2**40]),
        ([8, 24], [2**60, 2**60 + 16]),
        ([8, 24], [8, 24]),
        ([8, 24], [16, 32]),
        ([8, 24], [28, 44]),
        ([24, 8], [24, 40]),
        ([8, 24], [40, 24]),
        ([8, 12], [12, 40]),
        ([0, 16], [24, 40]),
        ([8, 2**64 - 1], [24, 40]),
        ([-8, 8], [24, 40]),
    ],
)
def test_offsets_that_lie_are_refused(first: list[int], second: list[int], tmp_path: Path) -> None:
    path = forge(tmp_path / "m", change_offsets(first, second), struct.pack("<ii8f", 0, 1, *range(8)))
    with pytest.raises(InputError):
        load_memory(path)


@pytest.mark.parametrize(
    "shape",
    [
        [2**31, 2**31, 2, 2],
        [2**62, 1, 2, 2],
        [2**63, 1, 2, 2],
        [2**64, 1, 2, 2],
        [1, 1, 2, -2],
        [1, 1, 2, 3],
        [4],
        [],
        [2, 2],
        [1, 1, 1, 2, 2],
        "four",
        [1, 1, 2, 2.5],
    ],
)
def test_shapes_that_lie_are_refused(shape: object, tmp_path: Path) -> None:
    header = change_offsets([8, 24], [24, 40])
    header["0.pixels"]["shape"] = shape
    path = forge(tmp_path / "m", header, struct.pack("<ii8f", 0, 1, *range(8)))
    with pytest.raises(InputError):
        load_memory(path)


@pytest.mark.parametrize(
    "shape", [[0, 1, 2, 2], [1, 0, 2, 2], [2**62, 0, 1, 1], [2**63, 0, 1, 1], [0, 2**64 - 1, 3, 3]]
)
def test_shapes_that_hold_nothing_are_refused(shape: list[int], tmp_path: Path) -> None:
    header: Header = {
        "__metadata__": describe(),
        "labels": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
        "0.pixels": {"dtype": "F32", "shape": shape, "data_offsets": [4, 4]},
    }
    with pytest.raises(InputError):
        load_memory(forge(tmp_path / "m", header, struct.pack("<i", 0)))


@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1, 10**9, 0, 1])
def test_a_header_length_that_lies_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_memory(small(), path)
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(InputError):
        load_memory(path)


BITS = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"], 8),
    **dict.fromkeys(["I16", "U16", "F16", "BF16"], 16),
    **dict.fromkeys(["I32", "U32"], 32),
    **dict.fromkeys(["I64", "U64", "F64", "C64"], 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


@pytest.mark.parametrize("dtype", sorted(BITS))
@pytest.mark.parametrize("kind", ["pixels", "composite"])
def test_other_types_of_numbers_are_refused(dtype: str, kind: str, tmp_path: Path) -> None:
    end = 4 + 64 * BITS[dtype] // 8
    names = {"pixels": ["0.pixels"], "composite": ["0.components", "0.weights"]}[kind]
    header: Header = {
        "__metadata__": describe(kinds=[kind]),
        "labels": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
        names[0]: {"dtype": dtype, "shape": [4, 1, 4, 4], "data_offsets": [4, end]},
    }
    if kind == "composite":
        header[names[1]] = {"dtype": "F32", "shape": [4, 1], "data_offsets": [end, end + 16]}
    with pytest.raises(InputError):
        load_memory(forge(tmp_path / "m", header, bytes(end + 16 * (kind == "composite"))))


def test_eight_bits_are_wanted_of_exemplars_and_thirty_two_of_labels(tmp_path: Path) -> None:
    floats, eight = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    load_memory(forge_tensors(tmp_path / "m", {"labels": labels(0), "0.pixels": eight}, kinds=["exemplars"]))
    wrong: list[tuple[dict[str, Tensor], str]] = [
        ({"labels": labels(0), "0.pixels": floats}, "exemplars"),
        ({"labels": labels(0), "0.pixels": eight}, "pixels"),
        ({"labels": labels(0).long(), "0.pixels": floats}, "pixels"),
        ({"labels": labels(0).float(), "0.pixels": floats}, "pixels"),
        ({"labels": labels(0)[None], "0.pixels": floats}, "pixels"),
        ({"labels": labels(0), "0.pixels": eight, "0.logits": torch.zeros(1, 2, dtype=torch.float64)}, "exemplars"),
        ({"labels": labels(0), "0.pixels": eight, "0.logits": torch.zeros(2, 2)}, "exemplars"),
        ({"labels": labels(0), "0.pixels": eight, "0.logits": torch.zeros(1)}, "exemplars"),
        ({"labels": labels(0), "0.pixels": floats, "0.logits": torch.zeros(1, 2)}, "pixels"),
    ]
    for tensors, kind in wrong:
        with pytest.raises(InputError):
            load_memory(forge_tensors(tmp_path / "m", tensors, kinds=[kind]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["0.components", "0.weights", "3.pixels", "4.logits"])
def test_values_that_are_not_numbers_are_refused(value: float, name: str, tmp_path: Path) -> None:
    memory = small().plus(4, Exemplars(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, 3)))
    tensors = {f"{label}.{key}": t.clone() for label, kept in memory.items() for key, t in kept.tensors().items()}
    whole = {"labels": labels(0, 3, 4), **tensors}
    kinds = ["composite", "pixels", "exemplars"]
    assert len(load_memory(forge_tensors(tmp_path / "m", whole, kinds=kinds))[0]) == 3
    tensors[name].view(-1)[-1] = value
    with pytest.raises(InputError, match="not numbers"):
        load_memory(forge_tensors(tmp_path / "m", whole, kinds=kinds))


@pytest.mark.parametrize("found", [(-1, 0), (0, 0), (1, 0), (0, 2), (0,), (0, 1, 2), (-(2**31), 2**31 - 1)])
def test_labels_that_are_negative_doubled_unsorted_or_not_those_stored_are_refused(
    found: tuple[int, ...], tmp_path: Path
) -> None:
    pixels = {"0.pixels": torch.zeros(1, 1, 2, 2), "1.pixels": torch.ones(1, 1, 2, 2)}
    load_memory(forge_tensors(tmp_path / "m", {"labels": labels(0, 1), **pixels}, kinds=["pixels"] * 2))
    with pytest.raises(InputError):
        load_memory(forge_tensors(tmp_path / "m", {"labels": labels(*found), **pixels}, kinds=["pixels"] * len(found)))


def test_a_negative_label_is_refused_even_where_all_else_fits(tmp_path: Path) -> None:
    pixels = {"-1.pixels": torch.zeros(1, 1, 2, 2), "0.pixels": torch.ones(1, 1, 2, 2)}
    with pytest.raises(InputError, match="its list of classes does not fit together"):
        load_memory(forge_tensors(tmp_path / "m", {"labels": labels(-1, 0), **pixels}, kinds=["pixels"] * 2))


@pytest.mark.parametrize(
    ("kind", "tensors", "form"),
    [
        ("exemplars", {"pixels": torch.zeros(1, 1, 1, 60_000, dtype=torch.uint8)}, {"size": [1, 65_535]}),
        ("exemplars", {"pixels": torch.zeros(1, 1, 4, 4, dtype=torch.uint8)}, {"size": [2, 4]}),
        (
            "composite",
            {"components": torch.zeros(100, 1, 1, 1), "weights": torch.zeros(100, 1)},
            {"size": [8000, 8000]},
        ),
    ],
    ids=["long lines", "made smaller", "components"],
)
def test_a_few_bytes_that_would_take_gigabytes_are_refused(
    kind: str, tensors: dict[str, Tensor], form: dict[str, object], tmp_path: Path
) -> None:
    named = {f"0.{name}": tensor for name, tensor in tensors.items()} | {"labels": labels(0)}
    path = forge_tensors(tmp_path / "m", named, format=FORMATS[1], kinds=[kind], forms=[form])
    with pytest.raises(InputError):
        load_memory(path)


def test_a_few_frequencies_of_a_long_strip_take_no_more_than_the_strip(tmp_path: Path) -> None:
    named = {"0.pixels": torch.ones(1, 1, 1, 1), "labels": labels(0)}
    form = {"pictures": [1, 65_535, 16], "frequencies": 1}
    path = forge_tensors(tmp_path / "m", named, format=FORMATS[1], forms=[form])
    code = (
        "import resource, sys; from ccmcl.memory_file import load_memory; "
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); "
        f"print(tuple(load_memory({str(path)!r})[0][0].images().shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1, 1, 65535, 16)"


def test_thousands_of_classes_are_read_at_the_pace_of_a_few(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        kept = Pixels(torch.zeros(1, 1, 1, 1))
        save_memory(Memory(dict.fromkeys(range(count), kept)), tmp_path / "m")
        begun = time.process_time()
        assert len(load_memory(tmp_path / "m")[0]) == count
        return time.process_time() - begun

    few, many = min(seconds(100) for _ in range(3)), min(seconds(1000) for _ in range(2))
    assert many < 40 * few, "ten times as many take about ten times as long, not a hundred times"


@pytest.mark.parametrize("weights", [(3, 4), (1, 4), (2,), (2, 2, 2), (2, 0), (0, 2)])
def test_weights_that_do_not_fit_the_components_are_refused(weights: tuple[int, ...], tmp_path: Path) -> None:
    tensors = {"labels": labels(0), "0.components": torch.rand(2, 1, 3, 3), "0.weights": torch.rand(weights)}
    with pytest.raises(InputError):
        load_memory(forge_tensors(tmp_path / "m", tensors, kinds=["composite"]))


def test_tensors_too_many_too_few_or_of_other_pictures_are_refused(tmp_path: Path) -> None:
    a, b = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3, 2)
    wrong: list[tuple[dict[str, Tensor], list[str]]] = [
        ({"labels": labels(0), "0.pixels": a, "0.weights": torch.zeros(1, 1)}, ["pixels"]),
        ({"labels": labels(0), "0.pixels": a, "7.pixels": a}, ["pixels"]),
        ({"labels": labels(0), "0.pixels": a, "extra": a}, ["pixels"]),
        ({"labels": labels(0), "0.components": a}, ["composite"]),
        ({"labels": labels(0), "0.weights": torch.zeros(1, 1)}, ["composite"]),
        ({"labels": labels(0, 1), "0.pixels": a}, ["pixels", "pixels"]),
        ({"labels": labels(0, 1), "0.pixels": a, "1.pixels": b}, ["pixels", "pixels"]),
        ({"0.pixels": a}, ["pixels"]),
        ({}, []),
    ]
    for tensors, kinds in wrong:
        with pytest.raises(InputError):
            load_memory(forge_tensors(tmp_path / "m", tensors, kinds=kinds))


@pytest.mark.parametrize(
    "changes",
    [
        {"kinds": []},
        {"kinds": ["pixels", "pixels"]},
        {"kinds": "pixels"},
        {"kinds": None},
        {"kinds": {"0": "pixels"}},
        {"kinds": ["unheard of"]},
        {"kinds": [None]},
        {"kinds": [7]},
        {"kinds": [True]},
        {"kinds": [["pixels"]]},
        {"kinds": [{"pixels": 1}]},
        {"kinds": ["composite"]},
        {"kinds": ["exemplars"]},
        {"names": None},
        {"names": "names"},
        {"names": [1]},
        {"names": [["zero"]]},
        {"names": {"zero": 0}},
        {"format": "ccmcl memory 3"},
        {"format": FORMATS[1]},
        *[{"format": FORMATS[1], "forms": forms} for forms in BAD_FORMS],
        {"format": None},
        {"format": ["ccmcl memory 1"]},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    tensors = {"labels": labels(0), "0.pixels": torch.zeros(1, 1, 2, 2)}
    load_memory(forge_tensors(tmp_path / "m", tensors))
    with pytest.raises(InputError):
        load_memory(forge_tensors(tmp_path / "m", tensors, **changes))


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "3", "null", '"text"', "{", "[" * 10**5, '{"a":' * 10**5, "9" * 5000, "NaN", "\x00", "{}"],
    ids=lambda text: text[:8],
)
def test_a_description_of_nonsense_is_refused(text: str, tmp_path: Path) -> None:
    header = change_offsets([8, 24], [24, 40]) | {"__metadata__": {"ccmcl": text}}
    with pytest.raises(InputError):
        load_memory(forge(tmp_path / "m", header, struct.pack("<ii8f", 0, 1, *range(8))))


@settings(max_examples=200)
@given(
    about=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(FORMATS[0]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["format", "kinds", "names", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_descriptions_at_random_are_refused(about: object, place: Path) -> None:
    header = change_offsets([8, 24], [24, 40]) | {"__metadata__": {"ccmcl": json.dumps(about)}}
    with pytest.raises(InputError):
        load_memory(forge(place, header, struct.pack("<ii8f", 0, 1, *range(8))))


@pytest.mark.parametrize(
    "metadata", [None, 3, [], {"ccmcl": 3}, {"ccmcl": {"format": FORMATS[0]}}, {"other": "{}"}, {}]
)
def test_a_header_without_our_description_is_refused(metadata: object, tmp_path: Path) -> None:
    header = change_offsets([8, 24], [24, 40]) | {"__metadata__": metadata}
    with pytest.raises(InputError):
        load_memory(forge(tmp_path / "m", header, struct.pack("<ii8f", 0, 1, *range(8))))


class Armed:
    """When unpickled, it creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int]]:
        return os.open, (str(self.marker), os.O_CREAT)


@pytest.mark.parametrize("way", ["pickle", "old pickle", "torch", "old torch"])
def test_a_pickle_with_the_right_name_runs_nothing(way: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "memory.safetensors"
    armed = Armed(marker)
    if "torch" in way:
        torch.save({"0.pixels": armed}, path, _use_new_zipfile_serialization=way == "torch")
        torch.load(io.BytesIO(path.read_bytes()), weights_only=False)
    else:
        path.write_bytes(pickle.dumps(armed, protocol=0 if way == "old pickle" else 5))
        pickle.loads(path.read_bytes())
    assert marker.exists(), "the pickle is a dud, and the test would show nothing"
    marker.unlink()
    with pytest.raises(InputError):
        load_memory(path)
    assert not marker.exists()


def bomb(side: int, classes: int) -> dict[str, Tensor]:
    parts = {"labels": labels(*range(classes))}
    for label in range(classes):
        parts |= {f"{label}.components": torch.zeros(1, 1, side, side), f"{label}.weights": torch.zeros(1, side * side)}
    return parts


def test_a_small_file_that_decodes_to_more_than_a_machine_holds_is_refused(tmp_path: Path) -> None:
    path = forge_tensors(tmp_path / "m", bomb(256, 1), kinds=["composite"])
    assert path.stat().st_size < 10**6
    assert MOST_DECODED < 4 * 256**4
    with pytest.raises(InputError, match=r"would decode to 16\.0 GiB"):
        load_memory(path)


def test_what_cannot_be_loaded_cannot_be_saved_and_what_is_large_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccmcl.memory_file.MOST_DECODED", 1000)
    large = Memory({0: Exemplars(torch.zeros(100, 3, 8, 8, dtype=torch.uint8))})
    save_memory(large, tmp_path / "large")
    assert load_memory(tmp_path / "large")[0].count == 100
    bloated = Memory({0: Composite(torch.zeros(1, 1, 40, 40), torch.zeros(1, 3000))})
    with pytest.raises(InputError, match="This memory would decode to"):
        save_memory(bloated, tmp_path / "bloated")
    assert not (tmp_path / "bloated").exists()


def test_the_limit_holds_for_all_classes_together(tmp_path: Path) -> None:
    classes = 20
    path = forge_tensors(tmp_path / "m", bomb(170, classes), kinds=["composite"] * classes)
    assert 4 * 170**4 < MOST_DECODED < classes * 4 * 170**4
    with pytest.raises(InputError, match=r"would decode to \d+\.\d GiB"):
        load_memory(path)


def test_a_file_that_is_not_there_or_is_a_folder_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*absent\.safetensors\."):
        load_memory(tmp_path / "absent.safetensors")
    with pytest.raises(InputError, match=r"folder|directory"):
        load_memory(tmp_path)


FORMS = [Form(size, squash, bits) for size in (None, (6, 5)) for squash in (False, True) for bits in (32, 16, 8)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("targets", [False, True], ids=["hard", "soft"])
def test_every_form_comes_back_as_it_was_saved(form: Form, targets: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = {
        "components": torch.randn(3, 2, 3, 3, generator=generator),
        "weights": torch.randn(3, 5, generator=generator),
    }
    free = {"pixels": torch.randn(4, 2, 3, 3, generator=generator)}
    soft = [torch.rand(count, 7, generator=generator).half() if targets else None for count in (5, 4)]
    memory = Memory(
        {
            2: Composite(**form.stored(mixed), targets=soft[0], form=form),
            5: Pixels(**form.stored(free), targets=soft[1], form=form),
        }
    )
    save_memory(memory, tmp_path / "m.safetensors", ["a"] * 6)
    again, _ = load_memory(tmp_path / "m.safetensors")
    for label, kept in memory.items():
        assert type(again[label]) is type(kept)
        assert again[label].form == kept.form
        assert bits(again[label].tensors()) == bits(kept.tensors())
    assert torch.equal(again.images(), memory.images())
    payload = sum(tensor.nbytes for tensor in load_file(tmp_path / "m.safetensors").values())
    assert payload == memory.nbytes == again.nbytes


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3])
def test_encoded_pictures_come_back_as_they_were_saved(codec: str, channels: int, tmp_path: Path) -> None:
    pictures = torch.randint(256, (4, channels, 9, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    kept = Encoded.of(pictures, codec, 80, torch.rand(4, 3), Form((18, 24)))
    save_memory(Memory({1: kept}), tmp_path / "m.safetensors")
    again, _ = load_memory(tmp_path / "m.safetensors")
    assert again[1].kind == "encoded"
    assert torch.equal(again.images(), kept.images())
    assert again.images().shape == (4, channels, 18, 24)
    assert again.nbytes == 4 + kept.files.nbytes + 16 + 48


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, about: tensors.update({"0.ends": tensors["0.ends"] - 1}),
        lambda tensors, about: tensors.update({"0.ends": tensors["0.ends"].flip(0)}),
        lambda tensors, about: tensors.update({"0.files": tensors["0.files"] ^ 255}),
        lambda tensors, about: tensors.update({"0.files": torch.zeros_like(tensors["0.files"])}),
        lambda tensors, about: about["forms"][0].update(shape=[3, 8, 9]),
        lambda tensors, about: about["forms"][0].update(shape=[3, 8]),
        lambda tensors, about: about["forms"][0].update(shape=[2, 8, 8]),
        lambda tensors, about: about["forms"][0].pop("shape"),
        lambda tensors, about: tensors.update({"0.more": torch.zeros(1)}),
    ],
)
def test_damaged_encoded_pictures_are_refused(change: Callable[[Any, Any], Any]) -> None:
    tensors, about = pack(Memory({0: Encoded.of(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "jpeg", 80)}))
    unpack(dict(tensors), about, "here")
    change(tensors, about)
    with pytest.raises(InputError, match="here"):
        unpack(tensors, about, "here")


def test_pictures_that_decode_to_too_much_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, about = pack(Memory({0: Encoded.of(torch.zeros(9, 3, 64, 64, dtype=torch.uint8), "webp", 80)}))
    monkeypatch.setattr("ccmcl.memory_file.MOST_DECODED", 9 * 3 * 64 * 64 - 1)
    monkeypatch.setattr("ccmcl.memory_file.MOST_GROWTH", 1)
    monkeypatch.setattr("ccmcl.kinds.decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(InputError):
        unpack(tensors, about, "here")


CODED = Pixels(
    torch.randint(-40, 40, (6, 1, 1, 12), generator=torch.Generator().manual_seed(0), dtype=torch.int16),
    targets=torch.rand(6, 3).half(),
    form=Form(frequencies=Frequencies((1, 8, 8), 12), step=0.25),
)


def test_coded_images_come_back_as_they_were_saved(tmp_path: Path) -> None:
    save_memory(Memory({1: CODED}), tmp_path / "m.safetensors")
    again, _ = load_memory(tmp_path / "m.safetensors")
    assert isinstance(again[1], Pixels)
    assert torch.equal(again[1].pixels, CODED.pixels)
    assert again[1].form == CODED.form
    assert bits(again[1].tensors()) == bits(CODED.tensors())
    payload = sum(tensor.nbytes for tensor in load_file(tmp_path / "m.safetensors").values())
    assert payload == again.nbytes == Memory({1: CODED}).nbytes


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, about: tensors.update({"0.count": tensors["0.count"] + 1}),
        lambda tensors, about: tensors.update({"0.count": tensors["0.count"] * 0}),
        lambda tensors, about: tensors.update({"0.count": -tensors["0.count"]}),
        lambda tensors, about: tensors.update({"0.count": tensors["0.count"] * 0 + (1 << 30)}),
        lambda tensors, about: tensors.update({"0.count": tensors["0.count"].expand(2)}),
        lambda tensors, about: tensors.update({"0.count": tensors["0.count"][0]}),
        lambda tensors, about: tensors.update({"0.code": tensors["0.code"][:-2]}),
        lambda tensors, about: tensors.update({"0.code": tensors["0.code"][:0]}),
        lambda tensors, about: tensors.update({"0.widths": tensors["0.widths"] + 64}),
        lambda tensors, about: tensors.update({"0.widths": tensors["0.widths"][:1]}),
        lambda tensors, about: tensors.update({"0.targets": tensors["0.targets"][:5]}),
        lambda tensors, about: tensors.update({"0.pixels": torch.zeros(6, 1, 1, 12)}),
        lambda tensors, about: tensors.pop("0.widths"),
        lambda tensors, about: about["forms"][0].update(step=1e-9),
        lambda tensors, about: about["forms"][0].update(step=-0.25),
        lambda tensors, about: about["forms"][0].update(step="0.25"),
        lambda tensors, about: about["forms"][0].update(step=float("nan")),
        lambda tensors, about: about["forms"][0].update(frequencies=13),
        lambda tensors, about: about["forms"][0].update(bits=8),
        lambda tensors, about: about["forms"][0].pop("step"),
        lambda tensors, about: (about["forms"][0].pop("frequencies"), about["forms"][0].pop("pictures")),
        lambda tensors, about: about.update(kinds=["exemplars"]),
        lambda tensors, about: about.update(kinds=["composite"]),
    ],
)
def test_damaged_coded_images_are_refused(change: Callable[[Any, Any], Any]) -> None:
    tensors, about = pack(Memory({0: CODED}))
    unpack(dict(tensors), about, "here")
    change(tensors, about)
    with pytest.raises(InputError, match="here"):
        unpack(tensors, about, "here")


def test_labels_that_are_one_number_are_refused() -> None:
    with pytest.raises(InputError, match="list of classes"):
        unpack({"labels": torch.tensor(0, dtype=torch.int32)}, {"format": FORMATS[0], "kinds": [], "names": []}, "here")
