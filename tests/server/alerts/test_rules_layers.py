"""Rules on layers: limits by operand format, underflow, and the alerts that a cause becomes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import wire
from floatscope_server.alerts.book import Book, Entry
from floatscope_server.rules import RuleParameters, RunWindow

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

NAN = math.nan


def _op(kind: str, fmt: str, role: str = "cast", scaling: str = "delayed") -> wire.Operand:
    return wire.Operand(kind=kind, format=fmt, role=role, scaling=scaling)


class Judge:
    """Feeds bodies to the rules and keeps the alerts that fired."""

    def __init__(self, build: Build, layers: dict[int, wire.Layer], world: int = 1) -> None:
        self.build, self.layers, self.world = build, layers, world
        self.window, self.book = RunWindow(RuleParameters()), Book()
        self.fired: list[tuple[int, Entry]] = []
        self.resolved: list[tuple[int, Entry]] = []

    def feed(self, body: wire.Body, rank: int = 0) -> None:
        for finding in self.window.judge(self.build.observation(body, layers=self.layers, rank=rank, world=self.world)):
            for t in self.book.apply(finding):
                if t.kind == "firing":
                    self.fired.append((t.step, t.entry))
                elif t.kind == "resolved":
                    self.resolved.append((t.step, t.entry))

    @property
    def short(self) -> list[tuple[int, str, str, str | None]]:
        return [(step, e.kind, e.verdict.reason, e.verdict.layer) for step, e in self.fired]


LIMITS: list[tuple[str, wire.Operand, dict[str, Any], tuple[str, str] | None]] = [
    ("half of the range is free", _op("act_in", "e4m3fnuz"), {"amax": 120.0}, None),
    ("less than a bit is free", _op("act_in", "e4m3fnuz"), {"amax": 121.0}, ("limit_near", "headroom")),
    ("a coming cast at the maximum still fits", _op("act_in", "e4m3fnuz"), {"amax": 240.0}, ("limit_near", "headroom")),
    ("a coming cast above it does not", _op("act_in", "e4m3fnuz"), {"amax": 241.0}, ("limit_crossed", "above_max")),
    ("the same value fits OCP", _op("act_in", "e4m3fn"), {"amax": 220.0}, None),
    ("the scale counts", _op("act_in", "e4m3fnuz"), {"amax": 1.0, "scale": 256.0}, ("limit_crossed", "above_max")),
    ("E5M2 from half its maximum on", _op("act_grad", "e5m2"), {"amax": 28673.0}, ("limit_near", "headroom")),
    ("E5M2 below", _op("act_grad", "e5m2"), {"amax": 28672.0}, None),
    (
        "a stored tensor at the maximum",
        _op("act", "fp16", "stored", "none"),
        {"amax": 65504.0},
        ("limit_crossed", "saturated"),
    ),
    ("a stored tensor near it", _op("act", "fp16", "stored", "none"), {"amax": 40000.0}, ("limit_near", "headroom")),
    ("an infinity", _op("act", "fp16", "stored", "none"), {"amax": 1.0, "infs": {0: 3}}, ("limit_crossed", "infinite")),
    ("a NaN", _op("act_in", "e4m3fn"), {"amax": 1.0, "nans": {0: 3}}, ("limit_crossed", "nan")),
    (
        "current scaling reaches the maximum by design",
        _op("act_in", "e4m3fn", "cast", "dynamic"),
        {"amax": 448.0},
        None,
    ),
    ("a loss scaler probes the limit by design", _op("grad", "fp16", "stored", "loss"), {"amax": 60000.0}, None),
    ("bf16 has no near", _op("act", "bf16", "stored", "none"), {"amax": 3.3e38}, None),
    ("fp32 has no near", _op("grad", "fp32", "stored", "none"), {"amax": 3.4e38}, None),
    ("bf16 has infinities", _op("act", "bf16", "stored", "none"), {"infs": {0: 1}}, ("limit_crossed", "infinite")),
    (
        "the dtype of a gradient is not what it was computed in",
        _op("grad", "fp16", "stored", "none"),
        {"amax": 65504.0},
        None,
    ),
    (
        "an infinite scale",
        _op("weight", "e4m3fn"),
        {"amax": 0.0, "scale": math.inf},
        ("limit_crossed", "scale_not_finite"),
    ),
]


@pytest.mark.parametrize(("operand", "numbers", "expected"), [c[1:] for c in LIMITS], ids=[c[0] for c in LIMITS])
def test_limit(build: Build, operand: wire.Operand, numbers: dict[str, Any], expected: tuple[str, str] | None) -> None:
    judge = Judge(build, build.layers("fc", operands=[operand]))
    judge.feed(build.body(build.summary(operand.kind, 7, 1, **numbers)))
    assert judge.short == ([] if expected is None else [(7, *expected, "fc")])
    for _, entry in judge.fired:
        assert (entry.verdict.tensor, entry.verdict.format) == (operand.kind, operand.format)


def test_a_gradient_has_the_limit_of_the_format_its_module_ran_in(build: Build) -> None:
    operands = [_op("grad", "fp16", "stored", "none"), _op("act", "fp16", "stored", "none")]
    judge = Judge(build, build.layers("fc", operands=operands))
    judge.feed(build.body(build.summary("grad", 0, 1, amax=65504.0)))
    assert judge.short == [(0, "limit_crossed", "saturated", "fc")]


def test_layers_that_cross_together_are_one_alert_led_by_the_first_in_execution_order(build: Build) -> None:
    names = [f"h.{i}" for i in range(300)]
    judge = Judge(build, build.layers(*names, operands=[_op("act_in", "e4m3fnuz"), _op("act_grad", "e5m2")]))
    judge.feed(build.body(build.summary("act_in", 0, 300, amax=500.0)))
    judge.feed(build.body(build.summary("act_grad", 1, 300, amax=1e6)))
    assert judge.short == [(0, "limit_crossed", "above_max", "h.0"), (1, "limit_crossed", "above_max", "h.299")]
    assert [entry.hits for _, entry in judge.fired] == [300, 300]
    assert judge.fired[0][1].layers[:2] == ["h.1", "h.2"]


def test_a_layer_that_crosses_much_later_is_an_alert_of_its_own(build: Build) -> None:
    judge = Judge(build, build.layers("a", "b", operands=[_op("act_in", "e4m3fnuz")]))
    for step in range(60):
        judge.feed(build.body(build.summary("act_in", step, 2, amax=[300.0, 300.0 if step >= 40 else 1.0])))
    assert judge.short == [(0, "limit_crossed", "above_max", "a"), (40, "limit_crossed", "above_max", "b")]


def test_a_limit_resolves_once_it_has_kept_away_for_fifty_steps(build: Build) -> None:
    judge = Judge(build, build.layers("a", operands=[_op("act_in", "e4m3fnuz")]))
    for step in range(100):
        judge.feed(build.body(build.summary("act_in", step, 1, amax=200.0 if step == 3 else 10.0)))
    assert judge.short == [(3, "limit_near", "headroom", "a")]
    assert [step for step, _ in judge.resolved] == [53]


def test_near_tells_when_the_trend_overflows(build: Build) -> None:
    judge = Judge(build, build.layers("a", operands=[_op("act_in", "e4m3fnuz")]))
    for step in range(8):
        judge.feed(build.body(build.summary("act_in", step, 1, amax=240.0 * 2.0 ** (-4.25 + step / 2))))
    # At step 7 there is 0.75 bits of headroom, at half a bit a step.
    assert judge.fired[0][0] == 7
    assert judge.fired[0][1].verdict.detail["headroom"] == pytest.approx(0.75, abs=1e-5)
    assert judge.fired[0][1].verdict.detail["steps_to_overflow"] == pytest.approx(1.5, abs=0.05)


def test_one_nan_that_poisons_300_layers_is_one_alert(build: Build) -> None:
    names = [f"h.{i}" for i in range(300)]
    judge = Judge(build, build.layers(*names, operands=[_op("act", "bf16", "stored", "none")]))
    sound = {step: {"loss": 2.0} for step in range(3)}
    for step in range(3):
        judge.feed(
            build.body(*(build.summary(k, step, 300) for k in ("act", "act_in", "weight")), records={step: sound[step]})
        )
    for step in range(3, 40):
        bad = range(17, 300) if step == 3 else range(300)
        judge.feed(
            build.body(
                build.summary("act_in", step, 300, nans={i: 1 for i in bad if i != 17 or step > 3}),
                build.summary("act", step, 300, nans=dict.fromkeys(bad, 1)),
                build.summary("grad", step, 300, nans=dict.fromkeys(range(300), 1)),
                records={step: {"loss": NAN}},
            )
        )
    assert judge.short == [(3, "nonfinite", "loss", "h.17")]
    entry = judge.fired[0][1]
    assert entry.hits == 300
    assert entry.verdict.detail["layers"][:3] == ["h.17", "h.18", "h.19"]
    assert entry.verdict.detail["producer"] == {
        "after": "h.16",
        "first": "h.17",
        "kind": "act",
        "alone": True,
        "in": None,
        "how": "module",
        "order": 17,
    }


def test_the_crossed_limit_that_leads_to_a_nan_names_the_layer_first(build: Build) -> None:
    judge = Judge(build, build.layers(*(f"h.{i}" for i in range(10)), operands=[_op("act_in", "e4m3fnuz")]))
    amax = [10.0] * 10
    judge.feed(build.body(build.summary("act_in", 0, 10, amax=amax), records={0: {"loss": 2.0}}))
    amax[4] = 300.0
    judge.feed(
        build.body(
            build.summary("act_in", 1, 10, amax=amax, nans=dict.fromkeys(range(5, 10), 9)),
            build.summary("act", 1, 10, nans=dict.fromkeys(range(4, 10), 9)),
            records={1: {"loss": NAN}},
        )
    )
    assert judge.short == [(1, "limit_crossed", "above_max", "h.4"), (1, "nonfinite", "loss", "h.4")]
    assert judge.fired[1][1].verdict.detail["limit"] == {"layer": "h.4", "kind": "act_in", "format": "e4m3fnuz"}


def test_gradients_of_a_skipped_step_are_the_scalers_business(build: Build) -> None:
    operands = [_op("grad", "fp16", "stored", "loss"), _op("act_grad", "fp16", "stored", "loss")]
    judge = Judge(build, build.layers("a", "b", operands=operands))
    judge.feed(
        build.body(
            build.summary("act_grad", 0, 2, infs={0: 4}),
            build.summary("grad", 0, 2, infs={0: 4, 1: 2}),
            records={0: {"loss": 2.0}},
            events=[wire.Event(step=0, kind="skipped", detail={"optimizer": 0, "scale": 65536.0})],
        )
    )
    assert [(e.kind, e.verdict.severity.label) for _, e in judge.fired] == [("nonfinite", "info")]


def test_infinities_of_a_mask_are_its_ordinary_level(build: Build) -> None:
    judge = Judge(build, build.layers("router", operands=[_op("act", "bf16", "stored", "none")]))
    for step in range(5):
        judge.feed(build.body(build.summary("act", step, 1, infs={0: 64}), records={step: {"loss": 2.0}}))
    assert judge.short == []
    judge.feed(build.body(build.summary("act", 5, 1, infs={0: 64}, nans={0: 1}), records={5: {"loss": NAN}}))
    assert judge.fired[-1][1].verdict.detail["producer"]["first"] == "router"


UNDER: list[tuple[str, list[float], list[tuple[int, str, str]]]] = [
    ("a share that was always there", [0.4] * 80, []),
    ("a rise to 12 % from 5 %", [0.05] * 30 + [0.12] * 50, []),
    ("a rise to 12 % from 1 %", [0.01] * 30 + [0.12] * 50, [(49, "underflow", "warning")]),
    ("20 of 50 need not be in a row", ([0.01] * 30 + [0.12, 0.01] * 25), [(68, "underflow", "warning")]),
    ("fewer than 20 of 50", [0.01] * 30 + [0.12] * 19 + [0.01] * 30, []),
    ("more than half", [0.6] * 30, [(19, "underflow", "critical")]),
    (
        "from a little to more than half",
        [0.0] * 30 + [0.3] * 20 + [0.7] * 20,
        [(49, "underflow", "warning"), (69, "underflow", "critical")],
    ),
]


@pytest.mark.parametrize(("shares", "expected"), [c[1:] for c in UNDER], ids=[c[0] for c in UNDER])
def test_underflow_at_a_coming_cast(build: Build, shares: list[float], expected: list[tuple[int, str, str]]) -> None:
    judge = Judge(build, build.layers("fc", operands=[_op("act_grad", "e5m2")]))
    blocks = [build.summary("act_grad", step, 1, under=share) for step, share in enumerate(shares)]
    judge.feed(build.body(*blocks))
    assert [(step, e.kind, e.verdict.severity.label) for step, e in judge.fired] == expected


def test_values_lost_in_a_stored_tensor_show_as_zeros_with_a_shoulder(build: Build) -> None:
    def run(floor: float, late_scale: float) -> list[tuple[int, str, str, str | None]]:
        judge = Judge(build, build.layers("fc", operands=[_op("grad", "fp16", "stored", "loss")]))
        for step in range(80):
            late = step >= 40
            judge.feed(
                build.body(
                    build.summary(
                        "grad",
                        step,
                        1,
                        zeros=0.5 if late else 0.2,
                        floor=floor if late else 0.0,
                        scale=late_scale if late else 65536.0,
                    )
                )
            )
        return judge.short

    assert run(0.2, 1024.0) == [(59, "underflow", "lost", "fc")]
    assert run(0.0, 1024.0) == []  # units that died leave no shoulder
    assert run(0.2, 131072.0) == []  # a higher scale loses nothing


def test_300_quiet_layers_fire_nothing(build: Build) -> None:
    operands = [_op("act_in", "e4m3fnuz"), _op("grad", "fp16", "stored", "loss")]
    judge = Judge(build, build.layers(*(f"h.{i}" for i in range(300)), operands=operands))
    for step in range(200):
        body = build.body(
            build.summary("act_in", step, 300, amax=50.0, under=0.01, floor=0.0),
            build.summary("grad", step, 300, amax=50.0, floor=0.0),
            records={step: {"loss": 2.0, "grad_norm": 1.0, "skipped": 0.0, "loss_scale": 65536.0}},
        )
        judge.feed(body)
    assert judge.fired == []
