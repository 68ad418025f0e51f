"""Rules on series: they fire where they must and are silent where they must."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from floatscope_server.alerts.book import Book
from floatscope_server.rules import RuleParameters, RunWindow

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

NAN, INF = math.nan, math.inf
Fired = list[tuple[int, str, str, str]]
Judge = Callable[[dict[int, dict[str, float]]], Fired]


@pytest.fixture
def judge(build: Build) -> Judge:
    def fired(records: dict[int, dict[str, float]]) -> Fired:
        """(step, kind, severity, reason) of every alert that fires, in order."""
        window, book = RunWindow(RuleParameters()), Book()
        found: Fired = []
        for finding in window.judge(build.observation(build.body(records=records))):
            for t in book.apply(finding):
                if t.kind == "firing":
                    verdict = t.entry.verdict
                    found.append((t.step, verdict.kind, verdict.severity.label, verdict.reason))
        return found

    return fired


def _series(name: str, values: list[float], *, start: int = 0, every: int = 1) -> dict[int, dict[str, float]]:
    return {start + i * every: {name: value} for i, value in enumerate(values)}


def _skips(flags: list[int], scales: list[float] | None = None, *, start: int = 100) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for i, flag in enumerate(flags):
        found[start + i] = {"skipped": float(flag), "loss": 2.0}
        if scales is not None:
            found[start + i]["loss_scale"] = scales[i]
    return found


SILENT: dict[str, dict[int, dict[str, float]]] = {
    "steady loss": _series("loss", [2.0 + 0.05 * (i % 7) for i in range(60)]),
    "falling loss": _series("loss", [5.0 / (1 + 0.1 * i) for i in range(100)]),
    "small loss that doubles within the margin": _series("loss", [0.07] * 10 + [0.14] + [0.07] * 5),
    "first record however large": _series("loss", [344093.2]),
    "gradient norm noise up to 4.4x": _series("grad_norm", [1.0, 1.1, 0.9, 4.4, 1.0, 4.3] * 5),
    "gradient norm of zero throughout": _series("grad_norm", [0.0] * 30),
    "zero loss from the start": _series("loss", [0.0] * 10),
    "zero loss of a run that logs rewards": {
        s: {"loss": 0.0 if s % 2 else 0.3, "reward": 0.1, "grad_norm": 0.2} for s in range(20)
    },
    "6x gradient norm of a run that logs rewards": {
        s: {"grad_norm": 6.0 if s == 10 else 1.0, "kl": 0.01} for s in range(20)
    },
    "23 halvings from 2^32": {
        s: {"loss": 2.0, "skipped": 0.0 if s == 5 else 1.0, "loss_scale": 2.0 ** (32 - s), "grad_norm": 1.0}
        for s in range(24)
    },
    "steps without any series": {0: {"lr": 0.1}, 1: {"lr": 0.1}},
    "gradient norm of exactly 1 with a sound loss": {s: {"loss": 2.0, "grad_norm": 1.0} for s in range(20)},
}


@pytest.mark.parametrize("name", SILENT)
def test_silent(judge: Judge, name: str) -> None:
    above_info = [alert for alert in judge(SILENT[name]) if alert[2] != "info"]
    assert above_info == []


FIRES: dict[str, tuple[dict[int, dict[str, float]], Fired]] = {
    "NaN loss": ({0: {"loss": 2.0}, 1: {"loss": NAN}}, [(1, "nonfinite", "critical", "loss")]),
    "infinite loss": ({0: {"loss": INF}}, [(0, "nonfinite", "critical", "loss")]),
    "NaN loss of a run that logs rewards": (
        {0: {"loss": 2.0, "reward": 1.0}, 1: {"loss": NAN, "reward": 1.0}},
        [(1, "nonfinite", "warning", "loss")],
    ),
    "NaN eval loss": ({4: {"eval_loss": NAN}}, [(4, "nonfinite", "critical", "eval_loss")]),
    "a micro-batch whose loss the log averages away": (
        {7: {"loss": 2.0, "raw_loss_nonfinite": 1.0}},
        [(7, "nonfinite", "critical", "raw_loss")],
    ),
    "absent lm loss": (
        {0: {"lm loss": 2.0, "grad norm": 1.0, "loss scale": 8.0}, 1: {"grad norm": 1.0, "loss scale": 8.0}},
        [(1, "nonfinite", "critical", "loss_absent")],
    ),
    "absent lm loss as the scale falls": (
        {0: {"lm loss": 2.0, "grad norm": 1.0, "loss scale": 8.0}, 1: {"grad norm": 1.0, "loss scale": 4.0}},
        [(1, "nonfinite", "info", "gradient_overflow")],
    ),
    "NaN gradient norm": ({3: {"loss": 2.0, "grad_norm": NAN}}, [(3, "nonfinite", "critical", "grad_norm")]),
    "NaN gradient norm on a skipped step": (
        {3: {"loss": 2.0, "grad_norm": NAN, "skipped": 1.0}},
        [(3, "nonfinite", "info", "gradient_overflow")],
    ),
    "infinite gradient norm": ({3: {"loss": 2.0, "grad_norm": INF}}, [(3, "nonfinite", "info", "gradient_overflow")]),
    "third overflow in a row after start-up": (
        {s: {"loss": 2.0, "grad_norm": INF} for s in range(60, 63)},
        [(60, "nonfinite", "info", "gradient_overflow"), (62, "nonfinite", "critical", "gradients_in_a_row")],
    ),
    "the mask of DeepSpeed": (
        {0: {"loss": NAN, "grad_norm": 2.0**0.5}, 1: {"loss": 2.0, "grad_norm": 2.0**0.5}},
        [(0, "nonfinite", "critical", "loss")],
    ),
    "zero loss beside the mask of DeepSpeed": (
        {10: {"loss": 3.55, "grad_norm": 1.4142135381698608}, 20: {"loss": 0.0, "grad_norm": 1.4142135381698608}},
        [(20, "nonfinite", "critical", "masked_grad_norm"), (20, "loss_zero", "critical", "after_nonzero")],
    ),
    "zero loss after one record": (
        {0: {"loss": 2.7}, 10: {"loss": 0.0}},
        [(10, "loss_zero", "critical", "after_nonzero")],
    ),
    "zero loss beside a NaN gradient norm": (
        {0: {"loss": 0.0, "grad_norm": NAN}},
        [(0, "nonfinite", "critical", "grad_norm"), (0, "loss_zero", "critical", "beside_nonfinite")],
    ),
    "one high record": (_series("loss", [1.0] * 10 + [1.6]), [(10, "loss_spike", "info", "above_median")]),
    "the second batch of all": (_series("loss", [6.0, 16.0, 17.0]), [(1, "loss_spike", "info", "above_median")]),
    "batches that differ as much": (
        _series("loss", [6.0, 16.0, 3.0, 18.0, 19.0]),
        [(1, "loss_spike", "info", "above_median")],
    ),
    "a calm log that begins late": (
        _series("loss", [2.665, 2.667, 4.374, 4.366]),
        [(2, "loss_spike", "warning", "big_jump"), (3, "loss_spike", "critical", "in_a_row")],
    ),
    "one very high record": (_series("loss", [1.0] * 10 + [2.1]), [(10, "loss_spike", "warning", "big_jump")]),
    "two high records": (
        _series("loss", [0.8] * 10 + [1.25, 1.25]),
        [(10, "loss_spike", "info", "above_median"), (11, "loss_spike", "critical", "in_a_row")],
    ),
    "a very high record that averages steps": (
        _series("loss", [6.44, 11.42], start=7000, every=10),
        [(7010, "loss_spike", "critical", "averaged_record")],
    ),
    "a very high record after a gradient norm spike": (
        {s: {"loss": 2.2, "grad_norm": 0.24 + 0.001 * s} for s in range(10)}
        | {10: {"loss": 2.3, "grad_norm": 16.0}, 11: {"loss": 5.1, "grad_norm": 0.3}},
        [
            (10, "grad_norm_spike", "warning", "far_above_median"),
            (11, "loss_spike", "critical", "with_grad_norm"),
        ],
    ),
    "gradient norm 6x": (_series("grad_norm", [1.0] * 5 + [6.0]), [(5, "grad_norm_spike", "info", "above_median")]),
    "gradient norm 11x": (
        _series("grad_norm", [1.0] * 5 + [11.0]),
        [(5, "grad_norm_spike", "warning", "far_above_median")],
    ),
    "gradient norm 6x twice": (
        _series("grad_norm", [1.0] * 5 + [6.0, 6.0]),
        [(5, "grad_norm_spike", "info", "above_median"), (6, "grad_norm_spike", "critical", "in_a_row")],
    ),
    "three skips in a row": (
        {s: {"skipped": 1.0} for s in range(100, 103)},
        [
            (100, "nonfinite", "info", "gradient_overflow"),
            (102, "nonfinite", "critical", "gradients_in_a_row"),
            (102, "loss_scale_collapse", "warning", "skips_in_a_row"),
        ],
    ),
    "five skips within ten steps": (
        _skips([1, 0, 1, 0, 1, 0, 1, 0, 1]),
        [
            (100, "nonfinite", "info", "gradient_overflow"),
            (108, "loss_scale_collapse", "critical", "many_skips"),
        ],
    ),
    "an overflow at the smallest scale": (
        {10: {"skipped": 1.0, "loss_scale": 1.0}},
        [
            (10, "nonfinite", "info", "gradient_overflow"),
            (10, "loss_scale_collapse", "critical", "at_minimum"),
        ],
    ),
    "a scale that falls though nothing says skipped": (
        {100 + i: {"loss scale": 2.0 ** (20 - i)} for i in range(4)},
        [
            (101, "nonfinite", "info", "gradient_overflow"),
            (103, "nonfinite", "critical", "gradients_in_a_row"),
            (103, "loss_scale_collapse", "warning", "skips_in_a_row"),
        ],
    ),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(judge: Judge, name: str) -> None:
    records, expected = FIRES[name]
    assert judge(records) == expected


def test_the_deviation_counts_from_eight_records_on(judge: Judge) -> None:
    noisy = [1.0, 1.2, 0.8, 1.1, 0.9, 1.2, 0.8]
    assert judge(_series("loss", [*noisy, 1.7])) == [(7, "loss_spike", "info", "above_median")]
    assert judge(_series("loss", [*noisy, 1.0, 1.7])) == []


def test_a_nan_silences_spikes_but_not_a_zero_loss(judge: Judge) -> None:
    records = {s: {"loss": 2.0, "grad_norm": 1.0} for s in range(5)}
    records |= {5: {"loss": NAN, "grad_norm": NAN}, 6: {"loss": 9.0, "grad_norm": 50.0}, 7: {"loss": 0.0}}
    assert judge(records) == [(5, "nonfinite", "critical", "loss"), (7, "loss_zero", "critical", "after_nonzero")]


def test_an_overflow_of_the_scaler_does_not_silence_spikes(judge: Judge) -> None:
    records = {s: {"loss": 2.667, "skipped": 0.0} for s in range(100, 120)} | {120: {"loss": 4.374, "skipped": 1.0}}
    assert judge(records) == [
        (120, "nonfinite", "info", "gradient_overflow"),
        (120, "loss_spike", "warning", "big_jump"),
    ]


def test_a_negative_loss_is_judged_by_its_own_spread(judge: Judge) -> None:
    assert judge(_series("loss", [-1.9, -2.0, -1.2])) == []
    usual = [-1.9, -2.0, -2.1] * 4
    assert judge(_series("loss", [*usual, -1.8])) == []
    ((step, kind, severity, _),) = judge(_series("loss", [*usual, -0.9]))
    assert (step, kind, severity) == (12, "loss_spike", "warning")


def test_the_norm_that_the_agent_measured_counts_before_a_users_own(judge: Judge) -> None:
    ours = {step: {"floatscope/grad_norm": 1.0, "grad_norm": 1.0 if step < 30 else 50.0} for step in range(40)}
    assert judge(ours) == []
