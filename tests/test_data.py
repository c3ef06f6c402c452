"""Sets by name or by path: where they are looked for, what is believed of them, and what the cache may do."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.io import loadmat, savemat

from ccmcl import formats, own
from ccmcl.data import Dataset, Images, known, load, shape_of, status
from ccmcl.errors import InputError
from ccmcl.fetch import SOURCES, Source

TEN = tuple("0123456789")
noise = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep everything that a test writes inside its own folder."""
    for variable, name in [("CCMCL_CACHE", "cache"), ("CCMCL_DATA", "data"), ("XDG_CACHE_HOME", "home")]:
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def pixels(*shape: int) -> NDArray[np.uint8]:
    return noise.integers(0, 256, shape, np.uint8)


def put_mnist(folder: Path, count: int = 20, pack: bool = False, spell: str = "-idx") -> Source:
    """Write a small set in the form of MNIST, and return a source to which it is the official one."""
    folder.mkdir(parents=True, exist_ok=True)
    contents, downloads = {}, {}
    for part, n in (("train", count), ("t10k", 10)):
        arrays = {"images-idx3": pixels(n, 28, 28), "labels-idx1": (np.arange(n) % 10).astype(np.uint8)}
        for kind, array in arrays.items():
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            content = head + (array + part.encode()[0] * (array.ndim == 3)).tobytes()
            name = f"{part}-{kind}-ubyte"
            packed = gzip.compress(content)
            path = folder / (name.replace("-idx", spell) + ".gz" * pack)
            path.write_bytes(packed if pack else content)
            contents[name], downloads[f"{name}.gz"] = formats.md5(content), formats.md5(packed)
    return Source((), downloads, contents)


def put_cifar(folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    batches = {}
    for name in SOURCES["cifar10"].contents:
        labels = np.arange(10, dtype=np.uint8)[:, None]
        batches[name] = np.concatenate([labels, pixels(10, 3072)], 1).tobytes()
        (folder / name).write_bytes(batches[name])
    return batches


def put_archive(path: Path, batches: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(batch)
            archive.addfile(member, io.BytesIO(batch))


def put_npz(path: Path, x: Any = None, y: Any = None, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = pixels(20, 6, 5) if x is None else x
    np.savez(path, x=x, y=np.arange(len(x)) % 2 if y is None else y, **more)
    return path


def same(a: Dataset, b: Dataset) -> bool:
    pairs = [(a.train.pixels, b.train.pixels), (a.train.labels, b.train.labels)]
    pairs += [(a.test.pixels, b.test.pixels), (a.test.labels, b.test.labels)]
    return all(torch.equal(x, y) for x, y in pairs) and a.fingerprint == b.fingerprint


def test_images_say_what_does_not_fit() -> None:
    x, y = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 1])
    assert len(Images(x, y, ("a", "b"))) == 3
    assert Images(x, y, ("a", "b")).of_class(1).tolist() == [1, 2]
    for bad, complaint in [
        ((x.float(), y, ("a", "b")), "expected uint8"),
        ((x[0], y, ("a", "b")), "expected uint8"),
        ((x, y.int(), ("a", "b")), "expected int64"),
        ((x, y[:2], ("a", "b")), "one for each of 3 images"),
        ((x, y, ("a",)), "expected 0 to 0"),
        ((x, y - 1, ("a", "b")), "Labels run from -1"),
        ((x, y, ("a", "a")), "not distinct"),
        ((x, y, ("a", "b\x1b[2J")), "cannot be printed"),
        ((x, y, ("a", " ")), "cannot be printed"),
    ]:
        with pytest.raises(InputError, match=complaint):
            Images(*bad)


def test_a_dataset_has_both_parts_of_a_kind_and_every_class() -> None:
    x = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    train = Images(x, torch.tensor([0, 1]), ("a", "b"))
    Dataset("a", train, train, "here", None, "")
    for test, complaint in [
        (Images(x[:, :, :1], train.labels, train.classes), "of the same size"),
        (Images(x[:0], train.labels[:0], train.classes), "some of each"),
        (Images(x, train.labels, ("a", "c")), "classes .* differ"),
    ]:
        with pytest.raises(InputError, match=complaint):
            Dataset("a", train, test, "here", None, "")
    lacking = replace(train, labels=torch.tensor([0, 0]))
    with pytest.raises(InputError, match="no training images of the class 'b'"):
        Dataset("a", lacking, lacking, "here", None, "")


def test_digits_are_embedded_and_touch_no_disk(tmp_path: Path) -> None:
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.official) == (1435, 362, None)
    assert (int(digits.train.pixels.min()), int(digits.train.pixels.max())) == (0, 255)
    assert sorted(set(digits.train.pixels.flatten().tolist())) == [round(v * 255 / 16 + 1e-9) for v in range(17)]
    assert digits.fingerprint == load("digits").fingerprint == "37ba7bcbac653e28"
    assert list(tmp_path.iterdir()) == []
    counts = torch.bincount(digits.test.labels) / torch.bincount(digits.train.labels)
    assert torch.allclose(counts, torch.full((10,), 0.25), atol=0.01)


def test_shapes_of_known_names_need_no_disk() -> None:
    assert known() == ("digits", "mnist", "fashion-mnist", "cifar10", "svhn")
    assert [shape_of(name, "/nowhere") for name in known()] == [
        (1, 8, 8),
        (1, 28, 28),
        (1, 28, 28),
        (3, 32, 32),
        (3, 32, 32),
    ]


@pytest.mark.parametrize("folder", ["data/mnist", "data"])
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("spell", ["-idx", ".idx"])
def test_mnist_is_found_in_any_spelling(tmp_path: Path, folder: str, pack: bool, spell: str) -> None:
    source = put_mnist(tmp_path / folder, pack=pack, spell=spell)
    mnist = load("mnist", download=False, sources={"mnist": source})
    assert (mnist.official, mnist.source, len(mnist.train)) == (True, str(tmp_path / folder), 20)
    assert mnist.train.classes == TEN


def test_the_argument_goes_before_the_environment(tmp_path: Path) -> None:
    put_mnist(tmp_path / "data", 20)
    put_mnist(tmp_path / "else", 30)
    assert len(load("mnist").train) == 20
    assert len(load("mnist", tmp_path / "else").train) == 30


def test_content_that_is_not_official_is_used_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = put_mnist(tmp_path / "data")
    load("mnist", sources={"mnist": source})
    assert caplog.messages == []
    for _ in ("parsed", "from the cache"):
        assert load("mnist").official is False
        assert len(caplog.messages) == 1
        assert "not the official one" in caplog.messages[0]
        assert caplog.records[0].name == "ccmcl"
        caplog.clear()


def test_fashion_is_not_taken_for_mnist_though_its_files_are_called_the_same(tmp_path: Path) -> None:
    mnist, fashion = put_mnist(tmp_path / "a", 20), put_mnist(tmp_path / "b", 30)
    sources = {"mnist": mnist, "fashion-mnist": fashion}
    assert load("fashion-mnist", tmp_path / "b", sources=sources).official is True
    with pytest.raises(InputError, match=r"fashion-mnist is neither in .*`ccmcl data fashion-mnist` fetches it"):
        load("fashion-mnist", tmp_path / "a", download=False, sources=sources)
    assert load(tmp_path / "b", sources=sources).name == "fashion-mnist"
    assert load(str(tmp_path / "a"), sources=sources).name == "mnist"


@pytest.mark.parametrize("place", ["data/cifar10/cifar-10-batches-bin", "data/cifar-10-batches-bin", "data"])
def test_cifar_batches_are_found(tmp_path: Path, place: str) -> None:
    put_cifar(tmp_path / place)
    cifar = load("cifar10", download=False)
    assert (len(cifar.train), len(cifar.test), cifar.official) == (50, 10, False)
    assert cifar.train.classes[8] == "ship"


def test_a_cifar_archive_is_as_good_as_its_batches(tmp_path: Path) -> None:
    batches = put_cifar(tmp_path / "loose")
    (tmp_path / "packed").mkdir()
    put_archive(tmp_path / "packed" / "cifar-10-binary.tar.gz", batches)
    contents = {name: formats.md5(batch) for name, batch in batches.items()}
    sources = {"cifar10": replace(SOURCES["cifar10"], contents=contents)}
    loose, packed = (load("cifar10", tmp_path / name, sources=sources) for name in ("loose", "packed"))
    assert same(loose, packed)
    assert loose.official is packed.official is True
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == ["cifar-10-binary.tar.gz"]


def test_the_pickled_form_of_cifar_is_named_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "data" / "cifar-10-batches-py").mkdir(parents=True)
    for name in ("cifar10", str(tmp_path / "data")):
        with pytest.raises(InputError, match=r"a pickle, and ccmcl opens none.*`ccmcl data cifar10` fetches"):
            load(name, download=False)


def test_svhn_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        arrays = {"X": pixels(32, 32, 3, 20), "y": (np.arange(20) % 10 + 1)[:, None].astype(np.uint8)}
        savemat(str(tmp_path / "data" / f"{part}_32x32.mat"), arrays)
    svhn = load("svhn", download=False)
    assert (len(svhn.train), int(svhn.train.labels[9]), svhn.official) == (20, 0, False)


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    (tmp_path / "website").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "website")))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_is_missing_is_fetched_once(tmp_path: Path, website: str) -> None:
    source = replace(put_mnist(tmp_path / "website", pack=True), mirrors=(website,))
    with pytest.raises(InputError, match="`ccmcl data mnist` fetches it"):
        load("mnist", download=False, sources={"mnist": source})
    first = load("mnist", sources={"mnist": source})
    assert (first.official, first.source) == (True, str(tmp_path / "data" / "mnist"))
    assert sorted(p.name for p in (tmp_path / "data" / "mnist").iterdir()) == sorted(source.downloads)
    assert same(first, load("mnist", download=False, sources={"mnist": source}))


def test_a_download_that_fails_is_a_sentence(tmp_path: Path, website: str) -> None:
    source = replace(put_mnist(tmp_path / "elsewhere", pack=True), mirrors=(website,))
    with pytest.raises(InputError, match="404"):
        load("mnist", sources={"mnist": source})


def test_the_second_load_neither_parses_nor_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_mnist(tmp_path / "data" / "mnist")
    first = load("mnist")
    monkeypatch.setattr(formats, "mnist", None)
    monkeypatch.setattr(formats, "md5", None)
    second = load("mnist")
    assert same(first, second)
    assert (second.official, second.source, second.train.classes) == (False, first.source, TEN)


def test_writing_into_a_mapped_set_does_not_reach_the_cache(tmp_path: Path) -> None:
    put_npz(tmp_path / "own.npz")
    first, second = load(tmp_path / "own.npz"), load(tmp_path / "own.npz")
    second.train.pixels.zero_()
    assert same(first, load(tmp_path / "own.npz"))


def test_a_changed_source_is_parsed_again_and_replaces_its_cache(tmp_path: Path) -> None:
    path = put_npz(tmp_path / "own.npz")
    first = load(path)
    put_npz(path)
    second = load(path)
    assert first.fingerprint != second.fingerprint
    assert same(second, load(path))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_the_cache_does_not_depend_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_npz(tmp_path / "own.npz")
    load(tmp_path / "own.npz")
    monkeypatch.setattr(own, "npz", None)
    monkeypatch.chdir(tmp_path)
    assert load("own.npz").source == "own.npz"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def scribble(path: Path) -> None:
    path.write_bytes(b"\xff" * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forge(path: Path, **changed: torch.Tensor) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    save_file({name: tensor.clone() for name, tensor in load_file(path).items()} | changed, path, about)


def forge_labels(path: Path) -> None:
    forge(path, **{"train.labels": torch.full((16,), 7)})


def forge_shape(path: Path) -> None:
    forge(path, **{"test.pixels": torch.zeros(4, 1, 6, 7, dtype=torch.uint8)})


def forge_type(path: Path) -> None:
    forge(path, **{"train.pixels": torch.zeros(16, 1, 6, 5)})


def forget(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("damage", [cut, scribble, empty, forge_labels, forge_shape, forge_type, forget])
def test_a_damaged_cache_is_parsed_again_and_repaired(
    tmp_path: Path, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(put_npz(tmp_path / "own.npz"))
    (cache,) = (tmp_path / "cache").iterdir()
    sound = cache.read_bytes()
    damage(cache)
    assert cache.read_bytes() != sound
    assert same(first, load(tmp_path / "own.npz"))
    monkeypatch.setattr(own, "npz", None)
    assert same(first, load(tmp_path / "own.npz"))


def test_without_a_cache_it_is_only_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CCMCL_CACHE", str(tmp_path / "file" / "below"))
    path = put_npz(tmp_path / "own.npz")
    assert same(load(path), load(path))


def test_own_arrays_are_loaded_by_path(tmp_path: Path) -> None:
    own = load(put_npz(tmp_path / "flowers.npz", classes=["rose", "tulip"]))
    assert (own.name, own.official, own.source) == ("flowers", None, str(tmp_path / "flowers.npz"))
    assert (len(own.train), len(own.test), own.train.classes) == (16, 4, ("rose", "tulip"))
    assert shape_of(str(tmp_path / "flowers.npz")) == (1, 6, 5)


def test_own_pictures_are_loaded_by_path_and_then_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(6, 5, 3)).save(tmp_path / "pets" / name)
    first = load(tmp_path / "pets")
    assert (first.name, first.train.classes, tuple(first.test.pixels.shape)) == (
        "pets",
        ("cat", "dog"),
        (2, 3, 6, 5),
    )
    monkeypatch.setattr(own, "pictures", None)
    assert same(first, load(tmp_path / "pets"))


def test_the_fingerprint_changes_with_any_content(tmp_path: Path) -> None:
    x, y = pixels(20, 6, 5), np.arange(20) % 2
    brighter, swapped = x.copy(), y.copy()
    brighter[3, 2, 1] ^= 1
    swapped[[0, 1]] = swapped[[1, 0]]
    variants: list[dict[str, Any]] = [
        {"x": x, "y": y},
        {"x": brighter, "y": y},
        {"x": x, "y": swapped},
        {"x": x, "y": y, "classes": ["a", "b"]},
        {"x": x.reshape(20, 5, 6), "y": y},
    ]
    prints = {load(put_npz(tmp_path / f"{k}.npz", **v)).fingerprint for k, v in enumerate(variants)}
    assert len(prints) == len(variants)
    assert load(put_npz(tmp_path / "again.npz", x, y)).fingerprint in prints


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (
            np.concatenate([pixels(10, 6, 5), np.full((10, 6, 5), 9, np.uint8)]),
            "class 'b' is of one plain colour",
        ),
        (
            np.concatenate([pixels(10, 6, 5, 3), np.tile(pixels(10, 1, 1, 3), (1, 6, 5, 1))]),
            "one plain colour",
        ),
        (pixels(1, 6, 5), "some of each"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(tmp_path: Path, x: Any, complaint: str) -> None:
    y = np.where(np.arange(len(x)) < 10, "a", "b")
    with pytest.raises(InputError, match=complaint):
        load(put_npz(tmp_path / "own.npz", x, y))


def test_a_class_may_have_some_plain_images(tmp_path: Path) -> None:
    x = pixels(20, 6, 5)
    x[:18] = 0
    assert len(load(put_npz(tmp_path / "own.npz", x)).train) == 16


def test_a_name_given_without_training_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no training images of the class 'lily'"):
        load(put_npz(tmp_path / "own.npz", classes=["rose", "tulip", "lily"]))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("minst", "did you mean 'mnist'"),
        ("MNIST", "did you mean 'mnist'"),
        ("", "no data set, file or folder ''"),
        ("/no/such/folder", "no data set, file or folder '/no/such/folder'"),
        ("a" * 5000, "File name too long"),
        ("\0", "no data set, file or folder"),
        ("~nobody-of-that-name/set", "home directory"),
        ("/dev/null", "/dev/null: expected a .npz file"),
    ],
)
def test_an_unknown_name_is_a_sentence(name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        load(name)


def test_a_folder_of_nothing_known_is_a_sentence(tmp_path: Path) -> None:
    put_mnist(tmp_path / "half")
    (tmp_path / "half" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"half: expected .* or a whole official set"):
        load(tmp_path / "half")


def test_status_has_a_row_for_each_set(tmp_path: Path) -> None:
    put_mnist(tmp_path / "data" / "mnist")
    put_mnist(tmp_path / "data" / "fashion-mnist")
    (tmp_path / "data" / "fashion-mnist" / "t10k-images-idx3-ubyte").write_bytes(b"oh no")
    rows = {row.name: row for row in status()}
    assert tuple(rows) == known()
    digits, mnist, fashion, cifar = (rows[name] for name in ("digits", "mnist", "fashion-mnist", "cifar10"))
    assert (digits.found, digits.official, digits.train, digits.problem) == ("embedded", None, 1435, None)
    assert (mnist.found, mnist.official) == (str(tmp_path / "data" / "mnist"), False)
    assert (mnist.train, mnist.test, mnist.shape) == (20, 10, (1, 28, 28))
    assert mnist.size == 4 * 8 + 2 * 8 + 30 * 784 + 30
    assert fashion.found is not None
    assert "t10k-images-idx3-ubyte: begins with" in str(fashion.problem)
    assert (cifar.found, cifar.official, cifar.train, cifar.size) == (None, None, None, 0)


REAL = os.environ.get("CCMCL_TEST_DATA", "")
real = pytest.mark.skipif(
    not REAL, reason="real data not at hand: set CCMCL_TEST_DATA (a folder made by shared/data/prepare)"
)
COUNTS = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([6000] * 10, [1000] * 10),
    "cifar10": ([5000] * 10, [1000] * 10),
    "svhn": (
        [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
        [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
    ),
}


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@real
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_set_has_its_images_and_is_mapped_within_a_second(
    name: str, real_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCMCL_CACHE", str(real_cache))
    first = load(name, REAL, download=False)
    train, test = (torch.bincount(part.labels).tolist() for part in (first.train, first.test))
    assert (train, test) == COUNTS[name]
    assert first.official is (name != "svhn")  # the prepared SVHN has not the official bytes
    assert tuple(first.train.pixels.shape[1:]) == tuple(first.test.pixels.shape[1:]) == shape_of(name)
    began = time.perf_counter()
    second = load(name, REAL, download=False)
    assert time.perf_counter() - began < 1
    assert same(first, second)


def by_hand(name: str, k: int) -> tuple[NDArray[np.uint8], int]:
    """Decode one test image without the parsers."""
    folder = Path(REAL, name)
    if name == "svhn":
        arrays = loadmat(str(folder / "test_32x32.mat"))
        return arrays["X"][:, :, :, k].transpose(2, 0, 1), int(arrays["y"][k, 0]) % 10
    if name == "cifar10":
        record = (folder / "cifar-10-batches-bin" / "test_batch.bin").read_bytes()[3073 * k : 3073 * (k + 1)]
        return np.frombuffer(record[1:], np.uint8).reshape(3, 32, 32), record[0]
    images = (folder / "t10k-images-idx3-ubyte").read_bytes()
    image = np.frombuffer(images, np.uint8, 784, 16 + 784 * k).reshape(1, 28, 28)
    return image, (folder / "t10k-labels-idx1-ubyte").read_bytes()[8 + k]


@real
@pytest.mark.parametrize("name", COUNTS)
def test_a_real_image_is_as_decoded_by_hand(name: str, real_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCMCL_CACHE", str(real_cache))
    test = load(name, REAL, download=False).test
    image, label = by_hand(name, 1234)
    np.testing.assert_array_equal(test.pixels[1234].numpy(), image)
    assert test.labels[1234] == label
