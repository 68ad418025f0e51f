"""From an agent's socket to what a page reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire

if TYPE_CHECKING:
    from tests.server.conftest import Agent, Make, MakeAgent, Running


def _fill(agent: MakeAgent, make: Make) -> Agent:
    one = agent(
        run="demo",
        layers=[make.layer(0, "b", ("grad", "fp16"), order=1), make.layer(1, "a", ("grad", "e5m2"), order=0)],
        config={"lr": 1e-3, "bad": math.nan},
    )
    absmax = np.full((8, 2), 2.0, np.float32)
    absmax[5, 1] = 57344.0
    nans = np.zeros((8, 2), np.int64)
    nans[6, 0] = 3
    answer = one.deliver(
        wire.Body(
            summaries=(make.summaries("grad", 0, absmax, nans=nans),),
            scalars=(make.scalars("loss", 0, [4, 3.5, 3, 2.5, 2, 9, math.nan, 2]),),
            events=(wire.Event(step=6, kind="skipped", detail={"optimizer": 0, "scale": 1024.0}),),
        )
    )
    assert isinstance(answer, wire.Ack)
    assert answer.seq == 1
    return one


def test_what_an_agent_sends_is_what_the_page_reads(server: Running, agent: MakeAgent, make: Make) -> None:
    _fill(agent, make)
    (item,) = server.json("/api/v1/runs")
    assert item["name"] == "demo"
    assert item["state"] == "live"
    assert item["steps"] == 8
    assert item["last"] == {"loss": 2.0, "grad_norm": None, "loss_scale": None}
    assert item["worst"] == {"headroom": "-Infinity", "layer": "b", "kind": "grad", "step": 6}
    assert item["alerts"] == {"critical": 0, "warning": 0, "info": 0}
    assert item["sparkline"] == [4.0, 3.5, 3.0, 2.5, 2.0, 9.0, "NaN", 2.0]

    (series,) = server.json("/api/v1/runs/demo/scalars?names=loss")
    assert series["cell"] == 1
    assert series["steps"] == list(range(8))
    assert series["values"] == series["min"] == series["max"] == [4.0, 3.5, 3.0, 2.5, 2.0, 9.0, "NaN", 2.0]

    heat = server.json("/api/v1/runs/demo/heatmap?kind=grad&metric=headroom")
    assert [row["name"] for row in heat["layers"]] == ["a", "b"]
    assert [row["format"] for row in heat["layers"]] == ["e5m2", "fp16"]
    assert heat["columns"] == list(range(8))
    assert heat["values"][0][5] == pytest.approx(0.0)
    assert heat["values"][0][0] == pytest.approx(math.log2(57344 / 2), abs=1e-5)
    assert heat["values"][1][6] == "-Infinity"

    shown = server.json("/api/v1/runs/demo")
    assert shown["skipped_steps"] == [{"step": 6, "layer": "b", "rank": 0, "optimizers": [0], "scales": [1024.0]}]
    assert shown["config"] == {"lr": 1e-3, "bad": "NaN"}
    assert shown["ranks"] == [0]


def test_a_block_that_comes_twice_counts_once(server: Running, agent: MakeAgent, make: Make) -> None:
    one = _fill(agent, make)
    again = one.ask(wire.make_block(1, wire.Body(scalars=(make.scalars("loss", 0, [7.0]),))))
    assert isinstance(again, wire.Ack)
    assert again.seq == 1
    (series,) = server.json("/api/v1/runs/demo/scalars?names=loss")
    assert series["values"][0] == 4.0


def test_a_hole_is_answered_with_what_is_expected(agent: MakeAgent, make: Make) -> None:
    one = _fill(agent, make)
    nack = one.ask(wire.make_block(3, wire.Body()))
    assert isinstance(nack, wire.Nack)
    assert (nack.code, nack.expected, nack.retryable) == ("hole", 2, True)
    assert isinstance(one.ask(wire.make_block(2, wire.Body())), wire.Ack)
