"""Rules on cards: memory, load and faults, by time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope import wire
from floatscope._chips import fp8_of
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters
from floatscope_server.rules.stalled import Stalled, Window, judge
from floatscope_server.rules.verdict import Status
from tests.server.alerts.recordings import recorded

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

GIB = 1 << 30


def _sample(at: float, **figures: Any) -> wire.Device:  # noqa: ANN401 - of wire.Device
    given = {"index": 0, "backend": "test", "vram_total_bytes": 64 * GIB, **figures}
    return wire.Device(time_ns=int(at * 1e9), **given)


def _fired(observations: Iterable[Observation]) -> list[tuple[str, str, int]]:
    found = rehearse(RuleParameters(), observations)
    return [(a["kind"], a["severity"], a["first_step"]) for a in found]


@pytest.mark.parametrize(
    ("used", "total", "fires"),
    [(0.951, 64 * GIB, True), (0.949, 64 * GIB, False), (0.99, GIB, False), (0.99, GIB // 2, False)],
)
def test_a_card_that_is_nearly_full(used: float, total: int, fires: bool) -> None:
    sample = _sample(0, vram_total_bytes=total, vram_used_bytes=int(used * total))
    assert _fired(recorded([sample])) == ([("vram_near_oom", "warning", 0)] if fires else [])


def test_activity_of_the_memory_is_no_occupancy() -> None:
    assert _fired(recorded([_sample(0, vram_used_bytes=GIB, memory_busy_percent=100.0)])) == []
    assert _fired(recorded([_sample(0, vram_total_bytes=None, vram_used_bytes=GIB)])) == []


def test_an_allocator_that_retries() -> None:
    retries = [3, 3, 3, 4]
    found = rehearse(RuleParameters(), recorded([_sample(i, alloc_retries=n) for i, n in enumerate(retries)]))
    assert [(a["kind"], a["first_step"], a["reason"], a["device"]) for a in found] == [
        ("vram_near_oom", 3, "allocator_retry", "card0")
    ]


def test_memory_that_creeps_up() -> None:
    mib = 1 << 20
    creep = [_sample(10 * i, vram_total_bytes=24576 * mib, vram_used_bytes=(10000 + 200 * i) * mib) for i in range(51)]
    assert _fired(recorded(creep)) == [("vram_leak", "warning", 49)]
    assert _fired(recorded([msgspec.structs.replace(s, time_ns=0) for s in creep])) == [("vram_leak", "warning", 49)]


@given(
    st.floats(0.1, 0.9),
    st.lists(st.floats(-0.02, 0.02), min_size=50, max_size=120),
)
def test_a_level_is_no_leak_and_no_jitter(level: float, noise: list[float]) -> None:
    samples = [_sample(i, vram_used_bytes=int(64 * GIB * (level + 0.0005 * n))) for i, n in enumerate(noise)]
    assert _fired(recorded(samples)) == []


def test_a_slope_that_would_take_for_ever_is_no_leak() -> None:
    slow = [_sample(i, vram_used_bytes=int(64 * GIB * (0.2 + 0.001 * i))) for i in range(60)]
    assert _fired(recorded(slow)) == []
    fast = [_sample(i, vram_used_bytes=int(64 * GIB * (0.2 + 0.002 * i))) for i in range(60)]
    assert [kind for kind, *_ in _fired(recorded(fast))] == ["vram_leak"]


def test_a_model_that_is_loaded_is_no_leak(build: Build) -> None:
    def sample(i: int) -> wire.Device:
        return _sample(i, vram_used_bytes=int(64 * GIB * (0.1 + 0.01 * i)))

    loading = [build.observation(wire.Body(devices=(sample(i),)), seq=i + 1) for i in range(60)]
    assert _fired(loading) == []


@pytest.mark.parametrize(("jumps", "fires"), [(10, True), (9, False)])
def test_memory_that_jumps(jumps: int, fires: bool) -> None:
    used = [0.3] * 20
    for i in range(jumps):
        used.append(0.41 if i % 2 == 0 else 0.3)
    found = _fired(recorded([_sample(i, vram_used_bytes=int(64 * GIB * share)) for i, share in enumerate(used)]))
    assert found == ([("vram_jitter", "info", 29)] if fires else [])


def _busy(values: Iterable[float], **figures: Any) -> list[wire.Device]:  # noqa: ANN401 - of wire.Device
    return [_sample(i, busy_percent=value, **figures) for i, value in enumerate(values)]


def test_one_zero_between_two_steps_is_no_drop() -> None:
    assert _fired(recorded(_busy([97.0] * 200 + [0.0] + [97.0] * 100))) == []
    assert _fired(recorded(_busy([0.0 if i % 3 == 0 else 97.0 for i in range(300)]))) == []
    assert _fired(recorded(_busy([0.0]))) == []


def test_a_card_that_does_half_of_what_it_did() -> None:
    drops = [("gpu_util_drop", "warning")]
    found = _fired(recorded(_busy([90.0] * 200 + [40.0] * 100)))
    assert [alert[:2] for alert in found] == drops
    assert 229 <= found[0][2] <= 232
    assert _fired(recorded(_busy([90.0] * 200 + [46.0] * 100))) == []
    assert _fired(recorded(_busy([10.0] * 200 + [0.0] * 100))) == []


@pytest.mark.parametrize(("second", "owned", "fires"), [(60.0, True, True), (70.0, True, False), (60.0, False, False)])
def test_cards_of_a_run_that_differ(second: float, owned: bool, fires: bool) -> None:
    used: list[list[wire.Device]] = [
        [
            _sample(i, busy_percent=95.0, index=0, allocated_bytes=1),
            _sample(i, busy_percent=second, index=1, allocated_bytes=1 if owned else None),
        ]
        for i in range(400)
    ]
    observations = recorded([pair[0] for pair in used])
    both = [
        dataclasses.replace(o, body=msgspec.structs.replace(o.body, devices=tuple(pair)))
        for o, pair in zip(observations, used, strict=True)
    ]
    assert _fired(both) == ([("gpu_imbalance", "info", 300)] if fires else [])


def _event(build: Build, kind: str, **detail: Any) -> Observation:  # noqa: ANN401 - of wire.Event
    event = wire.Event(step=366, kind=kind, detail=detail)
    return build.observation(build.body(records={366: {"loss": 0.4589}}, events=[event]), seq=1)


def test_a_hang_in_the_words_of_a_log(build: Build) -> None:
    text = "HW Exception by GPU node-8 reason :GPU Hang"
    found = rehearse(RuleParameters(), [_event(build, "hang", what="gpu", text=text)])
    assert [(a["kind"], a["severity"], a["first_step"]) for a in found] == [
        ("stalled", "critical", 366),
        ("gpu_fault", "critical", 366),
    ]
    assert all(text in a["message"] and text in a["message_zh"] for a in found)
    assert _fired([_event(build, "hang", what="collective", text="watchdog")]) == [("stalled", "critical", 366)]


@pytest.mark.parametrize(("what", "severity"), [("ecc", "critical"), ("ras", "critical"), ("throttle", "warning")])
def test_a_fault_of_a_card(build: Build, what: str, severity: str) -> None:
    (found,) = rehearse(RuleParameters(), [_event(build, "gpu_fault", what=what, device="0000:c1:00.0", text="words")])
    assert (found["kind"], found["severity"], found["device"]) == ("gpu_fault", severity, "0000:c1:00.0")


def test_a_step_after_a_hang_ends_it(build: Build) -> None:
    later = build.observation(build.body(records={367: {"loss": 0.4}}), seq=2)
    found = rehearse(RuleParameters(), [_event(build, "hang", what="collective", text="watchdog"), later])
    assert [(a["kind"], a["state"], a["resolved_reason"]) for a in found] == [("stalled", "resolved", "cleared")]


@pytest.mark.parametrize(
    ("step_time_s", "silence", "fires"),
    [(1.0, 60.0, False), (1.0, 60.1, True), (46.0, 459.0, False), (46.0, 461.0, True), (None, 61.0, True)],
)
def test_when_a_run_is_stalled(step_time_s: float | None, silence: float, fires: bool) -> None:
    window = Window(last_step=5, progress_at=1000.0, step_time_s=step_time_s)
    outcome = judge(Stalled(), window, 1000.0 + silence)
    assert outcome.status is (Status.ALERT if fires else Status.OK)


def test_a_run_without_a_step_is_not_stalled() -> None:
    assert judge(Stalled(), Window(last_step=-1, progress_at=0.0), 1e9).status is Status.NO_DATA
    assert judge(Stalled(), Window(last_step=3, progress_at=None), 1e9).status is Status.NO_DATA


@pytest.mark.parametrize(
    ("chip", "variant"),
    [
        ("gfx942", "fnuz"),
        ("AMD Instinct MI300X", "fnuz"),
        ("AMD Instinct MI210", "none"),
        ("AMD Instinct MI250X", "none"),
        ("gfx90a", "none"),
        ("AMD Instinct MI355X", "ocp"),
        ("gfx950", "ocp"),
        ("Radeon RX 7900 XTX", "none"),
        ("gfx1100", "none"),
        ("AMD Radeon RX 9070 XT", "ocp"),
        ("NVIDIA A100-SXM4-80GB", "none"),
        ("NVIDIA H100 80GB HBM3", "ocp"),
        ("NVIDIA H200", "ocp"),
        ("NVIDIA GeForce RTX 3090", "none"),
        ("NVIDIA GeForce RTX 4090", "ocp"),
        ("NVIDIA L40S", "ocp"),
        ("sm_80", "none"),
        ("sm_90", "ocp"),
        ("Tesla T4", "none"),
        ("some other card", None),
    ],
)
def test_which_fp8_a_chip_multiplies(chip: str, variant: str | None) -> None:
    assert fp8_of(chip) == variant
