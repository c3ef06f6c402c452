"""The networks that show the way: what they are trained on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Generator

from ccmcl.budget import Budget
from ccmcl.condense import Condensation
from ccmcl.condensing import experts
from ccmcl.distribution import Distribution
from ccmcl.kinds import Pixels
from ccmcl.learn import RECIPES, Recipe
from ccmcl.memory import Memory
from ccmcl.nets import ConvNet
from ccmcl.plan import Learner, Plan
from ccmcl.sources import Varied
from ccmcl.stream import Experience


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 6), st.integers(1, 4), st.integers(0, 2), st.integers(1, 200))
@example(before=1, new=3, again=0, batch=2)
def test_experts_see_as_much_of_every_class_on_average(before: int, new: int, again: int, batch: int) -> None:
    plan = Plan(
        ConvNet((1, 8, 8), 4),
        Budget.parse("3/class"),
        2.0,
        Condensation(1, 1, 1, 1, 16, "adam", 0.01, 0.05),
        Recipe(2, batch, 0.07, RECIPES["strong"]),
        seed=0,
        objective="distribution",
        distribution=Distribution(2, 5),
    )
    memory = Memory({label: Pixels(torch.rand(3, 1, 8, 8)) for label in range(before)})
    classes = tuple(range(max(0, before - again), before + new))
    labels = torch.tensor(classes).repeat_interleave(200)
    experience = Experience(1, classes, torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels)
    jobs = experts(plan, Learner(memory), experience)
    assert list(jobs) == ["expert 1-0", "expert 1-1"]
    job = jobs["expert 1-0"]
    assert (job.total, job.rate) == (5, 0.05)
    assert isinstance(job.source, Varied)
    plain = job.source.source
    images, seen, weights = plain.take(plain.draw(Generator().manual_seed(0)))
    assert float(weights.sum()) == pytest.approx(1)
    fresh = images.amax((1, 2, 3)) == 0  # what is remembered is not black
    assert set(seen[fresh].tolist()) <= set(classes)
    assert set(seen[~fresh].tolist()) <= set(range(before))
    share = len(classes) / (before + new)
    if share == 1 and before:
        share = 0.5  # new pictures of all classes do not take the place of what is remembered
    assert float(weights[fresh].sum()) == pytest.approx(share)
    if batch >= 2 and before > again:
        assert len(images) == batch
        assert abs(int(fresh.sum()) - batch * len(classes) / (before + new)) <= 1
