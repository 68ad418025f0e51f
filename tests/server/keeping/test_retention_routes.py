"""Retention and deletion over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import wire
from tests.server.keeping import kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.conftest import Make, MakeAgent, Reply, Running

_BUILT_IN = {
    "raw_keep_days": 30.0,
    "raw_keep_steps": 50_000,
    "level1_keep_days": 180.0,
    "hist_keep_days": 14.0,
    "hist_level1_keep_days": 180.0,
    "gpu_keep_days": 7.0,
    "gpu_level1_keep_days": 30.0,
    "pin_alerts": True,
    "max_bytes_per_run": None,
}


@pytest.fixture
def ask(server: Running, http: Callable[..., Reply]) -> Callable[..., Reply]:
    """(method, path, body)."""

    def send(method: str, path: str, body: Any = None) -> Reply:  # noqa: ANN401
        data = None if body is None else json.dumps(body).encode()
        return http(server.url + path, method=method, body=data, headers={"content-type": "application/json"})

    return send


def test_settings_of_all_runs_and_of_one(agent: MakeAgent, ask: Callable[..., Reply]) -> None:
    agent(run="a")
    assert ask("GET", "/api/v1/retention").json == {**_BUILT_IN, "own": False}
    changed = {**_BUILT_IN, "raw_keep_days": 10.0, "raw_keep_steps": None, "own": True}
    assert ask("PUT", "/api/v1/retention", {"raw_keep_days": 10, "raw_keep_steps": None}).json == changed
    assert ask("GET", "/api/v1/runs/a/retention").json == {**changed, "own": False}
    own = {**changed, "pin_alerts": False, "max_bytes_per_run": 5}
    assert ask("PUT", "/api/v1/runs/a/retention", {"pin_alerts": False, "max_bytes_per_run": 5}).json == own
    assert ask("GET", "/api/v1/runs/a/retention").json == own
    assert ask("GET", "/api/v1/retention").json == changed
    assert ask("DELETE", "/api/v1/runs/a/retention").json == {**changed, "own": False}
    assert ask("DELETE", "/api/v1/retention").json == {**_BUILT_IN, "own": False}
    log = [(line["action"], line["subject"], line["detail"]) for line in ask("GET", "/api/v1/audit").json]
    assert log == [
        ("retention.reset", "all runs", {}),
        ("retention.reset", "a", {}),
        ("retention.set", "a", {"pin_alerts": False, "max_bytes_per_run": 5}),
        ("retention.set", "all runs", {"raw_keep_days": 10.0, "raw_keep_steps": None}),
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"raw_keep_days": -1}, "raw_keep_days"),
        ({"raw_keep_days": "soon"}, "raw_keep_days"),
        ({"raw_keep_days": 1e9}, "raw_keep_days"),
        ({"raw_keep_steps": 1.5}, "raw_keep_steps"),
        ({"raw_keep_steps": 1 << 63}, "raw_keep_steps"),
        ({"max_bytes_per_run": -1}, "max_bytes_per_run"),
        ({"keep": 1}, "keep"),
        ({"raw_keep_days": 200}, "level1_keep_days (180 days) is less than raw_keep_days (200)"),
        ({"gpu_keep_days": None}, "gpu_level1_keep_days (30 days) is less than gpu_keep_days (for ever)"),
        ([], "body"),
    ],
)
@pytest.mark.engines("sqlite")
def test_what_makes_no_sense_is_refused_and_changes_nothing(ask: Callable[..., Reply], body: object, said: str) -> None:
    reply = ask("PUT", "/api/v1/retention", body)
    assert reply.status == 422
    assert said in reply.json["error"]["message"]
    assert ask("GET", "/api/v1/retention").json == {**_BUILT_IN, "own": False}


@pytest.mark.parametrize(("method", "path"), [("GET", "retention"), ("PUT", "retention"), ("DELETE", "")])
@pytest.mark.engines("sqlite")
def test_an_unknown_run_is_said_so(ask: Callable[..., Reply], method: str, path: str) -> None:
    reply = ask(method, f"/api/v1/runs/nobody/{path}".rstrip("/"), {} if method == "PUT" else None)
    assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_run")


@pytest.mark.engines("sqlite")
def test_nan_is_no_number_of_days(server: Running, http: Callable[..., Reply]) -> None:
    reply = http(
        f"{server.url}/api/v1/retention",
        method="PUT",
        body=b'{"raw_keep_days": NaN}',
        headers={"content-type": "application/json"},
    )
    assert reply.status == 422


def test_what_was_dropped_is_shown_and_a_run_is_deleted(
    server: Running, agent: MakeAgent, make: Make, ask: Callable[..., Reply], wait_for: Callable[..., None]
) -> None:
    one = agent(run="run", layers=[make.layer(0, "l0")])
    for first in range(0, 1200, 50):
        answer = one.deliver(wire.Body(summaries=(make.summaries("grad", first, [[1.0]] * 50),)))
        assert isinstance(answer, wire.Ack), answer
    assert server.json("/api/v1/runs/run")["resolution"] == []
    assert isinstance(one.ask(wire.Beat()), wire.Beat)
    refused = ask("DELETE", "/api/v1/runs/run")
    assert (refused.status, refused.json["error"]["code"]) == (409, "run_is_live")
    wait_for(lambda: kept.raw_tiles(server.services.store), "a sealed tile")
    assert ask("PUT", "/api/v1/runs/run/retention", {"raw_keep_steps": 0}).status == 200
    wait_for(lambda: server.json("/api/v1/runs/run")["resolution"], "dropped tiles")
    (shown,) = server.json("/api/v1/runs/run")["resolution"]
    assert (shown["kind"], shown["attempt"], shown["cell"]) == ("grad", 1, 8)
    assert shown["before"] % 256 == 0
    heat = server.json("/api/v1/runs/run/heatmap?metric=absmax&from=0&to=63&columns=64")
    assert (heat["cell"], heat["resolution"], heat["damaged"]) == (1, 8, 0)
    one.ask(wire.Bye(seq=one.seq + 1, reason="finished"))
    one.close()
    deleted = ask("DELETE", "/api/v1/runs/run")
    assert (deleted.status, deleted.json) == (202, {"run": "run", "state": "deleted"})
    assert server.json("/api/v1/runs") == []
    assert server.get("/api/v1/runs/run").status == 404
    assert ask("DELETE", "/api/v1/runs/run").status == 404
    log = [(line["action"], line["subject"]) for line in ask("GET", "/api/v1/audit").json]
    assert log == [("run.delete", "run"), ("retention.set", "run")]
    wait_for(lambda: not kept.rows_of(server.services.store, "run", "tile")["run"], "the rows to be gone")
    assert not any(kept.rows_of(server.services.store, "tile_raw", "tile", "stream", "layer").values())
