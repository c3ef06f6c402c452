"""An experiment is spelled out completely: presets, names, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccmcl.budget import images_of
from ccmcl.catalogue import SHAPES
from ccmcl.compute import operations
from ccmcl.errors import InputError
from ccmcl.experiment import Experiment, from_dict
from ccmcl.methods import METHODS
from ccmcl.nets import ConvNet
from ccmcl.plan import COUNTS
from ccmcl.planning import plan_of
from ccmcl.presets import PRESETS
from ccmcl.residual import ResNet
from ccmcl.stream import class_order, experience_sizes

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
FIELDS = [field.name for field in dataclasses.fields(Experiment)]
OTHER: dict[str, Any] = {
    "dataset": "mnist",
    "method": "rehearsal",
    "budget": "30",
    "preset": "fast",
    "seed": 1,
    "order": "random",
    "per_experience": "5",
    "holdout": 100,
    "width": 64,
    "network": "residual",
    "precision": "bfloat16",
    "blocks": 2,
    "widening": 2,
    "networks": 3,
    "ratio": 3.0,
    "reduction": 2,
    "bits": 8,
    "step": 0.5,
    "squash": "no",
    "start": "real",
    "labels": "soft",
    "codec": "jpeg",
    "quality": 50,
    "objective": "distribution",
    "experts": 7,
    "expert_steps": 7,
    "expert_width": 7,
    "turned": "yes",
    "updates": 7,
    "judged": 0.7,
    "distance": "kernel",
    "frequencies": 30,
    "lens": "yes",
    "margin": "1",
    "continued": "yes",
    "filled": "yes",
    "recipe": "strong",
    "changes": "several",
    "mirrored": "no",
    "looks": "several",
    "outer": 7,
    "inner": 7,
    "matching": 7,
    "training": 7,
    "condense_batch": 7,
    "condense_optimiser": "adam",
    "condense_rate": 0.07,
    "steps": 7,
    "batch": 7,
    "rate": 0.07,
}


BY_EXPERTS: dict[str, Any] = {"expert_steps": 3, "expert_width": 3, "turned": "yes"}


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the tests' own check of types off, which would come before ours."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("dataset", "outer", "steps"),
    [("mnist", 50, 500), ("fashion-mnist", 50, 500), ("svhn", 100, 1000), ("cifar10", 100, 1000)],
)
def test_preset_paper_is_the_table_of_the_paper(dataset: str, outer: int, steps: int) -> None:
    made = Experiment.of(dataset=dataset, preset="paper")
    assert (made.outer, made.inner, made.matching, made.training) == (outer, 10, 10, 1)  # K, T, I, J
    assert (made.condense_batch, made.batch, made.rate, made.steps) == (256, 128, 0.01, steps)
    assert (made.condense_optimiser, made.condense_rate) == ("rmsprop", 0.01)
    assert (made.width, made.blocks, made.ratio) == (128, 3, 2.0)
    assert class_order(made.order, 10, made.seed) == tuple(range(10))
    assert experience_sizes(made.sizes(), 10) == (2, 2, 2, 2, 2)
    plan = plan_of(made, SHAPES[dataset], 10)
    assert (plan.net.width, plan.net.blocks) == (128, 3)
    assert plan.condensation.network_rate == plan.recipe.rate == 0.01
    assert (plan.recipe.steps, plan.recipe.batch, plan.condensation.batch) == (steps, 128, 256)


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "svhn", "cifar10"])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_buffers_of_the_paper_hold_what_the_paper_says(dataset: str, step: int) -> None:
    buffer = step * (20 if dataset in ("mnist", "fashion-mnist") else 100)
    for method in ("composite", "condensation", "rehearsal", "bic"):
        made = Experiment.of(dataset=dataset, method=method, preset="paper", budget=str(buffer))
        plan = plan_of(made, SHAPES[dataset], 10)
        assert COUNTS[method](plan, 10) == buffer // 10  # P, whatever it is that is stored
        assert images_of(COUNTS[method](plan, 10), plan.ratio) == 2 * buffer // 10  # Q = 2P


@pytest.mark.parametrize(("dataset", "buffer", "overhead"), [("mnist", 20, 0.10), ("cifar10", 500, 16.3)])
def test_overhead_of_the_weights_is_the_paper_s(dataset: str, buffer: int, overhead: float) -> None:
    plan = plan_of(Experiment.of(dataset=dataset, preset="paper", budget=str(buffer)), SHAPES[dataset], 10)
    components = plan.budget.components(plan.net.shape, 10, plan.ratio)
    channels, height, width = plan.net.shape
    weights = 10 * components * images_of(components, plan.ratio)
    assert weights / (channels * height * width) == pytest.approx(overhead, rel=0.03)


@pytest.mark.parametrize("shape", [GREY, COLOUR])
@pytest.mark.parametrize("method", METHODS)
def test_preset_fast_asks_for_a_small_part_of_the_work(shape: tuple[int, int, int], method: str) -> None:
    groups = [(first, first + 1) for first in range(0, 10, 2)]
    work = {}
    for preset in PRESETS:
        made = Experiment.of(shape=shape, preset=preset, method=method, budget="100")
        work[preset] = sum(operations(plan_of(made, shape, 10), method, groups))
    assert work["fast"] < work["best"] / 5
    assert work["fast"] < work["paper"] / 2


@pytest.mark.parametrize("pixels", [{"reduction": 2}, {"frequencies": 0}], ids=str)
def test_what_is_asked_for_in_pixels_is_in_pixels(pixels: dict[str, Any]) -> None:
    made = Experiment.of(dataset="mnist", preset="best", **pixels)
    assert (made.frequencies, made.lens, made.objective) == (0, "no", "distribution")


def test_pictures_too_large_for_frequencies_are_stored_smaller() -> None:
    large = (3, 1000, 800)
    made = Experiment.of(shape=large, dataset="large", preset="best")
    assert (made.frequencies, made.lens, made.reduction) == (0, "no", 16)
    assert made.continued == "no", "beside sharp pictures, blurred ones would be known by that"
    asked = Experiment.of(shape=large, dataset="large", preset="best", frequencies=20)
    assert (asked.frequencies, asked.lens, asked.reduction) == (20, "no", 1)


@given(
    st.sampled_from([GREY, COLOUR, (1, 64, 64), (3, 16, 24), (1, 8, 8)]),
    st.sampled_from(["{}", "{}/class", "{}KiB", "{}KiB/class"]),
    st.integers(10, 500),
    st.integers(1, 20),
    st.integers(0, 2),
    st.sampled_from([8, 32]),
)
def test_an_image_is_finer_only_where_that_does_not_leave_few_of_them(
    shape: tuple[int, int, int], unit: str, amount: int, classes: int, edge: int, bits: int
) -> None:
    made = Experiment.of(shape=shape, dataset="own", budget=unit.format(amount), bits=bits, filled="no")
    assume("KiB" not in unit or 1024 * amount >= 1000 * classes)
    assume("KiB" in unit or "class" in unit or amount >= classes)
    plan = plan_of(made, shape, classes, edge=edge)
    few = plan.net.frequencies
    assert few is not None
    assert few == plan.learned("condensation").frequencies
    pixels, count = few.inside[0] * few.inside[1], few.count
    most, least = (max(32, min(256, pixels // part)) for part in (6, 12))
    assert min(least, pixels) <= count <= min(most, pixels)
    images = COUNTS["condensation"](plan, classes)
    if count > least:
        assert images >= 22, "ranges of eight bits may take the room of two"
    if count < most:
        assert images <= 25


def test_too_large_pictures_have_no_frequencies_by_themselves() -> None:
    asked = Experiment.of(shape=(3, 1000, 800), dataset="large", preset="best", frequencies="auto")
    with pytest.raises(InputError, match="1000×800 pixels are too large for frequencies auto"):
        plan_of(asked, (3, 1000, 800), 10)


@pytest.mark.parametrize("wrong", ["many", "-1", "1.5", "", -1])
def test_frequencies_are_a_number_or_auto(wrong: Any) -> None:
    with pytest.raises(InputError, match="setting frequencies must be"):
        Experiment.of(dataset="mnist", frequencies=wrong)


@pytest.mark.parametrize("name", ["outer", "inner", "matching", "training"])
def test_settings_that_a_preset_has_no_use_for_are_not_passed_over(name: str) -> None:
    given: dict[str, Any] = {"dataset": "mnist", "preset": "best", name: 3}
    with pytest.raises(InputError, match=f"so {name} would change nothing"):
        Experiment.of(**given)
    assert getattr(Experiment.of(**given, objective="gradient"), name) == 3
    assert getattr(Experiment.of(**given, method="rehearsal"), name) == 3, "tables give them to every method"


@pytest.mark.parametrize("recipe", ["paper", "strong"])
@pytest.mark.parametrize("network", ["plain", "residual"])
def test_the_rate_of_a_residual_network_rises_first_if_it_falls_later(recipe: str, network: str) -> None:
    made = Experiment.of(dataset="mnist", preset="paper", recipe=recipe, network=network)
    plan = plan_of(made, SHAPES["mnist"], 10)
    assert isinstance(plan.net, ResNet) == (network == "residual")
    assert plan.recipe.style.warm == (0.1 if (recipe, network) == ("strong", "residual") else 0.0)


def test_networks_that_show_the_way_may_be_smaller() -> None:
    itself = plan_of(Experiment.of(dataset="mnist", preset="best"), SHAPES["mnist"], 10)
    assert itself.own_course
    assert itself.expert == itself.net
    made = Experiment.of(dataset="mnist", preset="best", network="residual", experts=2)
    plan = plan_of(made, SHAPES["mnist"], 10)
    assert not plan.own_course
    assert (plan.net.width, plan.expert.width) == (64, 32)
    assert isinstance(plan.net, ResNet)
    assert type(plan.expert) is type(plan.condensing) is ConvNet
    assert dataclasses.replace(plan.expert, width=64) == plan.condensing
    assert dataclasses.asdict(plan.condensing) == dataclasses.asdict(plan.net)
    alike = plan_of(dataclasses.replace(made, expert_width=0), SHAPES["mnist"], 10)
    assert alike.expert == alike.condensing


@pytest.mark.parametrize("preset", ["best", "fast"])
def test_what_is_stored_as_it_is_is_seen_as_it_is(preset: str) -> None:
    for method in METHODS:
        made = Experiment.of(dataset="cifar10", preset=preset, method=method)
        assert made.recipe == "strong"
        assert (made.frequencies, made.lens) == (
            ("auto", "yes") if method in ("composite", "condensation") else (0, "no")
        )
    assert Experiment.of(dataset="cifar10", preset=preset).method == "condensation"


def test_soft_labels_are_for_networks_that_begin_anew() -> None:
    assert Experiment.of(preset="fast").continued == "yes"
    assert Experiment.of(preset="fast", labels="soft").continued == "no"


@pytest.mark.parametrize("preset", ["best", "fast"])
def test_whatever_can_goes_on_by_the_presets_so_that_a_learner_is_never_credited_to_a_memory(preset: str) -> None:
    learner = ("network", "networks", "width", "blocks", "widening", "recipe", "changes", "steps", "batch", "rate")
    made = {method: Experiment.of(dataset="cifar10", preset=preset, method=method) for method in METHODS}
    assert len({tuple(getattr(one, name) for name in learner) for one in made.values()}) == 1
    goes_on = {method for method, one in made.items() if one.continued == "yes"}
    assert goes_on == {"composite", "condensation", "rehearsal", "joint"}


@pytest.mark.parametrize(
    ("preset", "dataset", "changes"),
    [("best", "cifar10", "several"), ("best", "mnist", "one"), ("fast", "cifar10", "one"), ("fast", "mnist", "one")],
)
def test_pictures_in_colour_are_changed_in_several_ways_where_there_is_time(
    preset: str, dataset: str, changes: str
) -> None:
    assert {Experiment.of(dataset=dataset, preset=preset, method=method).changes for method in METHODS} == {changes}


def test_rates_go_with_what_they_are_for() -> None:
    assert (Experiment.of(preset="fast").rate, Experiment.of(preset="fast", network="plain").rate) == (0.05, 0.02)
    assert Experiment.of(preset="fast", objective="gradient").condense_rate == 0.02
    assert Experiment.of(preset="paper", network="plain", objective="gradient").rate == 0.01
    for network, share in (("plain", 1.0), ("residual", 0.4)):  # plain ones show the way
        plan = plan_of(Experiment.of(preset="fast", network=network, rate=0.1), GREY, 10)
        assert plan.condensation.network_rate == pytest.approx(0.1 * share)


@pytest.mark.parametrize("given", [{"labels": "soft"}, {"continued": "no"}, {"reduction": 2}], ids=str)
def test_a_network_that_begins_anew_is_shown_the_way_by_experts(given: dict[str, Any]) -> None:
    assert Experiment.of(preset="fast").experts == 0
    assert Experiment.of(preset="fast", **given).experts == 2
    assert Experiment.of(preset="fast", **given, experts=3).experts == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_given_goes_before_the_preset(preset: str) -> None:
    rest = {name: value for name, value in OTHER.items() if name not in ("preset", "dataset")}
    rest["reduction"] = 1  # fewer pixels or frequencies, not both
    rest["labels"] = "hard"  # soft labels, or a network that goes on
    rest["step"] = 0.0  # only free images are coded
    assert Experiment.of(preset=preset, **rest).as_dict() == {**rest, "preset": preset, "dataset": "digits"}


def test_name_changes_with_every_field() -> None:
    assert set(OTHER) == set(FIELDS), "a field has no other value to try"
    plain = Experiment.of(preset="paper")
    names = {plain.name}
    for field, value in OTHER.items():
        assert getattr(plain, field) != value
        needed: dict[str, Any] = {"frequencies": 31} if field in ("lens", "margin", "step") else {}
        needed |= {"method": "condensation"} if field == "step" else {}
        changed = dataclasses.replace(plain, **{field: value}, **needed)
        assert changed.name not in names, field
        names.add(changed.name)


def test_name_of_a_run_outlives_settings_that_come_later() -> None:
    made = Experiment.of(dataset="mnist", preset="paper")
    assert made.name == "mnist-composite-20-paper-seed0-a1461be8", "runs made before would be made again"
    old = {name: value for name, value in made.as_dict().items() if name != "precision"}
    assert from_dict(old) == made


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"budget": "2KiB"}, {"budget": "2048B"}),
        ({"budget": "2KiB"}, {"budget": " 2 kib "}),
        ({"budget": "10/class"}, {"budget": "10 / class"}),
        ({}, {"budget": "20", "method": "condensation", "seed": 0}),
        ({}, PRESETS["fast"](SHAPES["digits"])),
        ({"ratio": 2.0}, {"ratio": 2}),
        ({"rate": 1.0, "condense_rate": 3.0}, {"rate": 1, "condense_rate": 3}),
        ({"seed": 3, "width": 8}, {"width": 8, "seed": 3}),
    ],
    ids=str,
)
def test_name_is_the_same_however_settings_are_given(one: dict[str, Any], same: dict[str, Any]) -> None:
    assert Experiment.of(**one).name == Experiment.of(**same).name
    assert Experiment.of(**one) == Experiment.of(**same)


@pytest.mark.parametrize(
    ("given", "bits", "step", "updates"),
    [
        ({"budget": "20"}, 32, 0, 100),
        ({"budget": "20", "step": 0.5}, 32, 0.5, 100),
        ({"budget": "2KiB"}, 32, 0.2, 0),
        ({"budget": "2KiB", "method": "condensation", "preset": "best"}, 32, 0.2, 0),
        ({"budget": "2KiB", "frequencies": 40}, 32, 0.2, 0),
        ({"budget": "2KiB", "step": 1}, 32, 1, 0),
        ({"budget": "2KiB", "updates": 9}, 32, 0.2, 9),
        ({"budget": "2KiB", "start": "noise"}, 32, 0.2, 100),  # which must become pictures
        ({"budget": "2KiB", "condense_rate": 0.1}, 32, 0.2, 100),  # which would mean nothing otherwise
        ({"budget": "2KiB", "step": 0}, 8, 0, 100),
        ({"budget": "2KiB", "reduction": 2}, 8, 0, 100),
        ({"budget": "2KiB", "frequencies": 0}, 8, 0, 100),
        ({"budget": "2KiB/class", "preset": "best", "method": "composite"}, 8, 0, 200),
        ({"budget": "2KiB", "shape": (3, 2000, 2000)}, 8, 0, 100),
        ({"budget": "2KiB", "method": "rehearsal"}, 32, 0, 300),  # has no learned numbers
        ({"budget": "2KiB", "preset": "paper"}, 32, 0, 300),
        ({"budget": "2KiB", "bits": 16}, 16, 0, 100),
    ],
    ids=str,
)
def test_learned_numbers_are_coded_or_take_one_byte_where_bytes_are_counted(
    given: dict[str, Any], bits: int, step: float, updates: int
) -> None:
    made = Experiment.of(**given)
    assert (made.bits, made.step, made.updates) == (bits, step, updates)


@pytest.mark.parametrize(
    "given",
    [
        {"step": 0.1, "method": "composite"},
        {"step": 0.1, "method": "rehearsal"},
        {"step": 0.1, "frequencies": 0},
        {"step": 0.1, "reduction": 2},
        {"step": 0.1, "bits": 8},
        {"step": 0.001},
        {"step": -1},
        {"step": 11},
        {"step": float("nan")},
    ],
    ids=str,
)
def test_a_step_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"step"):
        Experiment.of(dataset="mnist", **given)


@given(st.text(max_size=60))
def test_name_is_a_plain_folder_name_whatever_the_data_set_is_called(dataset: str) -> None:
    name = Experiment.of(shape=GREY, dataset=dataset).name
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)


def test_name_of_a_long_data_set_still_fits_a_file_system() -> None:
    long = [Experiment.of(shape=GREY, dataset=f"{'a' * 245}{end}.npz") for end in "xy"]
    assert long[0].name != long[1].name
    assert len(long[0].name) <= 200


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "compsite"}, "did you mean 'composite'"),
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"preset": 3}, "There is no preset 3"),
        ({"condense_optimiser": "rmsprob"}, "did you mean 'rmsprop'"),
        ({"widht": 3}, "did you mean 'width'"),
        ({"budget": "abc"}, "Cannot read the budget 'abc'"),
        ({"budget": "0"}, "leaves nothing to remember"),
        ({"budget": "1e3"}, "Cannot read the budget"),
        ({"budget": 100}, "budget must be of type str"),
        ({"seed": -1}, "seed must not be negative"),
        ({"seed": 1.5}, "seed must be of type int"),
        ({"seed": True}, "seed must be of type int"),
        ({"holdout": -1}, "holdout must not be negative"),
        ({"training": -1}, "training must not be negative"),
        ({"blocks": 65}, "blocks must be at most 64"),
        ({"networks": 65}, "networks must be at most 64"),
        ({"order": 3}, "order must be of type str"),
        ({"labels": "soft", "continued": "yes"}, "give labels hard or continued no"),
        ({"method": "bic", "continued": "yes"}, "method bic goes on in a way of its own: give continued no"),
        ({"method": "finetune", "continued": "yes"}, "method finetune goes on in a way of its own"),
        ({"method": "finetune", "filled": "yes"}, "has no budget to fill"),
        ({"method": "joint", "filled": "yes"}, "has no budget to fill"),
        ({"experts": 0, "continued": "no"}, "give continued yes, or experts of at least 1"),
        ({"experts": 0, "labels": "soft"}, "give experts of at least 1"),
        ({"experts": -1}, "experts must not be negative"),
        *[({name: value}, f"so {name} would change nothing") for name, value in BY_EXPERTS.items()],
        *[
            ({name: 0}, f"{name} must be at least 1, not 0")
            for name in (
                "width",
                "blocks",
                "widening",
                "networks",
                "outer",
                "inner",
                "matching",
                "condense_batch",
                "steps",
                "batch",
            )
        ],
        *[
            ({name: value}, f"{name} must be a positive number")
            for name in ("ratio", "condense_rate", "rate")
            for value in (0.0, -1.0, float("nan"), float("inf"))
        ],
        *[({"ratio": value}, "ratio must be from 1e-06 to 1,000,000") for value in (1e-308, 1e-7, 1e7)],
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_bad_setting_is_a_sentence_that_names_it(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment.of(**given)
    said = str(caught.value)
    assert words in said
    assert said.endswith(".")
    assert "\n" not in said


def test_no_networks_steps_between_batches_are_allowed() -> None:
    assert Experiment.of(preset="paper", training=0).training == 0


@pytest.mark.parametrize("budget", ["9" * 400 + "KiB", "9" * 5000], ids=["infinite", "endless"])
def test_budget_beyond_all_numbers_is_refused(budget: str) -> None:
    with pytest.raises(InputError, match="budget"):
        Experiment.of(budget=budget)


experiments = st.builds(
    Experiment.of,
    shape=st.sampled_from([GREY, COLOUR]),
    dataset=st.text(),
    method=st.sampled_from(sorted(METHODS)),
    preset=st.sampled_from(sorted(PRESETS)),
    budget=st.from_regex(r"[1-9][0-9]{0,5}(B|KiB|MB)?(/class)?", fullmatch=True),
    seed=st.integers(0, 2**128 - 1),
    order=st.text(),
    ratio=st.floats(min_value=1e-6, max_value=1e6),
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    width=st.integers(1, 2**128 - 1),
)


@given(experiments)
def test_settings_survive_a_file(made: Experiment) -> None:
    again = from_dict(json.loads(json.dumps(made.as_dict())))
    assert again == made
    assert again.name == made.name


@pytest.mark.parametrize("drop", [None, "steps"])
def test_settings_of_another_version_are_refused(drop: str | None) -> None:
    values = {name: value for name, value in Experiment.of().as_dict().items() if name != drop}
    with pytest.raises(InputError, match="not the settings of an experiment"):
        from_dict(values if drop else {**values, "momentum": 0.9})


@pytest.mark.parametrize(("text", "sizes"), [("2", 2), ("1,2,7", [1, 2, 7]), (" 3 , 7 ", [3, 7])])
def test_classes_of_each_experience_are_read(text: str, sizes: list[int] | int) -> None:
    assert Experiment.of(per_experience=text).sizes() == sizes


@pytest.mark.parametrize("text", ["", "two", "1,,2", "1.5", "1;2"])
def test_unreadable_classes_of_each_experience_are_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"Cannot read the classes of each experience .*\."):
        Experiment.of(per_experience=text).sizes()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", [*METHODS, None])
@pytest.mark.parametrize("given", [{}, {"continued": "no"}, {"objective": "gradient"}, {"network": "plain"}])
def test_all_settings_of_an_experiment_make_it_again(preset: str, method: str | None, given: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    made = Experiment.of(preset=preset, **given, **chosen)
    assert Experiment.of(**made.as_dict()) == made


def test_a_table_may_have_experts_in_some_rows_and_none_in_others() -> None:
    rows = [Experiment.of(preset="fast", experts=count, expert_steps=50) for count in (0, 2)]
    assert [row.experts for row in rows] == [0, 2]


@pytest.mark.parametrize("method", ["rehearsal", "bic", "finetune", "joint"])
def test_what_is_matched_is_nothing_to_a_method_that_learns_no_memory(method: str) -> None:
    made = Experiment.of(preset="fast", method=method, objective="gradient")
    assert made.condense_rate == Experiment.of(preset="fast", method=method).condense_rate


@pytest.mark.parametrize("method", ["condensation", "composite"])
@pytest.mark.parametrize("budget", ["10/class", "2MiB", "1000"])
@pytest.mark.parametrize("shape", [(3, 128, 128), (3, 144, 144), (1, 256, 256), (3, 224, 224)])
def test_a_few_numbers_of_large_pictures_are_no_more_images_than_can_be_seen(
    shape: tuple[int, int, int], budget: str, method: str
) -> None:
    experiment = Experiment.of(shape=shape, dataset="own", budget=budget, method=method)
    plan = plan_of(experiment, shape, None)
    for classes in (3, 100):
        images = images_of(COUNTS[method](plan, classes), plan.ratio if method == "composite" else 1)
        whole = plan.budget.room(shape, classes) // math.prod(shape)
        assert images <= max(1, 2 * whole) or 4 * classes * images * math.prod(shape) <= 2**30
