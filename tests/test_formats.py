"""What the parsers make of sound files, and of files that were cut, swapped, forged or booby-trapped."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from ccmcl import formats, own
from ccmcl.errors import InputError

TEN = tuple("0123456789")
BATCHES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
sizes = st.integers(0, 5)
noise = np.random.default_rng(0)


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def random(*shape: int, below: int = 256) -> NDArray[np.uint8]:
    return noise.integers(0, below, shape, np.uint8)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@contextmanager
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@settings(deadline=None)
@given(st.lists(sizes, min_size=1, max_size=3), st.booleans())
def test_idx_reads_what_was_written(shape: list[int], packed: bool) -> None:
    array, pack = random(*shape), gzip.compress if packed else bytes
    with temporary() as folder:
        read, md5 = formats.read_idx(put(folder, "a", pack(idx(array))), array.ndim)
    np.testing.assert_array_equal(read, array)
    assert md5 == formats.md5(idx(array))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "begins with nothing"),
        (b"GIF89a, or whatever", "begins with 47 49 46 38"),
        (idx(random(5)), "of bytes with 3 axes"),
        (bytes((0, 0, 8, 3, 0, 0)), "and 3 sizes"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 1 << 31, 28, 28), "promises 1683627180032 bytes"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", 0, 2**32 - 1, 2**32 - 1), "cannot be read as an IDX file"),
        (idx(random(2, 28, 28))[:-1], "promises 1568 bytes, but it has only 1567"),
        (idx(random(2, 28, 28)) + b"!", "it has more than that"),
        (gzip.compress(idx(random(2, 28, 28)))[:-9], "cannot be read as an IDX file"),
        (gzip.compress(idx(random(2, 28, 28))[:-1]), "it has only 1567"),
        (b"\x1f\x8b and no gzip behind", "cannot be read as an IDX file"),
    ],
)
def test_an_unsound_idx_file_is_named_with_what_is_wrong(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = put(tmp_path, "images", data)
    with pytest.raises(InputError, match=complaint) as caught:
        formats.read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_a_gzip_bomb_is_not_unpacked_beyond_its_header(tmp_path: Path) -> None:
    bomb = gzip.compress(idx(random(2, 28, 28)) + bytes(1 << 26), 9)
    with pytest.raises(InputError, match="more than that"):
        formats.read_idx(put(tmp_path, "bomb.gz", bomb), 3)


def test_a_missing_or_unreadable_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        formats.read_idx(tmp_path / "none", 3)
    with pytest.raises(InputError, match="Is a directory"):
        formats.read_idx(tmp_path, 3)


def mnist_files(folder: Path, **replaced: NDArray[np.uint8]) -> dict[str, Path]:
    arrays = {"train-images-idx3": random(9, 28, 28), "train-labels-idx1": random(9, below=10)}
    arrays |= {"t10k-images-idx3": random(4, 28, 28), "t10k-labels-idx1": random(4, below=10)}
    arrays |= {name.replace("_", "-"): array for name, array in replaced.items()}
    return {f"{name}-ubyte": put(folder, f"{name}-ubyte", idx(array)) for name, array in arrays.items()}


def test_mnist_has_its_four_files_in_place(tmp_path: Path) -> None:
    images, labels = random(9, 28, 28), random(9, below=10)
    parsed = formats.mnist(mnist_files(tmp_path, train_images_idx3=images, train_labels_idx1=labels), TEN)
    np.testing.assert_array_equal(parsed.train.pixels, images[:, None])
    np.testing.assert_array_equal(parsed.train.labels, labels)
    assert parsed.test.pixels.shape == (4, 1, 28, 28)
    assert parsed.contents["train-images-idx3-ubyte"] == formats.md5(idx(images))


@pytest.mark.parametrize(
    ("replaced", "complaint"),
    [
        ({"train_labels_idx1": random(8, below=10)}, "train-labels.*8 labels for 9 images"),
        ({"t10k_labels_idx1": np.array([1, 2, 3, 10], np.uint8)}, "t10k-labels.*a label 10"),
        ({"t10k_images_idx3": random(4, 14, 14)}, r"t10k-images.*\(14, 14\)"),
        ({"t10k_images_idx3": random(0, 28, 28), "t10k_labels_idx1": random(0)}, "at least one"),
    ],
)
def test_mnist_files_that_do_not_fit_are_named(
    tmp_path: Path, replaced: dict[str, NDArray[np.uint8]], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        formats.mnist(mnist_files(tmp_path, **replaced), TEN)


def records(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> bytes:
    return np.concatenate([labels[:, None], images.reshape(len(images), -1)], 1).tobytes()


def batches(count: int = 3) -> dict[str, bytes]:
    return {name: records(random(count, 3, 32, 32), random(count, below=10)) for name in BATCHES}


def archived(files: dict[str, bytes], **kind: Any) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            for key, value in kind.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def cifar(folder: Path, files: dict[str, bytes]) -> formats.Parsed:
    return formats.cifar10({name: put(folder, name, data) for name, data in files.items()}, TEN, BATCHES)


def cifar_archive(folder: Path, data: bytes) -> formats.Parsed:
    return formats.cifar10({"c.tar.gz": put(folder, "c.tar.gz", data)}, TEN, BATCHES)


@settings(deadline=None)
@given(st.integers(1, 6))
def test_a_cifar_batch_reads_what_was_written(count: int) -> None:
    images, labels = random(count, 3, 32, 32), random(count, below=10)
    parsed = formats.parse_cifar_batch(Path("a"), records(images, labels))
    np.testing.assert_array_equal(parsed.pixels, images)
    np.testing.assert_array_equal(parsed.labels, labels)


def test_cifar_batches_and_their_archive_are_the_same(tmp_path: Path) -> None:
    files = batches()
    loose, packed = cifar(tmp_path, files), cifar_archive(tmp_path, archived({"readme.html": b"hi", **files}))
    for a, b in zip((*loose.train, *loose.test), (*packed.train, *packed.test), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loose.contents == packed.contents == {name: formats.md5(data) for name, data in files.items()}
    assert (len(loose.train.labels), len(loose.test.labels)) == (15, 3)
    np.testing.assert_array_equal(loose.train.pixels[3, 2].ravel(), list(files["data_batch_2.bin"][2049:3073]))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "has 0 bytes"),
        (bytes(3073 + 5), "has 3078 bytes"),
        (records(random(2, 3, 32, 32), np.array([9, 10], np.uint8)), "a label 10"),
    ],
)
def test_an_unsound_cifar_batch_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    with pytest.raises(InputError, match=f"data_batch_3.bin.*{complaint}"):
        cifar(tmp_path, {**batches(), "data_batch_3.bin": data})


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: archived(batches())[:-5000], "gzipped tar"),
        (lambda: gzip.compress(b"no tar"), "gzipped tar"),
        (lambda: b"no gzip", "gzipped tar"),
        (lambda: archived({name: bytes(3073) for name in BATCHES[1:]}), "has no data_batch_1.bin"),
        (lambda: archived(batches(), type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0), "has no data_b"),
        (lambda: archived({**batches(), "test_batch.bin": b"?" * 100}), "test_batch.bin: has 100 bytes"),
    ],
    ids=["cut", "foreign", "not packed", "a batch missing", "links", "short batch"],
)
def test_an_unsound_cifar_archive_is_named(tmp_path: Path, make: Callable[[], bytes], complaint: str) -> None:
    with pytest.raises(InputError, match=f"c.tar.gz.*{complaint}"):
        cifar_archive(tmp_path, make())


def test_an_archive_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LIMIT", 1 << 20)
    with pytest.raises(InputError, match="unpacks to more"):
        cifar_archive(tmp_path, archived({"filler": bytes(1 << 21), **batches()}))
    with pytest.raises(InputError, match="unpacks to more"):
        cifar(tmp_path, {name: bytes(3073 * 1000) for name in BATCHES})


def test_a_sparse_member_that_claims_a_petabyte_is_not_read(tmp_path: Path) -> None:
    sparse = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 50), "GNU.sparse.major": "0"}
    with pytest.raises(InputError, match=r"has no data_batch_1\.bin"):
        cifar_archive(tmp_path, archived(batches(1), pax_headers=sparse))


def mat(**arrays: Any) -> bytes:
    file: Any = io.BytesIO()
    savemat(file, arrays, do_compression=True)
    return bytes(file.getvalue())


def svhn_file(images: Any = None, labels: Any = None, **more: Any) -> bytes:
    images = random(32, 32, 3, 4) if images is None else images
    return mat(X=images, y=np.array([[10], [1], [9], [10]], np.uint8) if labels is None else labels, **more)


def svhn(folder: Path, train: bytes) -> formats.Parsed:
    files = {"train_32x32.mat": put(folder, "train_32x32.mat", train)}
    return formats.svhn(files | {"test_32x32.mat": put(folder, "test_32x32.mat", svhn_file())}, TEN)


def test_svhn_is_read_with_ten_for_zero(tmp_path: Path) -> None:
    images = random(32, 32, 3, 4)
    parsed = svhn(tmp_path, svhn_file(images, np.array([[10.0], [1], [9], [10]])))
    np.testing.assert_array_equal(parsed.train.pixels[2, 1], images[:, :, 1, 2])
    assert parsed.train.labels.tolist() == [0, 1, 9, 0]
    assert parsed.train.pixels.flags.c_contiguous


def cell(depth: int) -> NDArray[Any]:
    inner: Any = 1
    for _ in range(depth):
        outer = np.empty((1,), object)
        outer[0] = inner
        inner = outer
    return np.asarray(inner)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: svhn_file()[:-20], "MATLAB 5"),
        (lambda: svhn_file()[:100], "MATLAB 5"),
        (lambda: b"\x89HDF\r\n\x1a\n" + bytes(500), "does not begin as a MATLAB 5 file"),
        (lambda: mat(a=1), "neither X nor y"),
        (lambda: mat(X=random(32, 32, 3, 4)), "expected uint8 images X"),
        (lambda: svhn_file(random(32, 32, 3, 5)), "expected uint8 images X"),
        (lambda: svhn_file(random(16, 16, 3, 4)), "expected uint8 images X"),
        (lambda: svhn_file(random(32, 32, 3, 4) / 255), "expected uint8 images X"),
        (lambda: svhn_file(cell(3)), "expected uint8 images X"),
        (lambda: svhn_file(labels={"a": 1}), "n labels y"),
        (
            lambda: svhn_file(labels=np.array([[0], [1], [2], [3]])),
            "expected uint8|labels other than 1 to 10",
        ),
        (lambda: svhn_file(labels=np.array([[1.5], [1], [2], [3]])), "labels other than 1 to 10"),
        (lambda: svhn_file(labels=np.array([[np.nan], [1], [2], [3]])), "labels other than 1 to 10"),
        (lambda: svhn_file() + svhn_file()[128:], "expected uint8 images X"),
    ],
)
def test_an_unsound_svhn_file_is_named(tmp_path: Path, make: Callable[[], bytes], complaint: str) -> None:
    with pytest.raises(InputError, match=f"train_32x32.mat.*({complaint})"):
        svhn(tmp_path, make())


def test_a_mat_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LIMIT", 1 << 20)
    bomb = zlib.compress(struct.pack("<II", 14, 1 << 24) + bytes(1 << 24))
    with pytest.raises(InputError, match="unpacks to more"):
        svhn(tmp_path, svhn_file()[:128] + struct.pack("<II", 15, len(bomb)) + bomb)


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_what_is_packed_twice_is_not_unpacked(tmp_path: Path, beside: bool) -> None:
    inner = svhn_file()[128:]
    (size,) = struct.unpack_from("<I", inner, 4)
    once = inner[: 8 + size]  # an element that is packed
    twice = zlib.compress(zlib.decompress(once[8:]) + once if beside else once)
    rest = inner[8 + size :]
    with pytest.raises(InputError, match=r"not one element|something else than arrays"):
        svhn(tmp_path, svhn_file()[:128] + struct.pack("<II", 15, len(twice)) + twice + rest)


def npz(folder: Path, **arrays: Any) -> formats.Parsed:
    np.savez(folder / "own.npz", **arrays)
    return own.npz(folder / "own.npz")


FOUR: dict[str, Any] = {
    "x_train": random(6, 5, 4),
    "y_train": np.array([7, -2, 7, 30, -2, 30]),
    "x_test": random(2, 5, 4),
    "y_test": np.array([30, 7]),
}


def test_arrays_become_classes_in_order_of_their_numbers(tmp_path: Path) -> None:
    parsed = npz(tmp_path, **FOUR)
    assert parsed.classes == ("-2", "7", "30")
    assert parsed.train.labels.tolist() == [1, 0, 1, 2, 0, 2]
    assert parsed.test.labels.tolist() == [2, 1]
    np.testing.assert_array_equal(parsed.train.pixels, FOUR["x_train"][:, None])


def test_labels_may_be_names_or_places_among_given_names(tmp_path: Path) -> None:
    names = {"y_train": np.array(["b", "c", "a", "b", "c", "a"]), "y_test": np.array([["a"], ["b"]])}
    parsed = npz(tmp_path, **FOUR | names)
    assert (parsed.classes, parsed.test.labels.tolist()) == (("a", "b", "c"), [0, 1])
    parsed = npz(tmp_path, **FOUR | names, classes=["c", "b", "a"])
    assert (parsed.classes, parsed.test.labels.tolist()) == (("c", "b", "a"), [2, 1])
    places = {"y_train": np.array([0, 1, 2, 0, 1, 2], np.uint64), "y_test": np.array([2, 1])}
    parsed = npz(tmp_path, **FOUR | places, classes=["c", "b", "a"])
    assert (parsed.classes, parsed.test.labels.tolist()) == (("c", "b", "a"), [2, 1])


def test_floats_take_no_more_room_on_the_way_than_a_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "AT_ONCE", 45)  # two pictures of twenty numbers
    x = (random(7, 5, 4) / 255).astype(np.float16)
    whole = np.rint(x.astype(np.float32) * 255).astype(np.uint8)
    found = npz(tmp_path, **(FOUR | {"x_train": x[:6], "x_test": x[5:]}))
    np.testing.assert_array_equal(found.train.pixels[:, 0], whole[:6])
    np.testing.assert_array_equal(found.test.pixels[:, 0], whole[5:])


def test_floats_and_colours_become_bytes_in_planes(tmp_path: Path) -> None:
    x = random(10, 5, 4, 3)
    parsed = npz(tmp_path, x=(x / 255).astype(np.float32), y=np.zeros(10, int))
    np.testing.assert_array_equal(parsed.train.pixels[1, 2], x[2, :, :, 2])


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_the_split_holds_out_a_fifth_of_each_class_and_leaves_some(labels: list[int]) -> None:
    y = np.array(labels)
    test = formats.held_out(y)
    for k in set(labels):
        count, held = int((y == k).sum()), int(test[y == k].sum())
        assert held == (count + 3) // 5
        assert held < count


def test_the_split_of_what_came_first_does_not_depend_on_what_follows() -> None:
    y = random(100, below=5).astype(np.int64)
    np.testing.assert_array_equal(formats.held_out(y[:60]), formats.held_out(y)[:60])


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x_train": FOUR["x_train"]}, r"has the arrays 'x_train'; expected x_train, y_train"),
        ({}, r"has the arrays \(none\)"),
        (FOUR | {"x_test": random(2, 5)}, r"x_test has the shape \(2, 5\)"),
        (FOUR | {"x_test": random(2, 3, 5, 4)}, "x_test has the shape"),
        (FOUR | {"x_test": random(0, 5, 4), "y_test": np.array([], int)}, "x_test has the shape"),
        (FOUR | {"x_test": np.ones((2, 5, 4), int)}, "x_test is of type int64"),
        (FOUR | {"x_test": np.full((2, 5, 4), np.nan)}, "NaN or numbers outside"),
        (FOUR | {"x_test": np.full((2, 5, 4), np.inf)}, "NaN or numbers outside"),
        (FOUR | {"x_test": np.full((2, 5, 4), 255.0)}, "NaN or numbers outside"),
        (FOUR | {"y_test": np.array([7])}, "y_test is int64 of shape"),
        (FOUR | {"y_test": np.array([7.0, 30.0])}, "y_test is float64"),
        (FOUR | {"y_test": np.array([7, 8])}, "a class '8' that is not among"),
        (FOUR | {"classes": np.array(["a", "b"])}, "y_train has labels from -2 to 30"),
        (FOUR | {"classes": np.array([1, 2])}, "its classes are not a list of names"),
        (FOUR | {"classes": np.array(list("abcdefghi"))}, "has 9 classes, more than images"),
        (FOUR | {"classes": np.array(["a", None], object)}, "Object arrays cannot be loaded"),
        (FOUR | {"y_test": np.zeros(2, "i4,f4")}, "y_test is "),
    ],
)
def test_arrays_that_cannot_be_used_are_named(tmp_path: Path, arrays: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=f"own.npz.*{complaint}"):
        npz(tmp_path, **arrays)


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was opened",)


def npy_claiming(shape: str) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize("data", [pickle.dumps(Trap()), b"", b"PK\x03\x04 and so on", npy_claiming("(3,)") + b"abc"])
def test_what_is_no_npz_is_not_opened_as_one(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match=r"cannot be read as a NumPy \.npz"):
        own.npz(put(tmp_path, "own.npz", data))


@pytest.mark.parametrize("shape", ["(99999999999,)", "(-5,)", "(1 << 70,)", "(2, 10, 10)", "'abc'"])
def test_an_array_with_a_lying_header_is_not_believed(tmp_path: Path, shape: str) -> None:
    np.savez(tmp_path / "own.npz", **{key: FOUR[key] for key in FOUR if key != "x_test"})
    with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
        archive.writestr("x_test.npy", npy_claiming(shape) + bytes(40))
    with pytest.raises(InputError, match=r"cannot be read as a NumPy \.npz"):
        own.npz(tmp_path / "own.npz")


def test_an_npz_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "OWN_LIMIT", 1 << 20)
    np.savez_compressed(tmp_path / "own.npz", **FOUR, more=np.zeros(1 << 21, np.uint8))
    with pytest.raises(InputError, match="unpacks to more than 1048576 bytes"):
        own.npz(tmp_path / "own.npz")


def picture(folder: Path, name: str, mode: str = "L", size: tuple[int, int] = (6, 5)) -> NDArray[np.uint8]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random(size[1], size[0], 3)
    Image.fromarray(pixels).convert(mode).save(path)
    return pixels


def pictures(folder: Path) -> formats.Parsed:
    return own.pictures(own.picture_files(folder))


def test_folders_are_classes_and_pictures_their_images(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("10", "9"):
            last = picture(tmp_path, f"{part}/{kind}/a.png", "RGB")
            picture(tmp_path, f"{part}/{kind}/b.BMP", "RGB")
    put(tmp_path, "train/9/.hidden", b"")
    put(tmp_path, "train/9/Thumbs.db", b"")
    put(tmp_path, "readme.txt", b"")
    parsed = pictures(tmp_path)
    assert parsed.classes == ("9", "10")
    assert parsed.train.labels.tolist() == parsed.test.labels.tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(parsed.test.pixels[2], last.transpose(2, 0, 1))


def test_every_kind_of_picture_is_read(tmp_path: Path) -> None:
    for number, name in enumerate(["png", "jpg", "jpeg", "webp", "bmp", "gif"]):
        picture(tmp_path, f"a/{number}.{name}", "P" if name == "gif" else "RGB")
    picture(tmp_path, "a/alpha.png", "RGBA")
    parsed = pictures(tmp_path)
    assert parsed.train.pixels.shape == (5, 3, 5, 6)
    assert parsed.test.pixels.shape == (2, 3, 5, 6)


def test_grey_pictures_have_one_plane(tmp_path: Path) -> None:
    for number, mode in enumerate(["L", "LA", "1"]):
        picture(tmp_path, f"a/{number}.png", mode)
    assert pictures(tmp_path).train.pixels.shape == (2, 1, 5, 6)


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path) -> None:
    image = Image.fromarray(random(5, 6, 3)).convert("P")
    for name in ("1.png", "2.png"):
        (tmp_path / "a").mkdir(exist_ok=True)
        image.save(tmp_path / "a" / name, transparency=bytes(range(256)))
    assert pictures(tmp_path).train.pixels.shape == (1, 3, 5, 6)


def odd_size(folder: Path) -> None:
    picture(folder, "b/odd.png", size=(5, 6))


def odd_mode(folder: Path) -> None:
    picture(folder, "b/odd.png", "RGB")


def odd_depth(folder: Path) -> None:
    put(folder, "b/odd.png", b"")
    Image.fromarray(np.ones((5, 6), np.uint16)).save(folder / "b/odd.png")


def odd_bytes(folder: Path) -> None:
    put(folder, "b/odd.png", b"not a picture")


def odd_cut(folder: Path) -> None:
    put(folder, "b/odd.png", (folder / "a/1.png").read_bytes()[:60])


def odd_kind(folder: Path) -> None:
    put(folder, "b/odd.txt", b"notes")


def odd_folder(folder: Path) -> None:
    put(folder, "b/odd/deeper.png", b"")


def odd_bomb(folder: Path) -> None:
    put(folder, "b/odd.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b";")


def odd_large(folder: Path) -> None:
    put(folder, "b/odd.bmp", b"")
    Image.new("1", (10_000, 10_000)).save(folder / "b/odd.bmp")


@pytest.mark.parametrize(
    "spoil",
    [odd_size, odd_mode, odd_depth, odd_bytes, odd_cut, odd_kind, odd_folder, odd_bomb, odd_large],
)
def test_the_odd_file_is_named(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    picture(tmp_path, "a/1.png")
    spoil(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as for a user; the parser itself makes an error of the bomb
        with pytest.raises(InputError, match="b/odd"):
            pictures(tmp_path)


def test_folders_without_pictures_or_with_unknown_classes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder of pictures a class"):
        pictures(tmp_path)
    picture(tmp_path, "train/a/1.png")
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match="test: expected a folder of pictures a class"):
        pictures(tmp_path)
    picture(tmp_path, "test/b/1.png")
    with pytest.raises(InputError, match="test: has images of a class 'b'"):
        pictures(tmp_path)


def test_more_pictures_than_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "OWN_LIMIT", 50)
    picture(tmp_path, "a/1.png")
    picture(tmp_path, "a/2.png")
    with pytest.raises(InputError, match="shrink them"):
        pictures(tmp_path)


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(random(8, 8)).save(file, "PNG")
    return file.getvalue()


def own_npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **FOUR)
    return file.getvalue()


def plain_mat() -> bytes:
    file: Any = io.BytesIO()
    savemat(file, {"X": random(32, 32, 3, 2), "y": np.array([[1], [10]], np.uint8)})
    return bytes(file.getvalue())


def read_cifar(path: Path) -> object:
    return formats.cifar10({"c": path}, TEN, BATCHES)


def read_svhn(path: Path) -> object:
    return formats.svhn({"train_32x32.mat": path, "test_32x32.mat": path}, TEN)


def read_pictures(path: Path) -> object:
    return pictures(path.parent.parent)


def read_images(path: Path) -> object:
    return formats.read_idx(path, 3)


Form = tuple[bytes, Callable[[bytes], bytes], str, Callable[[Path], object]]
FORMS: dict[str, Form] = {
    "idx": (idx(random(2, 8, 8)), bytes, "a", read_images),
    "gzip": (gzip.compress(idx(random(2, 8, 8))), bytes, "a.gz", read_images),
    "packed tar": (archived(batches(1)), bytes, "c.tar.gz", read_cifar),
    "tar": (gzip.decompress(archived(batches(1))), gzip.compress, "c.tar.gz", read_cifar),
    "packed mat": (svhn_file(), bytes, "a.mat", read_svhn),
    "mat": (plain_mat(), bytes, "a.mat", read_svhn),
    "npz": (own_npz(), bytes, "own.npz", own.npz),
    "png": (png(), bytes, "k/a.png", read_pictures),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_a_damaged_file_parses_or_is_an_input_error_that_names_it(
    form: str, edits: list[tuple[float, int]], keep: float
) -> None:
    sound, pack, name, parse = FORMS[form]
    data = bytearray(sound)
    for where, value in edits:
        # The beginning holds the headers, so it gets most of the damage.
        data[int(where**3 * len(data))] = value
    with temporary() as folder:
        path = put(folder, name, pack(bytes(data[: int(keep * len(data))])))
        try:
            parse(path)
            complaint = None
        except InputError as error:
            complaint = str(error)
    assert complaint is None or str(folder) in complaint


@pytest.mark.parametrize("form", FORMS)
def test_the_files_to_be_damaged_are_sound(form: str, tmp_path: Path) -> None:
    sound, pack, name, parse = FORMS[form]
    parse(put(tmp_path, name, pack(sound)))
