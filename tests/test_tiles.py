"""Convolutions by tiles are convolutions, to the rounding; where they cannot be had, nothing changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccmcl import tiles
from ccmcl.compiling import Graphs, code_folder, has_tiles
from ccmcl.convolution import convolve, correlate
from ccmcl.engine import Classify, Engine, even
from ccmcl.nets import ConvNet
from ccmcl.residual import ResNet


@pytest.fixture(scope="module", autouse=True)
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    assert tiles.load(folder), "there is no C++ compiler here"
    return folder


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def differentiated(x: Tensor, y: Tensor) -> Tensor:
    """Differentiate a convolution by its kernel, as PyTorch does it, in double precision."""
    kernel = torch.zeros(y.shape[1], x.shape[1], 3, 3, dtype=torch.float64, requires_grad=True)
    value = (F.conv2d(x.double(), kernel, padding=1) * y.double()).sum()
    return torch.autograd.grad(value, kernel)[0]


SHAPES = st.tuples(
    st.integers(1, 40), st.sampled_from([16, 32, 48]), st.sampled_from([16, 64]), st.integers(1, 19), st.integers(1, 19)
)


def test_how_many_are_in_hand_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, kernel = drawn(150, 16, 4, 4), drawn(150, 32, 4, 4, seed=1), drawn(32, 16, 3, 3, seed=2)
    one = tiles.convolve_tiles(x, kernel), tiles.correlate_tiles(x, y)
    monkeypatch.setattr(tiles, "LARGE", 1)  # all kernels are
    two = tiles.convolve_tiles(x, kernel), tiles.correlate_tiles(x, y)
    monkeypatch.setattr(tiles, "MANY", 24)
    three = tiles.convolve_tiles(x, kernel), tiles.correlate_tiles(x, y)
    for found in (two, three):
        assert all(torch.equal(a, b) for a, b in zip(one, found, strict=True))


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(1, 3))
def test_they_are_pytorchs_convolution_and_its_derivative(shape: tuple[int, ...], threads: int) -> None:
    pictures, inward, outward, height, width = shape
    x, y = drawn(pictures, inward, height, width), drawn(pictures, outward, height, width, seed=1)
    kernel = drawn(outward, inward, 3, 3, seed=2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made, found = tiles.convolve_tiles(x, kernel), tiles.correlate_tiles(x, y)
    finally:
        torch.set_num_threads(before)
    exact = F.conv2d(x.double(), kernel.double(), padding=1)
    assert (made - exact).abs().max() <= 2e-5 * exact.abs().max()
    exact = differentiated(x, y)
    assert (found - exact).abs().max() <= 2e-5 * exact.abs().max()


def test_rounding_is_near_that_of_a_plain_convolution() -> None:
    x, y, kernel = drawn(32, 128, 16, 16), drawn(32, 128, 16, 16, seed=1), drawn(128, 128, 3, 3, seed=2) / 34
    exact = F.conv2d(x.double(), kernel.double(), padding=1)
    plain, tiled = ((way(x, kernel) - exact).norm() for way in (convolve, tiles.convolve_tiles))
    assert tiled < 5 * plain
    exact = differentiated(x, y)
    plain, tiled = ((way(x, y) - exact).norm() for way in (correlate, tiles.correlate_tiles))
    assert tiled < 8 * plain  # which sums thousands in parts, on some processors in more of them than on others
    assert tiled < 32 * torch.finfo(torch.float32).eps * exact.norm()


def test_they_take_the_place_of_plain_ones_only_where_wanted_and_fitting(code: Path) -> None:
    x = drawn(32, 32, 8, 8)
    assert not tiles.fitting(x, 32)
    with tiles.tiled(code):
        assert tiles.fitting(x, 32)
        assert not tiles.fitting(x.double(), 32)
        assert not tiles.fitting(x, 40)
        assert not tiles.fitting(x[:, :3], 32)
        assert not tiles.fitting(x[:2], 32)
        with tiles.tiled(None):
            assert not tiles.fitting(x, 32)
    assert not tiles.fitting(x, 32)


def test_second_derivatives_go_through_them(code: Path) -> None:
    x, kernel, y = drawn(32, 16, 8, 8), drawn(16, 16, 3, 3, seed=1), drawn(32, 16, 8, 8, seed=2)

    def twice(x: Tensor, kernel: Tensor) -> tuple[Tensor, ...]:
        def value(x: Tensor) -> Tensor:
            gradient: Tensor = torch.func.grad(lambda k: (convolve(x, k) ** 2 * y).sum())(kernel)
            return (gradient**2).sum()

        both: tuple[Tensor, ...] = torch.func.grad_and_value(value)(x)
        return both

    with tiles.tiled(code):
        found = twice(x, kernel)
    y = y.double()
    for one, exact in zip(found, twice(x.double(), kernel.double()), strict=True):
        assert torch.allclose(one.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def test_a_compiled_gradient_is_the_plain_one() -> None:
    net = ConvNet((1, 16, 16), 32)
    generator = torch.Generator().manual_seed(1)
    params, images = net.init(generator, 10), torch.rand(128, 1, 16, 16, generator=generator)
    batch = (images, torch.arange(128) % 10, even(128, images))
    graphs = Graphs()
    found, _ = Engine(graphs=graphs).gradient(Classify(net), params, batch)
    assert not graphs.failed
    folder = code_folder()
    assert folder is not None
    assert list(folder.glob("tiles-*.so"))
    plain, _ = Engine().gradient(Classify(net), params, batch)
    for name, gradient in plain.items():
        assert torch.allclose(found[name], gradient, atol=1e-4 * float(gradient.abs().max())), name


@pytest.mark.parametrize("net", [ConvNet((3, 16, 16), 32), ResNet((3, 16, 16), 32)], ids=["plain", "residual"])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_uncompiled_gradient_by_tiles_is_the_plain_one(net: ConvNet, threads: int) -> None:
    assert has_tiles()
    generator = torch.Generator().manual_seed(1)
    params, images = net.init(generator, 10), torch.rand(128, 3, 16, 16, generator=generator)
    batch = (images, torch.arange(128) % 10, even(128, images))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain, tiled = (Engine(tiles=wanted).gradient(Classify(net), params, batch)[0] for wanted in (False, True))
    finally:
        torch.set_num_threads(before)
    assert any(not torch.equal(tiled[name], plain[name]) for name in plain), "there were no tiles"
    for name, gradient in plain.items():
        assert torch.allclose(tiled[name], gradient, atol=1e-4 * float(gradient.abs().max())), name


def test_without_a_compiler_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not tiles.load(tmp_path / "nowhere")


def test_a_compiler_that_fails_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    with caplog.at_level(logging.WARNING, "ccmcl"):
        assert not tiles.load(tmp_path / "code")
    assert "going on without" in caplog.text
    assert not list(tmp_path.glob("code/*"))


def test_damaged_code_is_made_anew(code: Path, tmp_path: Path) -> None:
    (path,) = code.glob("tiles-*.so")
    (tmp_path / path.name).write_bytes(os.urandom(1000))
    assert tiles.load(tmp_path)
    assert (tmp_path / path.name).stat().st_size == path.stat().st_size
