"""A picture's lowest frequencies are those of the cosine transform, and what is nearest among them to the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.fft import dctn

from ccmcl.compiling import Graphs
from ccmcl.engine import Classify, Engine, even
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment
from ccmcl.forms import Form
from ccmcl.frequencies import FEW, QUIET, Frequencies, quiet_edge
from ccmcl.kinds import Composite, Pixels, formed
from ccmcl.memory import Memory
from ccmcl.memory_file import load_memory, save_memory
from ccmcl.nets import ConvNet
from ccmcl.planning import plan_of
from ccmcl.tensor_files import read_tensors, write_tensors

SHAPE = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 12))


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@given(SHAPE, st.data())
def test_they_are_those_of_scipys_cosine_transform(shape: tuple[int, int, int], data: Any) -> None:
    channels, height, width = shape
    count = data.draw(st.integers(1, height * width))
    few, pictures = Frequencies(shape, count), drawn(3, *shape)
    theirs = dctn(pictures.numpy(), axes=(1, 2, 3), norm="ortho")
    radius = (np.arange(height)[:, None] / height) ** 2 + (np.arange(width)[None] / width) ** 2
    mine = few.of(pictures)[:, 0, 0].numpy()
    for channel in range(channels):
        start, size = (0, count) if channel == 0 else (count + (channel - 1) * -(-count // 4), -(-count // 4))
        kept, spectrum = mine[:, start : start + size], theirs[:, channel].reshape(3, -1)
        places = [int(np.abs(spectrum - one[:, None]).sum(0).argmin()) for one in kept.T]
        assert np.allclose(spectrum[:, places], kept)
        others = np.delete(radius.ravel(), places)
        assert not len(others) or radius.ravel()[places].max() <= others.min() + 1e-12


@given(SHAPE, st.data())
def test_leaving_out_the_others_keeps_what_is_there(shape: tuple[int, int, int], data: Any) -> None:
    few = Frequencies(shape, data.draw(st.integers(1, shape[1] * shape[2])))
    basis = few.basis(torch.zeros(1, dtype=torch.float64))
    assert basis.shape == (few.numbers, shape[0] * shape[1] * shape[2])
    assert torch.allclose(basis @ basis.mT, torch.eye(few.numbers, dtype=torch.float64), atol=1e-12)
    seen = few.through(drawn(3, *shape))
    assert torch.allclose(few.through(seen), seen)
    assert torch.allclose(few.of(seen), few.of(drawn(3, *shape)))


@given(SHAPE, st.integers(1, 4), st.data())
def test_inside_a_margin_they_are_those_of_the_picture_cut_out_and_outside_its_edge_goes_on(
    shape: tuple[int, int, int], margin: int, data: Any
) -> None:
    channels, height, width = shape
    count = data.draw(st.integers(1, height * width))
    few = Frequencies((channels, height + 2 * margin, width + 2 * margin), count, margin)
    assert few.inside == (height, width)
    pictures = drawn(3, *few.shape)
    cut = pictures[:, :, margin : margin + height, margin : margin + width]
    inner = Frequencies(shape, count)
    assert torch.allclose(few.of(pictures), inner.of(cut))
    seen = few.through(pictures)
    wanted = np.pad(inner.through(cut).numpy(), [(0, 0), (0, 0), (margin, margin), (margin, margin)], mode="edge")
    assert np.allclose(seen.numpy(), wanted)
    assert torch.allclose(few.through(seen), seen)
    assert few.fits((height, width))


@given(
    pixels=hnp.arrays(
        np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(4, 17), st.integers(4, 17))
    ),
    quiet=st.integers(0, 5),
)
def test_a_quiet_edge_is_the_widest_in_which_hardly_anything_varies(pixels: np.ndarray, quiet: int) -> None:
    inner = pixels.copy()
    if quiet:
        inner[:] = 7
        inside = np.s_[:, :, quiet : pixels.shape[2] - quiet, quiet : pixels.shape[3] - quiet]
        inner[inside] = pixels[inside]
    varies = inner.astype(float).var(0).sum(0)
    edge = quiet_edge(torch.from_numpy(np.tile(inner, (-(-FEW // len(inner)), 1, 1, 1))))
    if not varies.any():
        assert edge == 0
        return

    def outside(width: int) -> float:
        return float(varies.sum() - varies[width : len(varies) - width, width : varies.shape[1] - width].sum())

    most = min(inner.shape[2:]) // 4
    assert min(quiet, most) <= edge <= most
    assert outside(edge) <= QUIET * varies.sum() * (1 + 1e-9)
    assert edge == most or outside(edge + 1) > QUIET * varies.sum() * (1 - 1e-9)


def test_all_frequencies_of_one_channel_are_the_picture() -> None:
    pictures = drawn(3, 1, 6, 9)
    assert torch.allclose(Frequencies((1, 6, 9), 54).through(pictures), pictures)
    assert Frequencies((3, 6, 9), 54).numbers == 54 + 2 * 14


@pytest.mark.parametrize(("shape", "count"), [((1, 8, 8), 0), ((1, 8, 8), 65), ((3, 0, 8), 1), ((1, 2000, 2000), 9)])
def test_what_cannot_be_kept_is_refused(shape: tuple[int, int, int], count: int) -> None:
    with pytest.raises(InputError):
        Frequencies(shape, count)


@pytest.mark.parametrize(("margin", "count"), [(4, 1), (9, 1), (-1, 1), (2, 17)])
def test_a_margin_that_leaves_too_little_is_refused(margin: int, count: int) -> None:
    with pytest.raises(InputError, match="margin"):
        Frequencies((1, 8, 9), count + 4 * (margin == 2), margin)


def test_a_network_behind_them_sees_nothing_else() -> None:
    few = Frequencies((3, 16, 16), 20)
    net = ConvNet((3, 16, 16), 16, centred=True, frequencies=few)
    params = net.init(torch.Generator().manual_seed(0), 4)
    images = drawn(5, 3, 16, 16).float()
    assert torch.allclose(net(params, images), net(params, few.through(images)), atol=1e-5)
    assert not torch.allclose(net(params, images), ConvNet((3, 16, 16), 16, centred=True)(params, images), atol=1e-2)


def test_compiled_they_are_the_same() -> None:
    net = ConvNet((3, 16, 16), 16, max_blocks=1, frequencies=Frequencies((3, 16, 16), 30))
    params = net.init(torch.Generator().manual_seed(0), 10)
    images = drawn(64, 3, 16, 16).float()
    batch, graphs = (images, torch.arange(64) % 10, even(64, images)), Graphs()
    found, _ = Engine(graphs=graphs).gradient(Classify(net), params, batch)
    assert not graphs.failed
    plain, _ = Engine().gradient(Classify(net), params, batch)
    for name, gradient in plain.items():
        assert torch.allclose(found[name], gradient, atol=1e-3 * float(gradient.abs().max())), name


def test_a_form_of_them_gives_back_what_is_put_in() -> None:
    few = Frequencies((3, 8, 8), 30)
    pictures = (0.5 + (few.through(drawn(4, 3, 8, 8) - 0.5)) / 4).float()
    for squash in (False, True):
        form = Form(squash=squash, frequencies=few)
        numbers = form.encoded(pictures, (3, 8, 8))
        assert numbers.shape == (4, 1, 1, few.numbers)
        made = form.decoded({"pixels": numbers})
        # A sigmoid of few frequencies has others as well.
        assert (made - pictures).square().mean().sqrt() < (0.02 if squash else 1e-5)
        eight = Form(squash=squash, bits=8, frequencies=few)
        assert torch.allclose(eight.decoded(eight.loaded(eight.stored({"pixels": numbers}))), made, atol=0.02)


def saved(path: Path) -> Path:
    few = Frequencies((3, 8, 8), 10, margin=1)
    numbers = {"components": torch.rand(2, 1, 1, few.numbers), "weights": torch.rand(2, 5)}
    form = Form(bits=8, frequencies=few)
    memory = Memory().plus(0, formed(Composite, numbers, form))
    save_memory(memory.plus(1, formed(Pixels, {"pixels": torch.rand(2, 1, 1, few.numbers)}, form)), path)
    again, _ = load_memory(path)
    assert [one.form for one in again.values()] == [form, form]
    assert again.images().shape == (7, 3, 8, 8)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"frequencies": 11},
        {"frequencies": 0},
        {"frequencies": True},
        {"frequencies": 10**9},
        {"frequencies": "10"},
        {"margin": 3},
        {"margin": -1},
        {"margin": 0},
        {"margin": "1"},
        {"margin": [1]},
        {"pictures": [3, 8]},
        {"pictures": [3, 60_000, 60_000]},
        {"pictures": [3, 8, -8]},
        {"pictures": None},
        {"size": [8, 8]},
    ],
    ids=json.dumps,
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    tensors, about = read_tensors(saved(tmp_path / "m.safetensors"))
    about["forms"][0] |= change
    write_tensors(tmp_path / "wrong.safetensors", tensors, about)
    with pytest.raises(InputError, match="damaged"):
        load_memory(tmp_path / "wrong.safetensors")


def test_an_experiment_says_how_many_and_who_sees_them() -> None:
    given: dict[str, Any] = {"dataset": "mnist", "preset": "paper"}
    experiment = Experiment.of(**given, frequencies=70, lens="yes")
    plan = plan_of(experiment, (1, 28, 28), 10)
    assert plan.net.frequencies == Frequencies((1, 28, 28), 70)
    assert plan.learned("composite").frequencies == plan.net.frequencies
    assert plan_of(Experiment.of(**given, frequencies=70), (1, 28, 28), 10).net.frequencies is None
    with pytest.raises(InputError, match="from 1 to 784 frequencies"):
        plan_of(Experiment.of(**given, frequencies=9999), (1, 28, 28), 10)
    with pytest.raises(InputError, match="give frequencies"):
        Experiment.of(**given, lens="yes")
    with pytest.raises(InputError, match="not both"):
        Experiment.of(**given, frequencies=70, reduction=2)
    few = plan_of(Experiment.of(**given, frequencies=70, lens="yes", margin="03"), (1, 28, 28), 10)
    assert few.net.frequencies == few.learned("composite").frequencies == Frequencies((1, 28, 28), 70, 3)
    assert Experiment.of(**given, frequencies=70, margin="03").margin == "3"
    for count, margin in ((70, 5), (400, 4), (484, 3), (784, 0)):  # there must be room for all of them
        found = plan_of(Experiment.of(**given, frequencies=count, margin="auto"), (1, 28, 28), 10, edge=5)
        assert found.shape.margin == margin
    for edge, margin, count in ((0, 0, 130), (3, 3, 80), (7, 7, 32), (12, 11, 32)):  # as many as suit what is inside
        asked = Experiment.of(**given, budget="100", frequencies="auto", margin="auto")
        found = plan_of(asked, (1, 28, 28), 10, edge=edge)
        assert (found.shape.margin, found.shape.frequencies) == (margin, count)
    with pytest.raises(InputError, match="the margin 0"):
        Experiment.of(**given, margin="3")
    with pytest.raises(InputError, match="margin must be auto or a number"):
        Experiment.of(**given, frequencies=70, margin="-3")


def test_frequencies_that_no_machine_has_room_for_are_refused() -> None:
    with pytest.raises(InputError, match="keep fewer"):
        Frequencies((1, 1024, 1024), 65_535)
