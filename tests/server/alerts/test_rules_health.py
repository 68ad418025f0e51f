"""Rules on the slower course of layers, their formats, and what is not seen of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope import wire
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.telemetry import CoverageLow, judge_coverage

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

Alerts = list[dict[str, Any]]
Play = Callable[..., Alerts]
CAST = wire.Operand(kind="act_in", format="e4m3fn", role="cast", scaling="delayed")


@pytest.fixture
def play(build: Build) -> Play:
    def played(
        steps: Iterable[tuple[int, tuple[wire.Summaries, ...]]],
        layers: Mapping[int, wire.Layer],
        *kinds: str,
        devices: tuple[wire.Device, ...] = (),
    ) -> Alerts:
        observations = []
        for seq, (step, summaries) in enumerate(steps, 1):
            body = build.body(*summaries, records={step: {"loss": 2.0 + 0.001 * (step % 7)}})
            if seq == 1 and devices:
                body = wire.Body(
                    first_step=step, steps=1, summaries=body.summaries, scalars=body.scalars, devices=devices
                )
            observations.append(build.observation(body, layers=layers, seq=seq))
        found = rehearse(RuleParameters(), observations)
        return [alert for alert in found if not kinds or alert["kind"] in kinds]

    return played


def _brief(alerts: Alerts) -> list[tuple[str, str, str, int, str | None, int]]:
    return [(a["kind"], a["severity"], a["reason"], a["first_step"], a["layer"], a["hits"]) for a in alerts]


@pytest.mark.parametrize(
    ("scale", "fires"),
    [(2.0**40, False), (2.0**41, True), (2.0**-40, False), (2.0**-41, True), (1.0, False)],
)
def test_a_scale_out_of_all_proportion(build: Build, play: Play, scale: float, fires: bool) -> None:
    layers = build.layers("a", "b", operands=[CAST])
    steps = [(s, (build.summary("act_in", s, 2, amax=1e-6, scale=[1.0, scale if s == 5 else 1.0]),)) for s in range(8)]
    expected = [("scale_extreme", "warning", "outside", 5, "b", 1)] if fires else []
    assert _brief(play(steps, layers, "scale_extreme")) == expected


def test_scales_that_leave_the_range_together_are_one_alert(build: Build, play: Play) -> None:
    layers = build.layers("a", "b", "c", operands=[CAST])
    scales = {3: [1.0, 2.0**41, 1.0], 4: [2.0**41] * 3}
    steps = [(s, (build.summary("act_in", s, 3, amax=1e-9, scale=scales.get(s, 1.0)),)) for s in range(8)]
    assert _brief(play(steps, layers, "scale_extreme")) == [("scale_extreme", "warning", "outside", 3, "b", 3)]


def test_an_amax_of_zero_counts_only_in_a_tensor_that_had_values(build: Build, play: Play) -> None:
    layers = build.layers("a", "b", operands=[CAST])
    steps = [(s, (build.summary("act_in", s, 2, amax=[0.0, 0.0 if s >= 4 else 1.0], zeros=0.5),)) for s in range(8)]
    assert _brief(play(steps, layers, "scale_extreme")) == [("scale_extreme", "warning", "amax_zero", 4, "b", 1)]


def test_a_scale_without_a_cast_is_none(build: Build, play: Play) -> None:
    stored = [wire.Operand(kind="grad", format="fp16", scaling="loss")]
    layers = build.layers("a", operands=stored)
    steps = [(s, (build.summary("grad", s, 1, scale=2.0**41, amax=1e-9),)) for s in range(5)]
    assert play(steps, layers, "scale_extreme") == []


def test_an_extreme_scale_that_a_nan_follows_is_critical(build: Build, play: Play) -> None:
    layers = build.layers("a", "b", operands=[CAST])
    steps = [
        (
            s,
            (
                build.summary("act_in", s, 2, amax=1e-9, scale=[1.0, 2.0**41 if s == 5 else 1.0]),
                build.summary("act", s, 2, nans={1: 3} if s == 9 else None),
            ),
        )
        for s in range(12)
    ]
    assert _brief(play(steps, layers, "scale_extreme")) == [
        ("scale_extreme", "warning", "outside", 5, "b", 1),
        ("scale_extreme", "critical", "nonfinite_followed", 9, "b", 1),
    ]


def _gradients(build: Build, dead_from: int, last: int, every: int = 1) -> list[tuple[int, tuple[wire.Summaries, ...]]]:
    return [
        (s, (build.summary("grad", s, 2, amax=[1.0, 0.0 if s >= dead_from else 1.0]),))
        for s in range(0, last + 1, every)
    ]


@pytest.mark.parametrize(("last", "every", "fires_at"), [(59, 1, None), (60, 1, 60), (200, 7, 70)])
def test_a_layer_that_dies(build: Build, play: Play, last: int, every: int, fires_at: int | None) -> None:
    layers = build.layers("a", "b")
    found = play(_gradients(build, 10, last, every), layers, "dead_gradient")
    expected = [] if fires_at is None else [("dead_gradient", "warning", "all_zero", fires_at, "b", 1)]
    assert _brief(found) == expected


def test_a_layer_that_never_lived_is_not_dead(build: Build, play: Play) -> None:
    assert play(_gradients(build, 0, 200), build.layers("a", "b"), "dead_gradient") == []


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=60, max_size=90))
def test_a_gradient_that_comes_back_in_time_is_alive(zero: list[bool]) -> None:
    from tests.server.alerts.conftest import Build

    build = Build()
    flags = [flag and i % 45 != 0 for i, flag in enumerate(zero)]
    observations = [
        build.observation(
            build.body(build.summary("grad", s, 1, amax=0.0 if flag else 1.0)), layers=build.layers("a"), seq=s + 1
        )
        for s, flag in enumerate(flags)
    ]
    assert rehearse(RuleParameters(), observations) == []


def _moves(
    build: Build, ratio: float, first: int, last: int, every: int
) -> list[tuple[int, tuple[wire.Summaries, ...]]]:
    return [
        (
            s,
            (
                build.summary("weight", s, 2, rms=[1.0, 2.0]),
                build.summary("update", s, 2, rms=[1e-3, 2 * (ratio if s >= first else 1e-3)]),
            ),
        )
        for s in range(0, last + 1, every)
    ]


@pytest.mark.parametrize(
    ("ratio", "last", "every", "expected"),
    [
        (0.11, 108, 1, []),
        (0.11, 109, 1, [("update_ratio", "warning", "high", 109, "b", 1)]),
        (0.09, 400, 1, []),
        (0.11, 300, 100, [("update_ratio", "warning", "high", 200, "b", 1)]),
        (0.9e-7, 298, 1, []),
        (0.9e-7, 299, 1, [("update_ratio", "info", "low", 299, "b", 1)]),
        (1.1e-7, 400, 1, []),
    ],
)
def test_updates_beside_their_weights(
    build: Build, play: Play, ratio: float, last: int, every: int, expected: list[tuple[Any, ...]]
) -> None:
    assert _brief(play(_moves(build, ratio, 100, last, every), build.layers("a", "b"), "update_ratio")) == expected


def test_a_weight_that_starts_at_zero_moves_by_its_own_size_at_first(build: Build, play: Play) -> None:
    steps = [
        (s, (build.summary("weight", s, 1, rms=1e-4 * s * s / 2), build.summary("update", s, 1, rms=1e-4 * (s + 1))))
        for s in range(200)
    ]
    assert play(steps, build.layers("lora_B"), "update_ratio") == []


def _typed(name: str, kind: str, *operands: wire.Operand, order: int = 0) -> wire.Layer:
    return wire.Layer(index=order, name=name, module_type=kind, parameters=8, order=order, operands=operands)


def test_a_layer_that_declares_fp8_and_runs_in_bf16(build: Build, play: Play) -> None:
    bf16 = wire.Operand(kind="act_in", format="bf16")
    layers = {
        0: _typed("a", "Float8Linear", CAST, order=0),
        1: _typed("b", "Float8Linear", bf16, order=1),
        2: _typed("c", "Linear", bf16, order=2),
        3: _typed("d", "Float8Linear", bf16, order=3),
    }
    steps = [(s, (build.summary("act", s, 4),)) for s in range(4)]
    found = play(steps, layers)
    assert _brief(found) == [("precision_mismatch", "warning", "declared_fp8", 0, "b", 2)]
    assert "b declares FP8 and executed bf16" in found[0]["message"]


@pytest.mark.parametrize(
    ("card", "fmt", "reason"),
    [
        ("AMD Instinct MI300X", "e4m3fn", "ocp_on_fnuz"),
        ("AMD Instinct MI300X", "e4m3fnuz", None),
        ("AMD Instinct MI355X", "e4m3fnuz", "fnuz_on_ocp"),
        ("NVIDIA H100", "e4m3fn", None),
        ("AMD Instinct MI210", "e4m3fn", "no_fp8"),
        ("NVIDIA A100", "e4m3fn", "no_fp8"),
        ("NVIDIA A100", "bf16", None),
        ("a card that nobody knows", "e4m3fn", None),
    ],
)
def test_a_format_that_the_chip_cannot_execute(
    build: Build, play: Play, card: str, fmt: str, reason: str | None
) -> None:
    operand = wire.Operand(kind="act_in", format=fmt, role="cast", scaling="delayed")
    layers = build.layers("a", "b", operands=[operand])
    device = wire.Device(time_ns=0, backend="test", index=0, name=card)
    steps = [(s, (build.summary("act", s, 2),)) for s in range(3)]
    found = play(steps, layers, "format_mismatch", devices=(device,))
    assert _brief(found) == ([] if reason is None else [("format_mismatch", "critical", reason, 0, "a", 2)])


@pytest.mark.parametrize(("observed", "fires"), [(90, False), (89, True), (100, False)])
def test_layers_that_nobody_observes(observed: int, fires: bool) -> None:
    event = wire.Event(
        step=5,
        kind="coverage",
        detail={"observed": observed, "trainable": 100, "count/no gradient was read": 100 - observed},
    )
    verdict = judge_coverage(CoverageLow(), event).verdict
    assert (verdict is not None) == fires
    if verdict is not None:
        assert verdict.detail["reasons"] == {"no gradient was read": 11}


def test_records_that_were_lost(build: Build) -> None:
    window = RunWindow(RuleParameters())
    list(window.judge(build.observation(build.body(records={0: {"loss": 1.0}}))))
    (finding,) = window.gap(3, 77, 12, "queue_full", 2)
    verdict = finding.verdict("0")
    assert (finding.step, finding.kind, verdict.severity.label) == (77, "data_gap", "info")
    assert (verdict.rank, verdict.value, verdict.since_step) == (2, 12.0, 3)


def test_a_healthy_run_says_nothing(build: Build, play: Play) -> None:
    layers = build.layers("a", "b", "c", operands=[CAST])
    steps = [
        (
            s,
            (
                build.summary("act_in", s, 3, amax=[100.0, 90.0, 80.0], scale=2.0),
                build.summary("grad", s, 3, amax=1e-3),
                build.summary("weight", s, 3, rms=1.0),
                build.summary("update", s, 3, rms=1e-4),
            ),
        )
        for s in range(320)
    ]
    assert play(steps, layers) == []


def test_the_window_of_an_older_agent_has_no_rms(build: Build) -> None:
    observation: Observation = build.observation(
        build.body(build.summary("weight", 0, 1), build.summary("update", 0, 1)), layers=build.layers("a")
    )
    assert rehearse(RuleParameters(), [observation]) == []
