"""What the server tells agents unasked, and what they send because of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from floatscope import wire
from floatscope_server.agents import Agents

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from tests.server.conftest import Agent, Make, MakeAgent, Reply, Running

Http = Callable[..., "Reply"]


def _focus(server: Running, http: Http, run: str, body: object) -> Reply:
    headers = {"Content-Type": "application/json"}
    return http(f"{server.url}/api/v1/runs/{run}/focus", method="POST", body=json.dumps(body).encode(), headers=headers)


def test_a_focus_reaches_every_agent_of_the_run_and_no_other(server: Running, agent: MakeAgent, http: Http) -> None:
    ranks = [agent(rank=rank, world=2) for rank in range(2)]
    other = agent(run="other")
    reply = _focus(server, http, "run", {"steps": 50})
    assert (reply.status, reply.json) == (200, {"agents": 2, "steps": 50})
    assert [one.hear() for one in ranks] == [wire.Focus(steps=50)] * 2
    assert isinstance(other.ask(wire.Beat()), wire.Beat)
    assert other.told == []


def test_a_focus_may_be_on_some_ranks_kinds_and_layers(
    server: Running, agent: MakeAgent, make: Make, http: Http
) -> None:
    ranks = [agent(rank=rank, world=3, layers=[make.layer(0, "block.up"), make.layer(1, "head")]) for rank in range(3)]
    wanted = {"kinds": ["activations", "histograms"], "layers": ["block", "head"]}
    reply = _focus(server, http, "run", {"steps": 5, "ranks": [0, 2], **wanted})
    assert (reply.status, reply.json) == (200, {"agents": 2, "steps": 5})
    order = wire.Focus(steps=5, kinds=("activations", "histograms"), layers=("block", "head"))
    assert [ranks[rank].hear() for rank in (0, 2)] == [order] * 2
    (line,) = server.json("/api/v1/audit")
    assert (line["actor"], line["action"], line["subject"]) == ("local", "run.focus", "run")
    assert line["detail"] == {"steps": 5, "ranks": [0, 2], **wanted}
    assert isinstance(ranks[1].ask(wire.Beat()), wire.Beat)
    assert ranks[1].told == []
    none = _focus(server, http, "run", {"steps": 5, "ranks": [3]})
    assert (none.status, none.json["error"]["code"]) == (409, "no_agent")
    assert "no agent of these ranks" in none.json["error"]["message"]
    for name in ("bloc", "block.up.weight"):
        unknown = _focus(server, http, "run", {"steps": 5, "layers": ["head", name]})
        assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_layer")
        assert name in unknown.json["error"]["message"]


def test_a_focus_that_nobody_can_hear_is_refused(server: Running, agent: MakeAgent, http: Http) -> None:
    unknown = _focus(server, http, "nothing", {"steps": 50})
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_run")
    one = agent()
    assert isinstance(one.ask(wire.Bye(seq=0, reason="finished")), wire.Ack)
    one.close()
    while (gone := _focus(server, http, "run", {"steps": 50})).status == 200:
        pass  # the server has not seen the end of the connection yet
    assert (gone.status, gone.json["error"]["code"]) == (409, "no_agent")
    assert "while the training runs" in gone.json["error"]["hint"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"steps": 0},
        {"steps": wire.MAX_FOCUS_STEPS + 1},
        {"steps": "many"},
        [],
        {"steps": 5, "kinds": ["loss"]},
        {"steps": 5, "layers": [""]},
        {"steps": 5, "layers": ["head"] * 65},
        {"steps": 5, "ranks": [-1]},
    ],
)
def test_a_focus_is_bounded(server: Running, agent: MakeAgent, http: Http, body: object) -> None:
    agent()
    assert _focus(server, http, "run", body).status == 422


def _alert(number: int, *, severity: str = "critical", kind: str = "nonfinite") -> dict[str, Any]:
    return {
        "id": number,
        "kind": kind,
        "severity": severity,
        "first_step": 12,
        "since_step": 10,
        "reason": "loss",
        "message": "The loss is not a number.",
        "layer": None,
        "rank": 0,
    }


class _Ear:
    """An agent that is told things in this process."""

    def __init__(self, *, full: bool = False) -> None:
        self.heard: list[wire.ServerMessage] = []
        self.full = full

    def __call__(self, message: wire.ServerMessage) -> bool:
        self.heard.append(message)
        return not self.full


class _Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_who_comes_back_within_a_minute_hears_what_it_missed() -> None:
    clock = _Time()
    agents = Agents(clock=clock)
    agents.alert_fired("run", _alert(1, severity="warning"))
    clock.now += 59
    agents.alert_fired("run", _alert(2, severity="info"))
    agents.alert_fired("other", _alert(3))
    soon, late = _Ear(), _Ear()
    agents.add("run", 1, soon)
    assert [message.id for message in soon.heard if isinstance(message, wire.Alert)] == [1]
    clock.now += 2
    agents.add("run", 1, late)
    assert late.heard == []


def test_a_kind_of_alert_freezes_a_run_once_in_ten_minutes() -> None:
    clock = _Time()
    agents = Agents(clock=clock)
    for number in (1, 2):
        agents.alert_fired("run", _alert(number))
    agents.alert_fired("run", _alert(3, kind="loss_spike"))
    agents.alert_fired("other", _alert(4))
    agents.alert_fired("run", _alert(5, severity="warning", kind="underflow"))
    ear, other = _Ear(), _Ear()
    agents.add("run", 1, ear)
    agents.add("other", 1, other)
    frozen = [message for message in ear.heard if isinstance(message, wire.Freeze)]
    assert [(message.id, message.kind, message.step) for message in frozen] == [
        ("alert-1", "nonfinite", 10),
        ("alert-3", "loss_spike", 10),
    ]
    assert [message.id for message in ear.heard if isinstance(message, wire.Alert)] == [1, 2, 3, 5]
    assert [type(message) for message in other.heard] == [wire.Alert, wire.Freeze]
    clock.now += 601
    agents.alert_fired("run", _alert(6))
    again = _Ear()
    agents.add("run", 1, again)
    assert [type(message) for message in again.heard] == [wire.Alert, wire.Freeze]


def test_only_who_took_the_message_is_counted() -> None:
    agents = Agents()
    slow, gone, good = _Ear(full=True), _Ear(), _Ear()
    for ear in (slow, gone, good):
        agents.add("run", 1, ear)
    agents.remove("run", gone)
    assert agents.tell("run", wire.Focus(steps=1)) == 1
    assert gone.heard == []


def test_an_alert_of_this_run_is_told_to_its_agent(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=[make.layer(0, "a")])
    assert isinstance(one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [2.0, math.nan]),))), wire.Ack)
    while not any(isinstance(message, wire.Freeze) for message in one.told):
        one.hear()
    alert = next(message for message in one.told if isinstance(message, wire.Alert))
    (shown,) = [a for a in server.json("/api/v1/runs/run/alerts") if a["id"] == alert.id]
    assert (alert.kind, alert.severity, alert.step) == ("nonfinite", "critical", 1)
    assert (alert.message, alert.reason) == (shown["message"], shown["reason"])
    freeze = next(message for message in one.told if isinstance(message, wire.Freeze))
    assert freeze == wire.Freeze(id=f"alert-{alert.id}", alert=alert.id, kind="nonfinite", step=1)


def _piece(make: Make, number: int, parts: int, *, name: str = "alert-1", step: int = 3) -> wire.Dump:
    body = wire.Body(
        first_step=step,
        steps=1,
        summaries=(make.summaries("grad", step, [[1.0, 2.0]], layers=[5, 9]),),
        histograms=(
            wire.Histograms(
                kind="grad",
                first_step=step,
                steps=1,
                layers=np.array([5, 9], "<u4").tobytes(),
                first=np.array([250, 260], "<u2").tobytes(),
                length=np.array([2, 1], "<u2").tobytes(),
                sampled=np.array([7, 8], "<i8").tobytes(),
                counts=np.array([3, 4, 8], "<u8").tobytes(),
            ),
        ),
        scalars=(make.scalars("loss", step, [math.inf]),),
        events=(wire.Event(step=step, kind="skipped", detail={"optimizer": 0}),),
    )
    return wire.Dump(
        id=name,
        kind="nonfinite",
        alert=1,
        step=4,
        first_step=3,
        last_step=4,
        part=number,
        parts=parts,
        bodies=(wire.encode(body),),
    )


def _two_layers(agent: MakeAgent, make: Make) -> Agent:
    """The agent's numbers are not the run's."""
    return agent(layers=[make.layer(5, "a"), make.layer(9, "b")])


def test_a_dump_is_kept_for_good_and_given_back(server: Running, agent: MakeAgent, make: Make) -> None:
    one = _two_layers(agent, make)
    pieces = [_piece(make, number, 2, step=3 + number) for number in range(2)]
    assert one.deliver(wire.Body(dump=pieces[0])) == wire.Ack(seq=1, credit=8 << 20)
    (listed,) = server.json("/api/v1/runs/run/dumps")
    assert (listed["id"], listed["complete"]) == ("alert-1", False)
    one.deliver(wire.Body(dump=pieces[1]))
    one.deliver(wire.Body(dump=pieces[1]))  # as after a restart of the agent's spool
    (listed,) = server.json("/api/v1/runs/run/dumps")
    assert listed["bytes"] > 0
    assert {name: listed[name] for name in ("kind", "alert", "step", "first_step", "last_step", "ranks")} == {
        "kind": "nonfinite",
        "alert": 1,
        "step": 4,
        "first_step": 3,
        "last_step": 4,
        "ranks": [0],
    }
    assert listed["complete"] is True
    dump = server.json("/api/v1/runs/run/dumps/alert-1")
    (rank,) = dump["ranks"]
    assert rank["scalars"] == {"loss": [[3, "Infinity"], [4, "Infinity"]]}
    assert [summary["first_step"] for summary in rank["summaries"]] == [3, 4]
    assert rank["summaries"][0]["layers"] == ["a", "b"]
    assert rank["summaries"][0]["fields"]["absmax"] == [[1.0, 2.0]]
    assert rank["histograms"][0]["rows"] == [
        {"layer": "a", "first": 250, "sampled": 7, "counts": [3, 4]},
        {"layer": "b", "first": 260, "sampled": 8, "counts": [8]},
    ]
    assert [event["kind"] for event in rank["events"]] == ["skipped", "skipped"]
    assert server.json("/api/v1/runs/run/dumps/alert-1?kind=act")["ranks"][0]["summaries"] == []
    # It is beside the run's own data, not among them.
    assert server.json("/api/v1/runs/run")["steps"] == 0
    assert server.json("/api/v1/runs/run/scalars") == []


def test_dumps_of_several_ranks_are_one(server: Running, agent: MakeAgent, make: Make) -> None:
    for rank in range(2):
        one = agent(rank=rank, world=2, layers=[make.layer(5, "a"), make.layer(9, "b")])
        one.deliver(wire.Body(dump=_piece(make, 0, 1)))
    (listed,) = server.json("/api/v1/runs/run/dumps")
    assert (listed["ranks"], listed["complete"]) == ([0, 1], True)
    assert [rank["rank"] for rank in server.json("/api/v1/runs/run/dumps/alert-1")["ranks"]] == [0, 1]


def test_a_dump_that_is_not_there_is_404(server: Running, agent: MakeAgent) -> None:
    agent()
    assert server.json("/api/v1/runs/run/dumps") == []
    reply = server.get("/api/v1/runs/run/dumps/alert-1")
    assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_dump")
    assert server.get("/api/v1/runs/nothing/dumps").json["error"]["code"] == "unknown_run"


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../x"},
        {"id": ""},
        {"kind": ""},
        {"part": 2},
        {"part": -1},
        {"parts": 100_000},
        {"step": -1},
        {"last_step": 1 << 60},
        {"alert": -1},
    ],
)
def test_a_dump_out_of_bounds_is_left_out_alone(
    server: Running, agent: MakeAgent, make: Make, change: dict[str, Any]
) -> None:
    one = _two_layers(agent, make)
    answer = one.deliver(wire.Body(dump=msgspec.structs.replace(_piece(make, 0, 2), **change)))
    assert isinstance(answer, wire.Ack)
    assert server.json("/api/v1/runs/run/dumps") == []
    (gap,) = server.json("/api/v1/runs/run")["gaps"]
    assert gap["reason"].startswith("a dump")


def test_a_step_of_a_dump_that_cannot_be_read_costs_no_other(server: Running, agent: MakeAgent, make: Make) -> None:
    one = _two_layers(agent, make)
    piece = _piece(make, 0, 1)
    one.deliver(wire.Body(dump=msgspec.structs.replace(piece, bodies=(b"\xc1", *piece.bodies))))
    (rank,) = server.json("/api/v1/runs/run/dumps/alert-1")["ranks"]
    assert len(rank["summaries"]) == 1
    (gap,) = server.json("/api/v1/runs/run")["gaps"]
    assert gap["reason"] == "a step of a dump that cannot be read"


def test_what_the_agent_costs_is_shown(server: Running, agent: MakeAgent) -> None:
    ranks = [agent(rank=rank, world=3) for rank in range(3)]
    assert server.json("/api/v1/runs/run")["overhead"]["share"] is None
    assert server.json("/api/v1/runs")[0]["overhead"] is None
    for one, share in zip(ranks, (0.002, 0.0125, math.nan), strict=True):
        limit = "gradients every 1 steps" if share > 0.01 else ""
        cost = wire.Cost(share=share, mean=2 * share, budget=0.01, limit=limit, every={"gradients": 1})
        assert isinstance(one.ask(wire.Beat(cost=cost)), wire.Beat)
    shown = server.json("/api/v1/runs/run")
    assert {name: shown["overhead"][name] for name in ("share", "mean", "budget", "limit", "every")} == {
        "share": 0.0125,
        "mean": 0.025,
        "budget": 0.01,
        "limit": "gradients every 1 steps",
        "every": {"gradients": 1},
    }
    assert [writer["cost"] is None for writer in shown["writers"]] == [False, False, True]
    expected = {"share": 0.0125, "budget": 0.01, "limit": "gradients every 1 steps", "every": {"gradients": 1}}
    assert server.json("/api/v1/runs")[0]["overhead"] == expected
    # A beat without one, as of an older agent after a rollback of its installation, says nothing new.
    ranks[1].ask(wire.Beat())
    assert server.json("/api/v1/runs")[0]["overhead"] == expected


def test_changed_intervals_are_listed_the_newest_hundred(server: Running, agent: MakeAgent) -> None:
    one = agent()
    assert server.json("/api/v1/runs/run")["sampling"] == []
    for step in range(120):
        detail: dict[str, str | int | float | bool | None] = {"kind": "weights", "every": step + 2, "because": "costly"}
        other = wire.Event(step=step, kind="skipped")
        one.deliver(wire.Body(events=(wire.Event(step=step, kind="sampling", detail=detail), other)))
    assert server.json("/api/v1/runs/run")["sampling"] == [
        {"step": step, "rank": 0, "kind": "weights", "every": step + 2, "because": "costly"} for step in range(20, 120)
    ]
