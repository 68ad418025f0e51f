"""Decisions of the governor, on simulated trainings: no clock, no tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope._governor import KINDS, WIDEST, Change, Governor, StepCost

FINEST = {"gradients": 1, "activations": 10, "histograms": 10, "weights": 100, "updates": 100}
READINGS = ("gradients", "activations", "weights", "updates")


@dataclass
class Training:
    """A training of known costs, in seconds. ``step_s`` gives the time of a step without the agent."""

    step_s: Callable[[int], float]
    cost_s: Mapping[str, float]
    fixed_s: float = 0.0
    histogram_s: float = 0.0
    stall: Callable[[int], float] = lambda step: 0.0
    """Seconds by which a reading in this step happens to take longer."""
    finest: Mapping[str, int] = field(default_factory=lambda: dict(FINEST))
    budget: float = 0.01
    background: float = 0.0
    """Work of the threads for each second of reading."""
    changes: list[tuple[int, Change]] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    """Share of each step."""

    def run(self, steps: int) -> Governor:
        governor = Governor(self.finest, self.budget)
        for step in range(steps):
            histograms = governor.due("histograms", step)
            due = [kind for kind in READINGS if governor.due(kind, step)]
            extra = self.histogram_s if histograms else 0.0
            read = {kind: self.cost_s.get(kind, 0.0) + extra + self.stall(step) for kind in due}
            ours = self.fixed_s + sum(read.values())
            base = self.step_s(step)
            self.spent.append((ours * (1 + self.background)) / base)
            cost = StepCost(
                step_s=base + ours,
                fixed_s=self.fixed_s,
                readings=read,
                histograms=histograms,
                background_s=self.background * ours,
            )
            self.changes += [(step, change) for change in governor.observe(cost)]
        return governor

    def mean(self, first: int, last: int | None = None) -> float:
        part = self.spent[first:last]
        return sum(part) / len(part)

    def turns(self, kind: str, since: int = 0) -> int:
        """How often the interval of ``kind`` went the other way than before, from step ``since`` on."""
        sizes = [(0, self.finest[kind]), *((step, c.every) for step, c in self.changes if c.kind == kind)]
        ways = [b[1] > a[1] for a, b in pairwise(sizes) if b[0] >= since]
        return sum(a != b for a, b in pairwise(ways))


def test_what_is_cheap_is_left_as_it_was_given() -> None:
    training = Training(lambda step: 0.1, {"gradients": 3e-4, "activations": 2e-3, "weights": 1e-3}, 5e-5)
    governor = training.run(5000)
    assert training.changes == []
    assert governor.every == FINEST
    assert governor.share == pytest.approx(0.003 + 0.002 + 0.0001 + 0.0005)
    assert governor.mean == pytest.approx(governor.share, rel=0.02)
    assert governor.limit == ""


@pytest.mark.parametrize("step_s", [0.002, 0.1, 3.0, 60.0])
def test_activations_give_way_first_and_soon(step_s: float) -> None:
    training = Training(lambda step: step_s, {"gradients": 0.004 * step_s, "activations": 0.4 * step_s})
    governor = training.run(2000)
    assert {change.kind for _, change in training.changes} == {"activations"}
    assert training.changes[0][0] < 20
    assert training.mean(200) < 0.01
    assert governor.every["gradients"] == 1
    assert "4.4 % of the step time" in training.changes[0][1].because


def test_a_cost_above_the_step_time_is_said_in_digits() -> None:
    training = Training(lambda step: 0.001, {"gradients": 1.13e-3})
    training.run(20)
    assert "the agent costs 110 % of the step time" in training.changes[0][1].because


def test_gradients_that_cost_too_much_alone_give_way_too() -> None:
    training = Training(lambda step: 0.01, {"gradients": 4e-4, "activations": 2e-3, "weights": 1e-3}, histogram_s=1e-4)
    governor = training.run(3000)
    assert governor.every["gradients"] == 8
    assert governor.every["activations"] == 80
    assert training.mean(400) < 0.01


def test_a_fixed_cost_above_the_budget_is_said() -> None:
    training = Training(lambda step: 0.002, {"gradients": 1e-4, "activations": 1e-3}, fixed_s=1e-4)
    governor = training.run(3000)
    assert governor.limit == "what every step costs, whatever is read"
    assert governor.share > 0.05
    assert all(governor.every[kind] <= WIDEST[kind] for kind in KINDS)
    # What is widest already is not announced again and again.
    assert len(training.changes) < 20


def test_histograms_give_way_before_the_gradients_they_are_taken_of() -> None:
    finest = {"gradients": 1, "activations": 0, "histograms": 1, "weights": 0, "updates": 0}
    training = Training(lambda step: 0.1, {"gradients": 5e-4}, histogram_s=5e-3, finest=finest)
    governor = training.run(500)
    assert governor.every["gradients"] == 1
    assert governor.every["histograms"] >= 16
    assert governor.every["activations"] == 0
    assert training.mean(200) < 0.01


@pytest.mark.parametrize("share", [0.03, 0.2])
def test_gradients_that_cost_too_much_give_way_after_three_of_them(share: float) -> None:
    """The steps until then are most of what a run of a hundred steps pays."""
    training = Training(lambda step: 0.02, {"gradients": share * 0.02}, finest={"gradients": 1, "histograms": 0})
    training.run(200)
    first, change = training.changes[0]
    assert (first, change.kind) == (4, "gradients")
    assert training.mean(first + 1) < 0.01


def test_one_stalled_step_among_the_first_changes_nothing() -> None:
    for stalled in range(2, 5):
        training = Training(
            lambda step: 0.1,
            {"gradients": 2e-4},
            stall=lambda step, stalled=stalled: 0.5 if step == stalled else 0.0,  # type: ignore[misc]
            finest={"gradients": 1, "histograms": 0},
        )
        assert training.run(500).every["gradients"] == 1
        assert training.changes == []


def test_one_stalled_reading_costs_no_detail_for_long() -> None:
    training = Training(
        lambda step: 0.1,
        {"gradients": 2e-4, "activations": 3e-3},
        stall=lambda step: 0.5 if step == 10 else 0.0,
    )
    governor = training.run(2000)
    assert governor.every == FINEST


def test_stalls_of_the_dataloader_change_nothing() -> None:
    rng = random.Random(0)
    training = Training(
        lambda step: 0.1 + (5.0 if rng.random() < 0.05 else 0.0), {"gradients": 4e-4, "activations": 4e-3}
    )
    assert training.run(5000).every == FINEST
    assert training.changes == []


def test_it_narrows_again_when_steps_get_longer() -> None:
    training = Training(lambda step: 0.01 if step < 1000 else 0.1, {"gradients": 5e-5, "activations": 2e-3})
    governor = training.run(6000)
    assert governor.every == FINEST
    assert training.turns("activations") == 1


def test_a_slow_drift_is_followed_without_turning_back() -> None:
    training = Training(lambda step: 0.1 - 0.09 * step / 20_000, {"gradients": 5e-5, "activations": 5e-3})
    training.run(20_000)
    assert training.turns("activations") == 0
    assert training.changes
    for first in range(1000, 20_000, 1000):
        assert training.mean(first, first + 1000) < 0.0115


def test_the_work_of_the_threads_counts() -> None:
    alone = Training(lambda step: 0.1, {"gradients": 6e-4}).run(1000)
    training = Training(lambda step: 0.1, {"gradients": 6e-4}, background=1.0)
    governor = training.run(2000)
    assert alone.every["gradients"] == 1
    assert governor.every["gradients"] == 2
    assert training.mean(500) < 0.01


def test_without_a_budget_the_intervals_stay_and_the_cost_is_known() -> None:
    training = Training(lambda step: 0.01, {"gradients": 5e-3, "activations": 5e-2}, budget=0.0)
    governor = training.run(500)
    assert governor.every == FINEST
    assert training.changes == []
    assert governor.share == pytest.approx(1.0, rel=0.01)
    assert governor.limit == ""


def test_what_it_says_counts_every_step() -> None:
    """Though it takes them in by eights."""
    governor = Governor(FINEST, 0.01)
    for spent in (0.1, 0.2, 0.3, 0.4, 0.5):
        governor.observe(StepCost(step_s=1.0 + spent, fixed_s=spent, readings={}, histograms=False))
    assert governor.mean == pytest.approx(0.3)
    assert governor.share == pytest.approx(0.4), "the first two say nothing"
    assert governor.limit == "what every step costs, whatever is read"


def test_nothing_changes_while_it_is_suspended() -> None:
    governor = Governor(FINEST, 0.01)
    dear = StepCost(step_s=0.2, fixed_s=0.0, readings={"gradients": 0.01, "activations": 0.09}, histograms=True)
    assert not [change for _ in range(200) for change in governor.observe(dear, suspended=True)]
    assert next(change.kind for _ in range(50) for change in governor.observe(dear)) == "activations"


def test_an_interval_wider_than_the_widest_stays() -> None:
    finest = FINEST | {"activations": 5000}
    training = Training(lambda step: 0.001, {"gradients": 1e-6, "activations": 10.0}, finest=finest)
    assert training.run(12_000).every["activations"] == 5000


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    step_s=st.floats(0.002, 60.0),
    noise=st.floats(0.0, 0.4),
    gradients=st.floats(1e-6, 0.2),
    activations=st.floats(1e-6, 3.0),
    weights=st.floats(1e-6, 1.0),
    histogram=st.floats(0.0, 0.5),
    fixed=st.floats(0.0, 0.004),
)
def test_any_training_is_brought_under_its_budget_and_left_in_peace(
    seed: int,
    step_s: float,
    noise: float,
    gradients: float,
    activations: float,
    weights: float,
    histogram: float,
    fixed: float,
) -> None:
    """Costs are shares of a step."""
    rng = random.Random(seed)
    training = Training(
        lambda step: step_s * (1 + noise * rng.uniform(-1, 1)),
        {"gradients": gradients * step_s, "activations": activations * step_s, "weights": weights * step_s},
        fixed * step_s,
        histogram * step_s,
        stall=lambda step: 0.3 * step_s if rng.random() < 0.002 else 0.0,
    )
    governor = training.run(6000)
    assert all(governor.every[kind] % FINEST[kind] == 0 for kind in KINDS)
    assert all(FINEST[kind] <= governor.every[kind] <= WIDEST[kind] for kind in KINDS)
    for kind in KINDS:
        assert training.turns(kind) <= 6
        assert training.turns(kind, since=4000) <= 1
    if governor.limit == "":
        # 0.3 % for the stalls, which no interval can foresee; and what noise lets through.
        assert training.mean(2000) <= 0.01 * (1 + noise / 2) + 0.003
