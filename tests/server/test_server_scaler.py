"""What the pages of scalers and devices ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from floatscope import wire

if TYPE_CHECKING:
    from tests.server.conftest import Agent, Make, MakeAgent, Running


def _steps(one: Agent, make: Make, first: int, scales: list[float], skips: dict[int, list[int]]) -> None:
    """Steps from ``first`` on with these scales; ``skips``: by step the optimizers."""
    steps = range(first, first + len(scales))
    events = [
        wire.Event(step=step, kind="skipped", detail={"optimizer": index, "scale": scales[step - first]})
        for step, indices in skips.items()
        for index in indices
    ]
    events += [
        wire.Event(
            step=step, kind="scale_changed", detail={"from": scales[step - first - 1], "to": scales[step - first]}
        )
        for step in steps[1:]
        if scales[step - first] != scales[step - first - 1]
    ]
    one.deliver(
        wire.Body(
            first_step=first,
            steps=len(scales),
            scalars=(
                make.scalars("loss_scale", first, scales),
                make.scalars("skipped", first, [float(step in skips) for step in steps]),
                make.scalars("loss", first, [1.0] * len(scales)),
            ),
            events=tuple(sorted(events, key=lambda event: event.step)),
        )
    )


def test_a_scaler_is_what_the_rules_say_and_its_skips_are_told(
    server: Running, agent: MakeAgent, make: Make, kept: str
) -> None:
    one = agent(rank=3, world=1)
    # Grows after 20 good steps, overflows at 120, grows again after 20.
    scales = [1024.0] * 100 + [2048.0] * 21 + [1024.0] * 20 + [2048.0] * 9
    _steps(one, make, 0, scales, {120: [0]})
    found = server.json("/api/v1/runs/run/scaler")
    assert (found["state"], found["step"], found["loss_scale"], found["highest_scale"]) == ("healthy", 149, 2048, 2048)
    assert (found["window"], found["window_skips"], found["in_a_row"]) == (200, 1, 0)
    assert (found["good_steps"], found["growth_interval"]) == (9, 20)
    (skip,) = found["skipped"]
    assert (skip["step"], skip["rank"], skip["optimizers"], skip["scale"]) == (120, 3, [0], 2048.0)

    falling = [2048.0 * 0.5**i for i in range(6)]
    _steps(one, make, 150, falling, {150 + i: [0, 1] if i == 2 else [0] for i in range(6)})
    found = server.json("/api/v1/runs/run/scaler")
    assert (found["state"], found["in_a_row"], found["window_skips"], found["good_steps"]) == ("collapsing", 6, 7, 0)
    assert found["optimizers"] == [0, 1]
    assert [skip["step"] for skip in found["skipped"]] == [155, 154, 153, 152, 151, 150, 120]
    part = server.json("/api/v1/runs/run/scaler?from=150&to=152&limit=2")
    assert (part["skips"], [skip["step"] for skip in part["skipped"]]) == (3, [152, 151])
    assert part["state"] == "collapsing"


def test_the_parameters_of_the_run_decide(
    server: Running, agent: MakeAgent, make: Make, http: Callable[..., Any]
) -> None:
    one = agent()
    _steps(one, make, 0, [4096.0 / 2**i for i in range(4)], {i: [0] for i in range(4)})
    assert server.json("/api/v1/runs/run/scaler")["state"] == "warm-up"
    body = b'{"parameters": {"loss_scale_collapse": {"startup_steps": 0}}}'
    header = {"content-type": "application/json"}
    assert http(f"{server.url}/api/v1/runs/run/rules", method="PUT", body=body, headers=header).status == 200
    assert server.json("/api/v1/runs/run/scaler")["state"] == "collapsing"


def test_a_run_without_a_scaler_says_so(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent()
    assert server.json("/api/v1/runs/run/scaler")["state"] is None
    one.deliver(wire.Body(steps=1, scalars=(make.scalars("loss", 0, [1.0]),)))
    found = server.json("/api/v1/runs/run/scaler")
    assert (found["state"], found["step"], found["skipped"], found["skips"]) == (None, None, [], 0)
    assert server.json("/api/v1/runs/run/operands") == []
    assert server.json("/api/v1/runs/run/step_times") == []
    assert server.get("/api/v1/runs/run/operand?layer=a").status == 422
    assert server.get("/api/v1/runs/none/scaler").status == 404


def _fp8(make: Make, index: int, name: str, scaling: str) -> wire.Layer:
    operand = wire.Operand(kind="act_in", format="e4m3fn", role="cast", scaling=scaling)
    stored = wire.Operand(kind="grad", format="bf16")
    return msgspec.structs.replace(make.layer(index, name), operands=(operand, stored))


def test_operands_have_scale_amax_and_a_history(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=[_fp8(make, 0, "a/b", "delayed"), _fp8(make, 1, "b", "dynamic"), _fp8(make, 2, "c", "static")])
    steps = 64
    amax = np.stack([np.linspace(1, 64, steps), np.full(steps, 2.0)], axis=1)
    scale = np.stack([np.where(np.arange(steps) < 32, 4.0, 2.0), np.full(steps, 224.0)], axis=1)
    one.deliver(wire.Body(steps=steps, summaries=(make.summaries("act_in", 0, amax, layers=[0, 1], scale=scale),)))
    first, second, third = server.json("/api/v1/runs/run/operands")
    assert (first["layer"], first["kind"], first["format"], first["scaling"]) == ("a/b", "act_in", "e4m3fn", "delayed")
    assert (first["step"], first["absmax"], first["scale"]) == (63, 64.0, 2.0)
    assert first["share"] == pytest.approx(128 / 448)
    assert (second["scaling"], second["share"]) == ("dynamic", 1.0)
    assert (third["step"], third["share"], third["absmax"]) == (None, None, None)

    whole = server.json("/api/v1/runs/run/operand?layer=a/b&kind=act_in")
    assert (whole["cell"], whole["limit"], whole["steps"]) == (1, 448.0, list(range(steps)))
    assert whole["scale"] == scale[:, 0].tolist()
    np.testing.assert_allclose(whole["absmax"]["values"], amax[:, 0], rtol=1e-6)
    np.testing.assert_allclose(whole["headroom"]["min"], np.log2(448 / (amax * scale)[:, 0]), atol=1e-5)
    pooled = server.json("/api/v1/runs/run/operand?layer=0&kind=act_in&points=4")
    assert (pooled["cell"], pooled["steps"], pooled["scale"]) == (16, [0, 16, 32, 48], [None] * 4)
    np.testing.assert_allclose(pooled["absmax"]["max"], amax[15::16, 0], rtol=1e-6)
    np.testing.assert_allclose(pooled["headroom"]["min"], np.log2(448 / (amax * scale)[15::16, 0]), atol=1e-5)
    assert server.get("/api/v1/runs/run/operand?layer=a/b&kind=grad").status == 422


def test_steps_have_a_time_on_the_clock_of_the_cards(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent()
    seconds = [0.5 + 0.5 * (step % 2) for step in range(100)]
    one.deliver(wire.Body(steps=100, scalars=(make.scalars("step_time_s", 0, seconds),)))
    found = server.json("/api/v1/runs/run/step_times")
    assert [item["step"] for item in found] == list(range(100))
    times = [item["at"] for item in found]
    np.testing.assert_allclose(np.diff(times), seconds[1:], atol=1e-5)
    pooled = server.json("/api/v1/runs/run/step_times?points=10")
    assert len(pooled) <= 10
    for item in pooled:
        assert item["at"] == pytest.approx(times[item["step"]], abs=1e-5)


def test_devices_can_be_asked_for_a_figure_and_a_rank(server: Running, agent: MakeAgent) -> None:
    for rank in (0, 1):
        one = agent(rank=rank, world=2, attempt=1)
        readings = [
            wire.Device(
                time_ns=second * 10**9,
                backend="rocm",
                index=0,
                busy_percent=99.0 if second == 777 else 50.0,
                power_watts=1.0,
            )
            for second in range(100, 1100)
        ]
        one.deliver(wire.Body(devices=tuple(readings)))
    found = server.json("/api/v1/runs/run/devices?points=20&figures=busy_percent&rank=1")
    assert [(item["rank"], item["figure"]) for item in found] == [(1, "busy_percent")]
    assert max(found[0]["max"]) == 99.0
    assert len(found[0]["times"]) <= 20
    both = server.json("/api/v1/runs/run/devices?points=20&figures=busy_percent,power_watts")
    assert len(both) == 4
