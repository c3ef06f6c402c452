"""The everyday interface: what it takes, what it keeps, and that nothing ever leaves it half changed."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ccmcl import condensing, presets
from ccmcl.budget import Budget
from ccmcl.classifier import ContinualClassifier
from ccmcl.condense import Condenser
from ccmcl.data import load
from ccmcl.errors import InputError
from ccmcl.learn import Trainer
from ccmcl.memory import Memory
from ccmcl.methods import METHODS
from ccmcl.nets import ConvNet
from ccmcl.plan import COUNTS
from ccmcl.tensor_files import ABOUT, read_tensors, write_tensors

TINY: dict[str, Any] = {
    "preset": "paper",
    "width": 4,
    "outer": 1,
    "inner": 1,
    "matching": 1,
    "steps": 2,
    "batch": 8,
    "condense_batch": 8,
}
LIMITED = list(COUNTS)
Pixels = NDArray[np.uint8]


def tiny(budget: str | int = "2/class", **given: Any) -> ContinualClassifier:
    return ContinualClassifier(budget, **{**TINY, **given})


@pytest.mark.parametrize(
    ("names", "asked", "looks"),
    [
        (("b", "d"), "auto", 3),
        (("cat", "dog"), "auto", 1),
        (("b", "d"), "one", 1),
        (("cat", "dog"), "several", 3),
    ],
)
def test_characters_are_looked_at_several_times_unless_it_is_said(
    names: tuple[str, str], asked: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = tiny(method="rehearsal", recipe="strong", looks=asked)
    classifier.partial_fit(pictures(0, 1), np.repeat(np.array(names), 6))
    seen, pass_through = [], ConvNet.__call__

    def spy(net: ConvNet, params: Any, images: Any) -> Any:
        seen.append(images)
        return pass_through(net, params, images)

    monkeypatch.setattr(ConvNet, "__call__", spy)
    classifier.predict(pictures(0, 1, seed=1))
    assert len(seen) == looks
    assert len({float(images.double().square().sum()) for images in seen}) == looks


@pytest.mark.parametrize(
    ("names", "channels", "asked", "same"),
    [
        (("cat", "dog"), 3, "auto", True),
        (("b", "d"), 3, "auto", False),
        (("cat", "dog"), 0, "auto", False),
        (("cat", "dog"), 0, "yes", True),
        (("cat", "dog"), 3, "no", False),
    ],
)
def test_what_means_the_same_in_a_mirror_is_judged_beside_its_mirror_image(
    names: tuple[str, str], channels: int, asked: str, same: bool
) -> None:
    classifier = tiny(method="rehearsal", recipe="strong", mirrored=asked)
    classifier.partial_fit(pictures(0, 1, channels=channels), np.repeat(np.array(names), 6))
    shown = pictures(0, 1, channels=channels, seed=1)
    found, mirrored = classifier.predict_proba(shown), classifier.predict_proba(shown[:, :, ::-1].copy())
    assert np.allclose(found.sum(1), 1, atol=1e-6)
    assert np.allclose(found, mirrored, atol=1e-6) == same
    assert (classifier.predict(shown) == np.array(names)[found.argmax(1)]).all()


def pictures(*labels: int, each: int = 6, size: int = 8, channels: int = 0, seed: int = 0) -> Pixels:
    """Make noisy pictures, ``each`` of every label, brighter where the label says so."""
    noise = np.random.default_rng([seed, *labels])
    tail = (channels,) if channels else ()
    made = noise.integers(0, 120, (len(labels) * each, size, size, *tail), dtype=np.uint8)
    for number, label in enumerate(labels):
        made[number * each : (number + 1) * each, label % size] += 100
    return made


def labelled(*labels: int, each: int = 6, **kind: int) -> tuple[Pixels, list[int]]:
    return pictures(*labels, each=each, **kind), [label for label in labels for _ in range(each)]


def insides(classifier: ContinualClassifier) -> dict[str, Any]:
    """Take down everything that a classifier consists of, bit by bit."""
    params = classifier._learner.params
    return {
        "labels": classifier.classes_,
        "memory": {
            label: {name: tensor.numpy().tobytes() for name, tensor in kept.tensors().items()}
            for label, kept in classifier.memory.items()
        },
        "params": params and {name: tensor.numpy().tobytes() for name, tensor in params.items()},
        "shape": classifier._shape,
        "calls": classifier._calls,
    }


def refusal(call: Callable[[], object]) -> str | None:
    """Return the sentence with which a call is refused, if it is."""
    try:
        call()
    except InputError as error:
        return str(error)
    return None


@pytest.fixture
def learned() -> ContinualClassifier:
    return tiny().partial_fit(*labelled(0, 1))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the tests' own check of types off, which would come before ours."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_classes_call_by_call(method: str) -> None:
    classifier = tiny(method=method)
    assert classifier.partial_fit(*labelled(0, 1)) is classifier
    assert classifier.partial_fit(*labelled(5)).classes_ == (0, 1, 5)
    x = pictures(0, 1, 5)
    probabilities = classifier.predict_proba(x)
    assert probabilities.shape == (18, 3)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    predicted = classifier.predict(x)
    assert predicted.tolist() == [classifier.classes_[k] for k in probabilities.argmax(1)]
    y = [0] * 6 + [1] * 6 + [5] * 6
    assert classifier.score(x, y) == pytest.approx(float(np.mean(predicted == np.array(y))))
    assert classifier.nbytes == classifier.memory.nbytes


def test_digits_are_told_apart_far_better_than_by_chance() -> None:
    digits = load("digits")
    classifier = ContinualClassifier(
        "4/class", preset="paper", condense_rate=0.1, width=16, outer=1, inner=5, matching=5, steps=100, seed=0
    )
    for pair in [(0, 1), (2, 3)]:
        chosen = torch.isin(digits.train.labels, torch.tensor(pair))
        classifier.partial_fit(digits.train.pixels[chosen], digits.train.labels[chosen])
    chosen = digits.test.labels < 4
    assert classifier.score(digits.test.pixels[chosen], digits.test.labels[chosen]) > 0.6  # 0.25 by chance


def test_same_seed_gives_the_same_classifier_and_another_gives_another() -> None:
    one, same, other = (tiny(seed=seed).partial_fit(*labelled(0, 1)) for seed in (0, 0, 1))
    assert insides(one) == insides(same)
    assert insides(one)["memory"] != insides(other)["memory"]


def test_order_of_pictures_decides_nothing_about_the_classes() -> None:
    x, y = labelled(3, 1, 2)
    forwards, backwards = tiny().partial_fit(x, y), tiny().partial_fit(x[::-1], y[::-1])
    assert forwards.classes_ == backwards.classes_ == (1, 2, 3)


FORMS: dict[str, Callable[[Pixels], object]] = {
    "floats": lambda x: x / 255,
    "single floats": lambda x: (x / 255).astype(np.float32),
    "half floats": lambda x: (x / 255).astype(np.float16),
    "list": lambda x: (x / 255).tolist(),
    "fortran order": np.asfortranarray,
    "read only": lambda x: _read_only(x.copy()),
    "big endian": lambda x: (x / 255).astype(">f8"),
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
}
GREY: dict[str, Callable[[Pixels], object]] = {
    **FORMS,
    "with a channel": lambda x: x[..., None],
    "torch": torch.from_numpy,
    "torch with a channel": lambda x: torch.from_numpy(x)[:, None],
    "torch floats": lambda x: torch.from_numpy(x) / 255,
    "torch with a gradient": lambda x: (torch.from_numpy(x)[:, None] / 255).requires_grad_(),
}
COLOUR: dict[str, Callable[[Pixels], object]] = {
    **FORMS,
    "torch": lambda x: torch.from_numpy(x).permute(0, 3, 1, 2),
    "torch floats": lambda x: torch.from_numpy(x).permute(0, 3, 1, 2) / 255,
    "torch laid out plainly": lambda x: torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(),
}


def _read_only(x: Pixels) -> Pixels:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("form", GREY)
def test_grey_pictures_in_every_form_give_the_same_classifier(form: str) -> None:
    x, y = labelled(0, 1)
    plain, given = tiny().partial_fit(x, y), tiny().partial_fit(GREY[form](x), y)
    assert insides(given) == insides(plain)
    np.testing.assert_array_equal(given.predict_proba(GREY[form](x)), plain.predict_proba(x))


@pytest.mark.parametrize("form", COLOUR)
@pytest.mark.parametrize("channels", [3, 4])
def test_colour_pictures_in_every_form_give_the_same_classifier(form: str, channels: int) -> None:
    x, y = labelled(0, 1, channels=channels)
    plain, given = tiny().partial_fit(x, y), tiny().partial_fit(COLOUR[form](x), y)
    assert plain.memory.images().shape[1] == channels
    assert insides(given) == insides(plain)
    np.testing.assert_array_equal(given.predict_proba(COLOUR[form](x)), plain.predict_proba(x))


def test_pictures_given_are_neither_changed_nor_kept() -> None:
    for method in METHODS:
        x, y = labelled(0, 1)
        before = x.copy()
        classifier = tiny(method=method).partial_fit(x, y)
        np.testing.assert_array_equal(x, before)
        inside = insides(classifier)
        x[:] = 0
        assert insides(classifier) == inside


@pytest.mark.parametrize(
    "labels",
    [
        (7, -3),
        ("cat", "dog"),
        (("a", 1), ("b", 2)),
        (("a",), ("b", 2)),
        (0.5, 1.5),
        (True, False),
        (None, "none"),
        (1, "1"),
        (1, 2.5),
        ("[red]", "<b>"),
        (2**70, 1),
        (frozenset({1}), "x"),
        (b"a", b"b"),
        ((None, 1), None),
    ],
    ids=str,
)
def test_labels_of_every_kind_come_back_as_they_were(labels: tuple[Hashable, Hashable]) -> None:
    x = pictures(0, 1)
    y = [labels[0]] * 6 + [labels[1]] * 6
    classifier = tiny().partial_fit(x, y)
    assert set(classifier.classes_) == set(labels)
    predicted = list(classifier.predict(x))
    assert all(label in labels for label in predicted)
    right = sum(one == other for one, other in zip(predicted, y, strict=True))
    assert classifier.score(x, y) == right / 12


@pytest.mark.parametrize(
    "given",
    [
        np.array([3, 4]).repeat(6),
        np.array([3, 4], np.uint8).repeat(6),
        torch.tensor([3, 4]).repeat_interleave(6),
        [np.int64(3)] * 6 + [np.int32(4)] * 6,
        (3,) * 6 + (4,) * 6,
        range(6, 18),
    ],
    ids=["numpy", "uint8", "torch", "numpy numbers", "tuple", "range"],
)
def test_numbers_of_any_library_are_python_numbers(given: Any) -> None:
    y = [number // 6 + 2 for number in given] if isinstance(given, range) else given
    classifier = tiny().partial_fit(pictures(3, 4), y)
    assert classifier.classes_ == (3, 4)
    assert all(type(label) is int for label in classifier.classes_)
    assert classifier.predict(pictures(3, 4)).dtype.kind == "i"
    np.testing.assert_array_equal(classifier.partial_fit(pictures(3, seed=1), [3] * 6).classes_, (3, 4))


def test_words_come_back_as_words() -> None:
    classifier = tiny().partial_fit(pictures(0, 1), np.array(["cat", "horse"]).repeat(6))
    assert classifier.classes_ == ("cat", "horse")
    assert classifier.predict(pictures(0, 1)).dtype.kind == "U"


@pytest.mark.parametrize("method", ["composite", "condensation"])
def test_class_that_comes_again_is_condensed_from_new_pictures_and_what_is_remembered(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = tiny(method=method).partial_fit(*labelled(0, 1))
    before = classifier.memory
    seen: dict[int, torch.Tensor] = {}

    def watched(*arguments: Any, **more: Any) -> Condenser:
        seen[arguments[2]] = arguments[3]
        return Condenser(*arguments, **more)

    monkeypatch.setattr(condensing, "Condenser", watched)
    new = pictures(1, 2, seed=5)
    classifier.partial_fit(new, [1] * 6 + [2] * 6)
    assert sorted(seen) == [1, 2]
    remembered = (before[1].images().clamp(0, 1) * 255).round().to(torch.uint8)
    given = torch.from_numpy(new)[:, None]
    assert torch.equal(seen[1], torch.cat([given[:6], remembered]))
    assert torch.equal(seen[2], given[6:])
    after = insides(classifier)["memory"]
    assert after[0] == {name: tensor.numpy().tobytes() for name, tensor in before[0].tensors().items()}
    assert after[1] != {name: tensor.numpy().tobytes() for name, tensor in before[1].tensors().items()}


@pytest.mark.parametrize("method", ["rehearsal", "bic"])
def test_class_that_comes_again_is_stored_from_new_pictures_and_those_stored(method: str) -> None:
    def bytes_of(classifier: ContinualClassifier, label: int) -> set[bytes]:
        return {picture.numpy().tobytes() for picture in classifier.memory[label].tensors()["pixels"]}

    classifier = tiny("4/class", method=method).partial_fit(*labelled(0, 1))
    old = bytes_of(classifier, 1)
    new = pictures(1, seed=5, each=4)
    classifier.partial_fit(new, [1] * 4)
    kept = bytes_of(classifier, 1)
    assert len(kept) == 4
    assert kept <= old | {picture.tobytes() for picture in new}
    assert kept & old  # eight candidates for four places: with this seed, some of either
    assert kept - old


@pytest.mark.parametrize("method", METHODS)
def test_experience_of_only_known_classes_is_learned(method: str) -> None:
    classifier = tiny(method=method).partial_fit(*labelled(0, 1)).partial_fit(*labelled(2))
    before = insides(classifier)
    classifier.partial_fit(*labelled(0, 2, seed=3))
    assert classifier.classes_ == (0, 1, 2)
    assert insides(classifier)["params"] != before["params"]
    assert classifier.predict_proba(pictures(0)).shape == (6, 3)


@pytest.mark.parametrize("method", METHODS)
def test_class_of_a_single_picture_is_learned(method: str) -> None:
    classifier = tiny("1/class", method=method)
    for label in (0, 1, 1):
        classifier.partial_fit(pictures(label, each=1), [label])
    assert classifier.classes_ == (0, 1)


BAD_PICTURES: dict[str, tuple[object, str]] = {
    "another size": (pictures(2, size=9), "was learned before"),
    "another number of channels": (pictures(2, channels=3), "was learned before"),
    "not a number": (np.full((6, 8, 8), np.nan), "NaN"),
    "infinite": (np.full((6, 8, 8), np.inf), "NaN or infinite"),
    "too bright": (np.full((6, 8, 8), 1.5), "must lie in [0, 1]"),
    "negative": (np.full((6, 8, 8), -0.5), "must lie in [0, 1]"),
    "whole numbers beyond 255": (pictures(2).astype(np.int64) + 256, "cannot be used"),
    "whole numbers of another type": (pictures(2).astype(np.int32), "cannot be used"),
    "complex": (pictures(2).astype(np.complex64), "cannot be used"),
    "yes or no": (pictures(2) > 60, "cannot be used"),
    "none": (np.empty((0, 8, 8), np.uint8), "at least one picture"),
    "no pixels": (np.empty((6, 0, 8), np.uint8), "cannot be used"),
    "empty list": ([], "cannot be used"),
    "one picture alone": (pictures(2)[0], "cannot be used"),
    "five dimensions": (np.zeros((6, 8, 8, 1, 1), np.uint8), "cannot be used"),
    "channels first in an array": (np.zeros((6, 3, 8, 8), np.uint8), "channels"),
    "channels last in a tensor": (torch.zeros(6, 8, 8, 3), "channels"),
    "ragged": ([[1.0], [1.0, 2.0]], "one array of numbers"),
    "text": ("pictures.png", "one array of numbers"),
    "words": (np.array([["a", "b"]]), "one array of numbers"),
    "objects": (np.array([object()]), "one array of numbers"),
    "nothing": (None, "one array of numbers"),
}


@pytest.mark.parametrize("kind", BAD_PICTURES)
def test_bad_pictures_are_a_sentence_and_change_nothing(learned: ContinualClassifier, kind: str) -> None:
    x, words = BAD_PICTURES[kind]
    before = insides(learned)
    for call in (
        lambda: learned.partial_fit(x, [2] * 6),
        lambda: learned.predict(x),
        lambda: learned.score(x, [2] * 6),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert words in str(caught.value)
        assert str(caught.value).endswith(".")
        assert "\n" not in str(caught.value)
    assert insides(learned) == before


BAD_LABELS: dict[str, object] = {
    "too few": [2] * 5,
    "too many": [2] * 7,
    "none": [],
    "one for all": 2,
    "a word": "catdog",
    "nothing": None,
    "lists": [[2]] * 6,
    "one-hot": np.eye(6),
    "a tuple with a list in it": [("a", [1])] * 6,
    "not a number": [float("nan")] * 6,
    "numpy's not a number": np.full(6, np.nan),
    "a number alone in an array": np.array(3),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
def test_bad_labels_are_a_sentence_and_change_nothing(learned: ContinualClassifier, kind: str) -> None:
    before = insides(learned)
    with pytest.raises(InputError, match=r"\.$"):
        learned.partial_fit(pictures(2), BAD_LABELS[kind])
    with pytest.raises(InputError, match=r"\.$"):
        learned.score(pictures(2), BAD_LABELS[kind])
    assert insides(learned) == before


def test_class_of_plain_pictures_is_refused_but_a_plain_picture_among_others_is_not(
    learned: ContinualClassifier,
) -> None:
    before = insides(learned)
    plain = np.full((6, 8, 8), 77, np.uint8)
    with pytest.raises(InputError, match="of class 2 is of one colour"):
        learned.partial_fit(np.concatenate([pictures(3), plain]), [3] * 6 + [2] * 6)
    assert insides(learned) == before
    assert learned.partial_fit(np.concatenate([pictures(2), plain]), [2] * 12).classes_ == (0, 1, 2)
    assert all(tensor.isfinite().all() for tensor in learned.memory[2].tensors().values())


def test_nothing_learned_yet_is_a_sentence() -> None:
    for call in ("predict", "predict_proba"):
        with pytest.raises(InputError, match="call partial_fit first"):
            getattr(tiny(), call)(pictures(0))
    with pytest.raises(InputError, match="call partial_fit first"):
        tiny().score(*labelled(0))


def test_pictures_too_small_for_the_network_are_a_sentence() -> None:
    with pytest.raises(InputError, match="at least 4×4"):
        tiny().partial_fit(pictures(0, 1, size=3), [0] * 6 + [1] * 6)
    assert tiny().partial_fit(pictures(0, 1, size=4), [0] * 6 + [1] * 6).classes_ == (0, 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": "none"}, "Cannot read the budget"),
        ({"budget": 0}, "leaves nothing"),
        ({"method": "magic"}, "no method"),
        ({"preset": "slow"}, "no preset"),
        ({"seed": -1}, "seed"),
        ({"classes": 0}, "at least 1"),
        ({"widht": 3}, "did you mean 'width'"),
        ({"width": 0}, "width"),
        ({"dataset": "mnist"}, "not of a classifier"),
        ({"holdout": 3}, "not of a classifier"),
    ],
    ids=str,
)
def test_bad_settings_are_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ContinualClassifier(**given)


def within(memory: Memory, budget: Budget, classes: int) -> bool:
    limit = budget.amount * (classes if budget.each_class else 1)
    if budget.in_bytes:
        return memory.nbytes <= limit
    return sum(len(next(iter(kept.tensors().values()))) for kept in memory.values()) <= limit


@settings(max_examples=25)
@given(
    method=st.sampled_from(LIMITED),
    budget=st.sampled_from(["5", "12", "3/class", "1500B", "2KiB", "4KB", "700B/class"]),
    ratio=st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.5]),
    calls=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), min_size=1, max_size=4),
    declared=st.sampled_from([None, 5]),
)
def test_budget_is_never_exceeded_after_any_call(
    method: str, budget: str, ratio: float, calls: list[list[int]], declared: int | None
) -> None:
    classifier, limit = tiny(budget, method=method, ratio=ratio, classes=declared), Budget.parse(budget)
    for number, labels in enumerate(calls):
        before = insides(classifier)
        said = refusal(partial(classifier.partial_fit, *labelled(*labels, seed=number)))
        if said is not None:
            assert "smaller than one" in said
            assert insides(classifier) == before
        assert within(classifier.memory, limit, len(classifier.classes_))
        assert set(classifier.memory) == set(range(len(classifier.classes_)))


@pytest.mark.parametrize("method", LIMITED)
def test_budget_for_all_is_shared_anew_whenever_classes_come(method: str) -> None:
    classifier, counts = tiny("12", method=method), []
    for label in range(4):
        classifier.partial_fit(*labelled(label, each=12))
        counts.append({len(next(iter(kept.tensors().values()))) for kept in classifier.memory.values()})
    assert counts == [{12}, {6}, {4}, {3}]


@pytest.mark.parametrize("method", LIMITED)
def test_declared_classes_share_the_budget_from_the_start(method: str) -> None:
    classifier = tiny("12", method=method, classes=4).partial_fit(*labelled(0))
    assert {len(next(iter(kept.tensors().values()))) for kept in classifier.memory.values()} == {3}
    memory = insides(classifier)["memory"]
    classifier.partial_fit(*labelled(1))
    assert insides(classifier)["memory"][0] == memory[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("classes", [True, 0, -1, 2.0, "10", [3]], ids=repr)
def test_a_number_of_classes_that_is_none_is_refused(classes: Any) -> None:
    with pytest.raises(InputError, match="must be a whole number of at least 1"):
        tiny(classes=classes)


def test_a_number_of_classes_of_numpy_s_can_be_saved(tmp_path: Path) -> None:
    tiny(classes=np.int64(3)).partial_fit(*labelled(0, 1)).save(tmp_path / "c")
    assert ContinualClassifier.load(tmp_path / "c").partial_fit(*labelled(2)).classes_ == (0, 1, 2)


@pytest.mark.parametrize("method", ["bic", "composite", "rehearsal"])
def test_another_usual_type_of_numbers_changes_nothing(method: str, tmp_path: Path) -> None:
    def learned() -> ContinualClassifier:
        return tiny("12", method=method).partial_fit(*labelled(0, 1)).partial_fit(*labelled(2))

    expected = learned().predict_proba(pictures(0, 1, 2))
    torch.set_default_dtype(torch.float64)
    try:
        found = learned()
        found.save(tmp_path / "c")
        shown = ContinualClassifier.load(tmp_path / "c").predict_proba(pictures(0, 1, 2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.allclose(shown, expected, atol=1e-3)


def test_more_classes_than_declared_are_refused() -> None:
    classifier = tiny(classes=3).partial_fit(*labelled(0, 1))
    before = insides(classifier)
    with pytest.raises(InputError, match="4 classes now, but only 3 were to come"):
        classifier.partial_fit(*labelled(2, 3))
    assert insides(classifier) == before
    assert classifier.partial_fit(*labelled(1, 2)).classes_ == (0, 1, 2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [0, 1])
def test_interrupted_call_leaves_the_classifier_as_it_was(
    method: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, undisturbed = (tiny(method=method).partial_fit(*labelled(0, 1)) for _ in range(2))
    before, steps = insides(classifier), iter(range(100))
    whole = Trainer.step

    def pressed(trainer: Trainer, state: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if next(steps) == after:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
        return whole(trainer, state)

    monkeypatch.setattr(Trainer, "step", pressed)
    with pytest.raises(KeyboardInterrupt):
        classifier.partial_fit(*labelled(1, 2))
    monkeypatch.undo()
    assert insides(classifier) == before
    assert insides(classifier.partial_fit(*labelled(1, 2))) == insides(undisturbed.partial_fit(*labelled(1, 2)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("budget", "network", "networks"),
    [("12", "plain", 1), ("12", "residual", 2), ("3/class", "plain", 1), ("4KiB", "plain", 1)],
)
def test_saved_and_loaded_predicts_and_learns_on_as_if_it_had_not_been(
    tmp_path: Path, method: str, budget: str, network: str, networks: int
) -> None:
    kept = tiny(budget, method=method, seed=4, network=network, networks=networks)
    kept.partial_fit(*labelled(0, 1)).partial_fit(*labelled(2))
    kept.save(tmp_path / "new folder" / "classifier.safetensors")
    loaded = ContinualClassifier.load(str(tmp_path / "new folder" / "classifier.safetensors"))
    x = pictures(0, 1, 2, 3)
    assert insides(loaded) == insides(kept)
    np.testing.assert_array_equal(loaded.predict_proba(x), kept.predict_proba(x))
    for classifier in (loaded, kept):
        classifier.partial_fit(*labelled(1, 3, seed=7))
    assert insides(loaded) == insides(kept)
    np.testing.assert_array_equal(loaded.predict_proba(x), kept.predict_proba(x))


@pytest.mark.parametrize(
    "labels", [(1, 0), ("b", "a"), (("x", 1, None), True), (None, -0.5), ("[b]", "é\n\0")], ids=str
)
def test_labels_and_settings_survive_a_file(tmp_path: Path, labels: tuple[Hashable, Hashable]) -> None:
    kept = tiny("3KiB", classes=3).partial_fit(pictures(0, 1), [labels[0]] * 6 + [labels[1]] * 6)
    kept.save(tmp_path / "c")
    loaded = ContinualClassifier.load(tmp_path / "c")
    assert loaded.classes_ == kept.classes_
    assert [type(label) for label in loaded.classes_] == [type(label) for label in kept.classes_]
    with pytest.raises(InputError, match="only 3 were to come"):
        loaded.partial_fit(pictures(2, 3), ["c"] * 6 + ["d"] * 6)


@pytest.mark.parametrize("preset", sorted(presets.PRESETS))
def test_file_outlives_the_presets_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    small: dict[str, Any] = {"steps": 2, "batch": 8, "condense_batch": 8}
    small |= {"outer": 1, "inner": 1, "matching": 1} if preset == "paper" else {"updates": 2}
    kept = ContinualClassifier("4KiB/class", preset=preset, **small).partial_fit(*labelled(0, 1))
    kept.save(tmp_path / "c")
    wanted = insides(kept.partial_fit(*labelled(2, 3)))
    changed = {**presets.paper((1, 8, 8)), "width": 5, "blocks": 1, "rate": 0.5, "condense_rate": 0.5}
    monkeypatch.setitem(presets.PRESETS, preset, lambda *_: changed)
    assert insides(ContinualClassifier.load(tmp_path / "c").partial_fit(*labelled(2, 3))) == wanted


@pytest.mark.parametrize("networks", [1, 3])
def test_file_with_more_or_fewer_networks_than_it_says_is_a_sentence(tmp_path: Path, networks: int) -> None:
    tiny(networks=2).partial_fit(*labelled(0, 1)).save(tmp_path / "c")
    tensors, about = read_tensors(tmp_path / "c")
    write_tensors(tmp_path / "c", tensors, {**about, "settings": {**about["settings"], "networks": networks}})
    with pytest.raises(InputError, match="the network does not fit the settings"):
        ContinualClassifier.load(tmp_path / "c")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"method": "condensation", "bits": 32}, {"bits": 8}),
        ({"method": "condensation", "frequencies": 20}, {"frequencies": 10}),
        ({"method": "condensation", "frequencies": 20}, {"step": 0.2}),
        ({"method": "composite", "squash": "yes"}, {"squash": "no"}),
        ({"method": "condensation", "reduction": 1}, {"reduction": 2}),
        ({"method": "rehearsal", "reduction": 1}, {"reduction": 2}),
        ({"method": "rehearsal", "codec": "raw"}, {"codec": "webp"}),
        ({"method": "rehearsal", "codec": "jpeg"}, {"codec": "raw"}),
    ],
    ids=str,
)
def test_memory_that_is_not_stored_as_a_file_says_is_a_sentence(
    tmp_path: Path, made: dict[str, Any], said: dict[str, Any]
) -> None:
    """Of another form it could take more than the budget that the file speaks of."""
    tiny("4KiB", **made).partial_fit(*labelled(0, 1)).save(tmp_path / "c")
    ContinualClassifier.load(tmp_path / "c")
    tensors, about = read_tensors(tmp_path / "c")
    write_tensors(tmp_path / "c", tensors, {**about, "settings": {**about["settings"], **said}})
    with pytest.raises(InputError, match="damaged: its memory is not stored as its settings say"):
        ContinualClassifier.load(tmp_path / "c")


def test_classifier_that_has_learned_nothing_survives_a_file(tmp_path: Path) -> None:
    tiny(seed=3).save(tmp_path / "c")
    loaded = ContinualClassifier.load(tmp_path / "c")
    with pytest.raises(InputError, match="call partial_fit first"):
        loaded.predict(pictures(0))
    assert insides(loaded.partial_fit(*labelled(0, 1))) == insides(tiny(seed=3).partial_fit(*labelled(0, 1)))


def test_the_first_pictures_decide_on_the_margin(tmp_path: Path) -> None:
    def framed(*labels: int) -> Pixels:
        return np.pad(pictures(*labels, each=60, size=12), [(0, 0), (2, 2), (2, 2)])

    def margin(classifier: ContinualClassifier) -> set[int]:
        forms = [kept.form.frequencies for kept in classifier.memory.values()]
        return {form.margin for form in forms if form is not None}

    few: dict[str, Any] = {"updates": 1, "width": 4, "steps": 2, "batch": 8, "condense_batch": 8}
    classifier = ContinualClassifier("8/class", **few)
    classifier.partial_fit(framed(0, 1), [label for label in "ab" for _ in range(60)])
    assert margin(classifier) == {2}
    classifier.save(tmp_path / "c.safetensors")
    again = ContinualClassifier.load(tmp_path / "c.safetensors")
    whole = pictures(2, 3, size=16)  # something is in the edge of these
    for one in (classifier, again):
        one.partial_fit(whole, [label for label in "cd" for _ in range(6)])
        assert margin(one) == {2}
    assert np.array_equal(classifier.predict_proba(whole), again.predict_proba(whole))
    elsewhere = whole.copy()
    elsewhere[:, :2] = 0  # which no network sees
    assert np.allclose(classifier.predict_proba(elsewhere), classifier.predict_proba(whole), atol=1e-6)
    first = ContinualClassifier("8/class", **few)
    assert margin(first.partial_fit(pictures(2, 3, each=60, size=16), ["c"] * 60 + ["d"] * 60)) == {0}
    first = ContinualClassifier("8/class", **few)
    assert margin(first.partial_fit(framed(0, 1)[::20], ["a"] * 3 + ["b"] * 3)) == {0}  # too few to tell


def test_a_file_from_before_a_setting_existed_means_what_it_meant(tmp_path: Path) -> None:
    few: dict[str, Any] = {"updates": 1, "width": 4, "steps": 2, "batch": 8, "condense_batch": 8}
    old: dict[str, Any] = {"filled": "no", "looks": "one", "margin": "0"}
    kept = ContinualClassifier("40", preset="best", classes=4, **few, **old)
    kept.partial_fit(pictures(0, 1, each=60), [label for label in "ab" for _ in range(60)])
    kept.save(tmp_path / "now")
    tensors, about = read_tensors(tmp_path / "now")
    for name in old:
        assert about["settings"].pop(name) == old[name]
    write_tensors(tmp_path / "old", tensors, about)
    loaded = ContinualClassifier.load(tmp_path / "old")
    shown = pictures(0, 1, seed=1)
    assert np.array_equal(loaded.predict_proba(shown), kept.predict_proba(shown))
    for one in (kept, loaded):
        one.partial_fit(pictures(2, 3, each=60), [label for label in "cd" for _ in range(60)])
    assert loaded.nbytes == kept.nbytes
    assert np.array_equal(loaded.predict_proba(shown), kept.predict_proba(shown))


def test_a_budget_too_small_for_the_classes_to_come_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="budget of 6 shared by 10 classes"):
        tiny(6, classes=10, method="rehearsal", filled="yes").partial_fit(*labelled(0, 1))


def test_classifier_that_diverges_says_so_instead_of_saving_what_cannot_be_loaded(tmp_path: Path) -> None:
    classifier = tiny(rate=1e30)
    said = refusal(partial(classifier.partial_fit, *labelled(0, 1)))
    assert said is None or "rate" in said
    classifier.save(tmp_path / "c")
    assert insides(ContinualClassifier.load(tmp_path / "c")) == insides(classifier)


def test_same_classifier_gives_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        tiny().partial_fit(*labelled(0, 1)).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_label_that_no_file_can_hold_is_a_sentence_and_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"old")
    with pytest.raises(InputError, match="cannot be written to a file"):
        tiny().partial_fit(pictures(0), [frozenset({1})] * 6).save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"old"


@pytest.fixture
def saved(tmp_path: Path, learned: ContinualClassifier) -> Path:
    learned.save(tmp_path / "c.safetensors")
    return tmp_path / "c.safetensors"


def test_file_cut_off_anywhere_is_a_sentence(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, *range(200, len(whole), 997), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(InputError, match="is not a whole safetensors file"):
            ContinualClassifier.load(saved)


class Bomb:
    """Would leave a mark if it were unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickle_is_a_sentence_and_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name, content in [("plain", pickle.dumps(Bomb(mark))), ("text", b"hello"), ("zip", b"PK\x03\x04" + bytes(99))]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            ContinualClassifier.load(tmp_path / name)
    torch.save(Bomb(mark), tmp_path / "torch")
    with pytest.raises(InputError):
        ContinualClassifier.load(tmp_path / "torch")
    assert not mark.exists()


def test_missing_file_and_folder_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        ContinualClassifier.load(tmp_path / "nothing")
    with pytest.raises(InputError):
        ContinualClassifier.load(tmp_path)


def about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        described: dict[str, Any] = json.loads(file.metadata()[ABOUT])
    return described


HOSTILE: dict[str, dict[str, Any]] = {
    "no format": {"format": None},
    "another format": {"format": "ccmcl classifier 99"},
    "no settings": {"settings": None},
    "settings that are not any": {"settings": ["budget"]},
    "unknown settings": {"settings": {"exploit": 1}},
    "settings of another type": {"settings": {"width": "wide"}},
    "a network as large as the world": {"settings": {"budget": "2/class", "width": 10**6}},
    "another network": {"settings": {**TINY, "width": 5}},
    "pictures as large as the world": {"shape": [1, 2**40, 2**40]},
    "pictures of another size": {"shape": [1, 9, 9]},
    "no pictures": {"shape": [0, 0, 0]},
    "pictures of no channel": {"shape": [0, 8, 8]},
    "pictures of no row": {"shape": [1, 0, 8]},
    "a shape of words": {"shape": ["a", "b", "c"]},
    "a shape of two": {"shape": [8, 8]},
    "more labels": {"labels": [0, 1, 2]},
    "fewer labels": {"labels": [0]},
    "the same label twice": {"labels": [0, 0]},
    "labels that are not any": {"labels": {"a": 1}},
    "labels of lists": {"labels": [[0], [1]]},
    "no labels": {"labels": None},
    "classes of another type": {"classes": "many"},
    "fewer classes declared": {"classes": 1},
    "calls of another type": {"calls": "often"},
    "endless calls": {"calls": float("inf")},
    "calls before the first": {"calls": -3},
    "no memory": {"memory": None},
    "another memory": {"memory": {"format": "x"}},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", HOSTILE)
def test_file_with_a_lying_description_is_a_sentence(saved: Path, kind: str) -> None:
    write_tensors(saved, load_file(saved), {**about(saved), **HOSTILE[kind]})
    with pytest.raises(InputError) as caught:
        ContinualClassifier.load(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("field", ["format", "settings", "shape", "labels", "classes", "calls", "memory"])
def test_file_with_a_part_of_its_description_missing_is_a_sentence(saved: Path, field: str) -> None:
    described = about(saved)
    del described[field]
    write_tensors(saved, load_file(saved), described)
    with pytest.raises(InputError, match=r"c\.safetensors"):
        ContinualClassifier.load(saved)


def _without(name: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "change",
    [
        _without("params.head.bias"),
        _without("memory.labels"),
        _without("memory.0.components"),
        lambda tensors: {**tensors, "params.head.bias": torch.zeros(3)},
        lambda tensors: {**tensors, "params.head.bias": torch.full((2,), torch.nan)},
        lambda tensors: {**tensors, "params.head.bias": torch.zeros(2, dtype=torch.float64)},
        lambda tensors: {**tensors, "params.correction": torch.zeros(2, 5)},
        lambda tensors: {**tensors, "params.correction": torch.zeros(2, 2, dtype=torch.int64)},
        lambda tensors: {**tensors, "params.extra": torch.zeros(2)},
        lambda tensors: {**tensors, "memory.0.components": torch.full((2, 1, 8, 8), torch.inf)},
        lambda tensors: {**tensors, "memory.0.components": torch.zeros(2, 1, 9, 9)},
        lambda tensors: {**tensors, "memory.labels": torch.tensor([0, 7], dtype=torch.int32)},
        lambda tensors: {**tensors, "memory.labels": torch.tensor([1, 0], dtype=torch.int32)},
        lambda tensors: {},
    ],
    ids=[
        "no bias",
        "no labels",
        "no components",
        "longer bias",
        "not a number",
        "doubles",
        "correction of others",
        "whole correction",
        "something more",
        "infinite",
        "another size",
        "unknown class",
        "wrong order",
        "nothing",
    ],
)
def test_file_with_tensors_that_do_not_fit_is_a_sentence(
    saved: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    write_tensors(saved, change(load_file(saved)), about(saved))
    with pytest.raises(InputError, match=r"c\.safetensors"):
        ContinualClassifier.load(saved)


def test_file_of_another_kind_is_a_sentence(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(3)}, tmp_path / "c")
    with pytest.raises(InputError, match="does not hold a classifier"):
        ContinualClassifier.load(tmp_path / "c")


@pytest.mark.usefixtures("unchecked")
def test_file_whose_memory_is_not_of_its_method_is_a_sentence_now_or_later(tmp_path: Path) -> None:
    tiny(method="rehearsal").partial_fit(*labelled(0, 1)).save(tmp_path / "c")
    described = about(tmp_path / "c")
    described["settings"]["method"] = "bic"  # whose memory has logits
    write_tensors(tmp_path / "c", load_file(tmp_path / "c"), described)
    with pytest.raises(InputError):
        ContinualClassifier.load(tmp_path / "c").partial_fit(*labelled(2))


def test_verbose_classifier_tells_of_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    tiny(verbose=True).partial_fit(*labelled(0, 1))
    assert "call 1" in capsys.readouterr().err
    tiny().partial_fit(*labelled(0, 1))
    assert capsys.readouterr() == ("", "")


def test_how_it_is_computed_is_asked_for_and_checked() -> None:
    plain, asked = tiny(), tiny(device="cpu", compile="off")
    for classifier in (plain, asked):
        classifier.partial_fit(*labelled(0, 1))
    if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        assert insides(plain) == insides(asked)
    with pytest.raises(InputError, match="device"):
        tiny(device="gpu")
    with pytest.raises(InputError, match="compile"):
        tiny(compile="always")
