"""Rules on the slower course of a run's series: boundaries, and silence on what is healthy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope import wire
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, loss_plateau
from floatscope_server.rules.series import RunningMedian

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

Fired = list[tuple[int, str, str, str]]
Records = dict[int, dict[str, float]]
Judge = Callable[..., Fired]


@pytest.fixture
def judge(build: Build) -> Judge:
    def fired(records: Records, *kinds: str, skipped: tuple[int, ...] = (), **detail: Any) -> Fired:  # noqa: ANN401
        """(step, kind, severity, reason) of the alerts of ``kinds`` in order."""
        events = [wire.Event(step=step, kind="skipped", detail=detail) for step in skipped]
        found = rehearse(RuleParameters(), [build.observation(build.body(records=records, events=events))])
        return [
            (a["first_step"], a["kind"], a["severity"], a["reason"]) for a in found if not kinds or a["kind"] in kinds
        ]

    return fired


def _losses(values: list[float], every: int = 1) -> Records:
    return {every * i: {"loss": value} for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "fires_at"),
    [
        ([4.31, 1.44, 7.08, 15.06, 16.02], 4),
        # Of batches that differ anyway, the first was a lucky one.
        ([1.0, 3.1, 2.0, 2.9, 2.2, 2.8, 1.2, 1.9], None),
        ([2.0] * 10 + [3.2, 3.2], 11),
        ([2.0] * 10 + [3.2, 2.0, 3.2], 12),
        ([2.0] * 10 + [3.2, 2.0, 2.0, 3.2], None),
        # Exactly 1.5 times the best, and exactly the margin above it.
        ([2.0] * 10 + [3.0, 3.0], None),
        ([0.9] * 10 + [1.4, 1.4], None),
        # It comes down: the newest is below 0.9 of the first.
        ([2.0] * 10 + [6.0, 5.3, 4.7, 4.2, 3.7, 3.2, 2.8], None),
        ([2.0] * 10 + [6.0, 5.41], 11),
        ([0.01] * 10 + [0.4] * 10, None),
        ([-2.0] * 10 + [1.0] * 10, None),
    ],
)
def test_divergence(judge: Judge, values: list[float], fires_at: int | None) -> None:
    expected = [] if fires_at is None else [(fires_at, "loss_divergence", "critical", "stays_above")]
    assert judge(_losses(values), "loss_divergence") == expected


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=80), st.floats(0.1, 10.0))
def test_noise_around_a_level_is_no_divergence_and_no_plateau(noise: list[float], level: float) -> None:
    values = level * np.array(noise, "<f8")
    series = wire.Scalars(name="loss", steps=np.arange(len(noise), dtype="<i8").tobytes(), values=values.tobytes())
    body = wire.Body(first_step=0, steps=len(noise), scalars=(series,))
    alone = Observation(run_id=1, run="run", attempt=1, rank=0, writer="w", seq=1, world=1, body=body, layers={})
    assert rehearse(RuleParameters(), [alone]) == []


def test_a_plateau_needs_progress_before_and_a_rate_that_lets_it_move(judge: Judge) -> None:
    falls = [4.0 - 0.05 * i for i in range(40)]
    flat = [2.05] * 260
    step, kind, severity, reason = judge(_losses([*falls, *flat]), "loss_plateau")[0]
    assert (kind, severity, reason) == ("loss_plateau", "info", "no_progress")
    assert 240 <= step <= 260
    assert judge(_losses([2.0] * 300), "loss_plateau") == []
    decays = {step: {"loss": loss, "lr": 1e-4 * (1 - step / 300)} for step, loss in enumerate([*falls, *flat])}
    assert judge(decays, "loss_plateau") == []
    still = [4.0 * 0.9995**i for i in range(600)]
    assert judge(_losses(still), "loss_plateau") == []


def test_a_norm_that_repeats(judge: Judge) -> None:
    def norms(*values: float, loss: float = 2.0) -> Records:
        return {i: {"loss": loss if i else 2.0, "grad_norm": value} for i, value in enumerate(values)}

    assert judge(norms(0.5, 0.7, 0.7), "grad_norm_frozen") == []
    assert judge(norms(0.5, 0.7, 0.7, 0.7), "grad_norm_frozen") == [(3, "grad_norm_frozen", "info", "identical")]
    assert judge(norms(1.0, 1.0, 1.0, 1.0), "grad_norm_frozen") == []
    assert judge(norms(0.0, 0.0, 0.0, 0.0), "grad_norm_frozen") == []


def test_a_norm_that_repeats_beside_a_masked_loss_is_a_warning_unless_a_nan_explains_it(judge: Judge) -> None:
    masked = {10: {"loss": 3.5, "grad_norm": 0.25}, 20: {"loss": 0.0, "grad_norm": 0.25}}
    assert judge(masked, "grad_norm_frozen") == [(20, "grad_norm_frozen", "warning", "masked")]
    norm = 1.4142135381698608
    explained = {10: {"loss": 3.5, "grad_norm": norm}, 20: {"loss": 0.0, "grad_norm": norm}}
    assert judge(explained, "grad_norm_frozen", "nonfinite") == [(20, "nonfinite", "critical", "masked_grad_norm")]


def test_one_masked_record_is_enough(judge: Judge) -> None:
    records = {10: {"loss": 3.5, "grad_norm": 0.25}, 20: {"loss": 0.0, "grad_norm": 1.0}}
    assert judge(records, "nonfinite") == [(20, "nonfinite", "critical", "masked_grad_norm")]
    records = {s: {"loss": 0.0, "reward": 0.5, "grad_norm": 1.0} for s in range(5)}
    assert judge(records, "nonfinite") == []


def test_a_norm_that_is_printed_again_on_skipped_steps(judge: Judge) -> None:
    records = {100 + i: {"loss": 2.0 + 0.01 * i, "grad_norm": 0.44} for i in range(5)}
    found = judge(records, "stale_grad_norm", "grad_norm_frozen", skipped=(101, 102))
    assert found == [(102, "stale_grad_norm", "info", "skipped_steps")]


def test_a_rate_that_stands_still(judge: Judge) -> None:
    masked = {
        0: {"loss": 2.7, "learning_rate": 3e-5},
        10: {"loss": 0.0, "learning_rate": 2.9e-5},
        20: {"loss": 0.0, "learning_rate": 2.9e-5},
    }
    assert judge(masked, "lr_frozen") == [(20, "lr_frozen", "warning", "masked")]
    constant = {i: {"loss": 2.0 + 0.01 * (i % 3), "lr": 1e-5 * min(i, 10)} for i in range(60)}
    assert judge(constant, "lr_frozen") == []
    assert judge(constant, "lr_frozen", skipped=(30, 31)) == []
    assert judge(constant, "lr_frozen", skipped=(30, 31, 32))[0][2:] == ("info", "skipped_steps")


def test_the_scaler_says_itself_that_it_is_at_its_minimum(judge: Judge) -> None:
    records = {100: {"loss": 2.0, "loss_scale": 16.0}}
    found = judge(records, "loss_scale_collapse", skipped=(100,), at_minimum=True)
    assert found == [(100, "loss_scale_collapse", "critical", "at_minimum")]
    assert judge(records, "loss_scale_collapse", skipped=(100,)) == []


@pytest.mark.parametrize(
    ("before", "late", "severity"),
    [
        (0.0, 0.10, None),
        (0.0, 0.105, "info"),
        (0.5, 1.0, None),
        (0.25, 0.76, "info"),
        (0.25, 0.74, None),
        (0.1, 0.91, "warning"),
        (1.0, 1.0, None),
    ],
)
def test_clipping_is_measured_by_the_runs_own_level(
    judge: Judge, before: float, late: float, severity: str | None
) -> None:
    def share(rate: float, n: int) -> list[float]:
        return [0.5 if int((i + 1) * rate) > int(i * rate) else 1.0 for i in range(n)]

    coefs = [*share(before, 400), *share(late, 200)]
    records = {i: {"clip_coef": coef, "grad_norm": 1.0 + 0.01 * (i % 90)} for i, coef in enumerate(coefs)}
    found = [alert for alert in judge(records, "clip_saturation") if alert[0] <= 599]
    worst = max((alert[2] for alert in found), key=["info", "warning"].index, default=None)
    assert worst == severity
    assert all(alert[0] > 400 for alert in found)


def test_a_clip_rate_suggests_a_norm(build: Build) -> None:
    coefs = [1.0] * 400 + [0.5] * 200
    records = {i: {"clip_coef": coef, "grad_norm": 1.0 + (i % 100) / 100} for i, coef in enumerate(coefs)}
    *_, last = rehearse(RuleParameters(), [build.observation(build.body(records=records))])
    assert last["detail"]["suggested_max_grad_norm"] == pytest.approx(1.9, abs=0.02)
    assert "max_grad_norm" in last["message"]


@pytest.mark.parametrize(("factor", "severity"), [(1.04, None), (1.06, "info"), (1.29, "info"), (1.35, "warning")])
def test_a_run_that_becomes_slower(judge: Judge, factor: float, severity: str | None) -> None:
    times = [30.0] + [2.0 + 0.02 * (i % 5) for i in range(150)] + [factor * (2.0 + 0.02 * (i % 5)) for i in range(80)]
    records = {i: {"step_time_s": value} for i, value in enumerate(times)}
    found = judge(records, "throughput_drop")
    assert (found[-1][2] if found else None) == severity
    assert all(alert[0] >= 151 + 50 for alert in found)


def test_a_short_slow_stretch_is_no_drop(judge: Judge) -> None:
    times = [2.0] * 150 + [4.0] * 45 + [2.0] * 100
    assert judge({i: {"step_time_s": value} for i, value in enumerate(times)}, "throughput_drop") == []


@pytest.mark.parametrize(("late", "steps", "fires"), [(1.6, 20, True), (1.6, 19, False), (1.5, 30, False)])
def test_a_rank_that_is_late(build: Build, late: float, steps: int, fires: bool) -> None:
    def block(rank: int, seq: int) -> Observation:
        slow = late if rank == 2 and seq <= steps else 1.0
        return build.observation(build.body(records={seq: {"step_time_s": slow}}), rank=rank, world=4, seq=seq)

    found = rehearse(RuleParameters(), [block(rank, seq) for seq in range(1, 40) for rank in range(4)])
    assert [(a["kind"], a["rank"], a["first_step"]) for a in found] == ([("straggler", 2, 20)] if fires else [])


@given(st.integers(1, 9), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_running_median_is_the_median(length: int, values: list[float]) -> None:
    running = RunningMedian(length)
    for i, value in enumerate(values):
        running.push(value)
        assert running.median == pytest.approx(median(values[max(0, i + 1 - length) : i + 1]), rel=1e-12, abs=1e-300)


def test_a_loss_that_falls_slowly_is_one_plateau() -> None:
    rule, progress = loss_plateau.LossPlateau(), loss_plateau.Progress()
    told = []
    for step in range(2500):
        # After the fall, small gains: 0.6 % each 300 records.
        median = 4 - 0.02 * step if step < 100 else 2.0 * 0.994 ** ((step - 100) // 300)
        progress.push(rule, step, median, 1e-4)
        outcome = loss_plateau.judge(rule, progress, median, 1e-4, reward_keys=False)
        told.append(outcome.verdict is not None)
    assert sum(now and not before for before, now in itertools.pairwise(told)) == 1
    assert told[-1]
    progress.push(rule, 2500, 1.8, 1e-4)
    assert loss_plateau.judge(rule, progress, 1.8, 1e-4, reward_keys=False).verdict is None
