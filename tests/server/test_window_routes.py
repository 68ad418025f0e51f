"""Layers, the newest values, the tail and comparisons over HTTP; caching of answers."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fastapi import Response
from sqlalchemy import event
from sqlmodel import select

from floatscope import wire
from floatscope_server.blocks import MEDIA_TYPE
from floatscope_server.jsontext import is_missing
from floatscope_server.models import StreamState
from floatscope_server.query.answers import Flights
from floatscope_server.store.sealer import Sealer
from tests.server.sealing import seal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakeAgent, Running


@pytest.fixture(params=["open", "sealed"])
def trained(request: pytest.FixtureRequest, server: Running, agent: MakeAgent, make: Make) -> Running:
    """A server with two runs, one longer than the other, with all kinds of NaN."""
    server.services.sealer.stop()
    for run, steps in (("run", 600), ("other", 300)):
        one = agent(
            run=run, layers=[make.layer(i, f"l{i}", ("grad", "fp16")) for i in range(2)] + [make.layer(2, "x/y")]
        )
        top = np.arange(1, 3 * steps + 1, dtype=np.float32).reshape(steps, 3)
        nans = np.zeros((steps, 3), np.int64)
        nans[7, 1] = 1
        top[9, 0] = 0
        for first in range(0, steps, 50):
            cut = slice(first, first + 50)
            losses = [math.nan if step == 3 else math.inf if step == 4 else 1.0 for step in range(first, first + 50)]
            count = np.full((50, 3), 100)
            count[20:30, 2] = 0
            one.deliver(
                wire.Body(
                    summaries=(make.summaries("grad", first, top[cut], nans=nans[cut], count=count),),
                    scalars=(make.scalars("loss", first, losses),),
                )
            )
    if request.param == "sealed":
        seal(server.services.store, until=512)
    return server


def _joined(meta: Any, arrays: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """``meta`` with ``arrays``, as JSON has it."""
    whole = {**meta}
    for name, array in arrays.items():
        at = whole
        *parents, own = name.split("/")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[own] = _json(array)
    return whole


def _json(array: Any) -> Any:  # noqa: ANN401 - JSON
    if array.ndim > 1:
        return [_json(row) for row in array]
    if array.dtype.kind != "f":
        return array.tolist()
    missing = is_missing(array) if array.dtype == np.float32 else np.zeros(len(array), bool)
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return [
        None if gone else "NaN" if math.isnan(value) else names.get(value, value)
        for value, gone in zip(array.tolist(), missing.tolist(), strict=True)
    ]


def test_json_and_typed_arrays_say_the_same(trained: Running, unpack: Unpack) -> None:
    for path in (
        "heatmap?metric=headroom&columns=600",
        "heatmap?metric=headroom&agg=mean&columns=9",
        "heatmap?metric=nonfinite&columns=20&from=3&to=77&layers=l1",
        "heatmap?metric=underflow",
        "layers/l0/series?points=50",
        "layers/x%2Fy/series?metrics=absmax,headroom&from=10&to=40",
        "series?layer=l1&metrics=headroom,nonfinite",
        "latest",
        "latest?metrics=headroom&layers=l1",
        "tail?metric=headroom",
        "tail?metric=absmax&since=590",
    ):
        content = trained.json(f"/api/v1/runs/run/{path}")
        meta, arrays = unpack(trained.get(f"/api/v1/runs/run/{path}", accept=MEDIA_TYPE).body)
        assert content == _joined(meta, arrays), path


def test_a_series_of_a_layer_has_its_envelope(trained: Running) -> None:
    found = trained.json("/api/v1/runs/run/layers/l0/series?metrics=absmax,headroom&points=75")
    assert (found["cell"], found["first_step"], found["last_step"], len(found["steps"])) == (8, 0, 599, 75)
    top = 3.0 * np.arange(600) + 1
    top[9] = 0
    assert found["absmax"]["max"] == top.reshape(75, 8).max(axis=1).tolist()
    assert found["absmax"]["min"] == top.reshape(75, 8).min(axis=1).tolist()
    np.testing.assert_allclose(found["absmax"]["values"], top.reshape(75, 8).mean(axis=1), rtol=1e-6)
    assert found["headroom"]["max"][1] == "Infinity", "all zero once"
    assert trained.get("/api/v1/runs/run/layers/none/series").status == 404
    assert trained.get("/api/v1/runs/run/layers/l0/series?metrics=no").status == 422


def test_latest_and_tail_follow_the_run(trained: Running, agent: MakeAgent, make: Make) -> None:
    found = trained.json("/api/v1/runs/run/latest?metrics=absmax")
    assert (found["names"], found["steps"]) == (["l0", "l1", "x/y"], [599, 599, 599])
    assert found["values"]["absmax"] == [1798.0, 1799.0, 1800.0]
    assert found["scalars"]["loss"] == {"step": 599, "value": 1.0}
    tail = trained.json("/api/v1/runs/run/tail?metric=absmax&since=597")
    assert (tail["steps"], tail["complete"]) == ([598, 599], True)
    assert tail["values"][0] == [1795.0, 1798.0]
    path = f"/api/v1/runs/run/tail?metric=absmax&commit={tail['commit']}"
    assert trained.json(path)["steps"] == []
    one = agent(run="run", attempt=1, layers=[make.layer(0, "l0", ("grad", "fp16"))])
    for step in (600, 590):
        one.deliver(wire.Body(summaries=(make.summaries("grad", step, [[5.0]]),)))
    later = trained.json(path)
    assert (later["steps"], later["values"][0], later["complete"]) == ([590, 600], [5.0, 5.0], True)
    assert trained.json("/api/v1/runs/run/latest?metrics=absmax")["steps"] == [600, 599, 599]
    assert trained.get("/api/v1/runs/run/tail?commit=x").status == 422
    assert not trained.json("/api/v1/runs/run/tail?commit=9-0-0")["complete"]


def test_runs_are_compared_on_the_same_cells(trained: Running, unpack: Unpack) -> None:
    path = "/api/v1/compare?runs=run,other&metric=absmax&columns=30"
    run, other = trained.json(path)
    assert (run["run"], run["cell"], other["cell"]) == ("run", 32, 32)
    assert other["columns"] == run["columns"][: len(other["columns"])]
    assert other["values"][0][:9] == run["values"][0][:9]
    meta, arrays = unpack(trained.get(path, accept=MEDIA_TYPE).body)
    assert [{**of, "values": _json(arrays[f"{at}/values"])} for at, of in enumerate(meta["runs"])] == [run, other]
    path = "/api/v1/compare?runs=run,other&what=scalars&columns=40"
    of_run, of_other = (of["series"][0] for of in trained.json(path))
    assert of_run["cell"] == of_other["cell"] == 16
    assert of_other["steps"][:18] == of_run["steps"][:18]
    assert of_run["max"][0] == "NaN"
    _, arrays = unpack(trained.get(path, accept=MEDIA_TYPE).body)
    assert _json(arrays["1/loss/max"]) == of_other["max"]
    for wrong in ("runs=run&what=x", "runs=", f"runs={','.join(['run'] * 9)}"):
        assert trained.get(f"/api/v1/compare?{wrong}").status == 422
    assert trained.get("/api/v1/compare?runs=run,none").status == 404


def test_an_answer_is_made_once_until_something_changes(trained: Running, agent: MakeAgent, make: Make) -> None:
    answers = trained.services.answers
    settled, live = ("/api/v1/runs/run/heatmap?metric=absmax&from=0&to=99", "/api/v1/runs/run/heatmap?metric=absmax")
    tags = {}
    for path in (settled, live):
        first = trained.get(path)
        made = answers.made
        again = trained.get(path)
        assert (again.body, answers.made) == (first.body, made)
        tags[path] = first.headers["etag"]
        none = trained.get(path, **{"If-None-Match": tags[path]})
        assert (none.status, none.body, none.headers["etag"]) == (304, b"", tags[path])
    assert trained.get(live, accept=MEDIA_TYPE).headers["etag"] != tags[live]
    one = agent(run="run", attempt=1, layers=[make.layer(0, "l0", ("grad", "fp16"))])
    one.deliver(wire.Body(summaries=(make.summaries("grad", 600, [[5.0]]),)))
    assert trained.get(live, **{"If-None-Match": tags[live]}).status == 200
    sealed = "max-age" in trained.get(settled).headers["cache-control"]
    assert (trained.get(settled, **{"If-None-Match": tags[settled]}).status == 304) == sealed
    one.deliver(wire.Body(layers=(make.layer(0, "l0", ("grad", "bf16")),)))
    assert trained.get(settled, **{"If-None-Match": tags[settled]}).status == 200, "another format"


def test_what_is_settled_keeps_its_tag_until_it_is_patched(
    server: Running, agent: MakeAgent, make: Make, wait_for: Callable[[Callable[[], object], str], None]
) -> None:
    server.services.sealer.stop()
    sealer = Sealer(server.services.store, lost_after_s=60.0)
    one = agent(run="run", layers=[make.layer(0, "l0", ("grad", "fp16"))])

    def deliver(steps: range) -> None:
        for first in range(steps.start, steps.stop, 50):
            top = np.arange(first + 1, min(first + 50, steps.stop) + 1, dtype=np.float32)[:, None]
            one.deliver(wire.Body(summaries=(make.summaries("grad", first, top),)))

    def sealed() -> list[tuple[int, int]]:
        sealer.seal_due()
        with server.services.store.read() as session:
            return [(state.sealed, state.epoch) for state in session.exec(select(StreamState)) if state.sealed]

    path = "/api/v1/runs/run/heatmap?metric=absmax&from=0&to=99"
    deliver(range(700))
    wait_for(lambda: [at for at, _ in sealed()] == [256], "a tile")
    first = server.get(path)
    assert "max-age" in first.headers["cache-control"]
    deliver(range(700, 1000))
    wait_for(lambda: [at for at, _ in sealed()] == [512], "another tile")
    known = {"If-None-Match": first.headers["etag"]}
    assert server.get(path, **known).status == 304
    fetched = server.services.reader.tiles.fetched
    assert server.get(path, accept=MEDIA_TYPE).status == 200
    assert server.services.reader.tiles.fetched == fetched, "the tiles are still known"
    (before,) = sealed()
    one.deliver(wire.Body(summaries=(make.summaries("grad", 7, [[5000.0]]),)))
    wait_for(lambda: sealed() != [before], "the patch")
    again = server.get(path, **known)
    assert (again.status, again.json["values"][0][7]) == (200, 5000.0)


@pytest.mark.parametrize(
    "path",
    [
        "runs/run/latest?metrics=absmax",
        "runs/run/scalars?names=loss",
        "runs/run/tail?metric=absmax",
        "compare?runs=run,other&metric=absmax",
        "compare?runs=run,other&what=scalars",
    ],
)
def test_what_is_newest_has_a_tag_until_more_comes(trained: Running, agent: MakeAgent, make: Make, path: str) -> None:
    first = trained.get(f"/api/v1/{path}")
    known = {"If-None-Match": first.headers["etag"]}
    made = trained.services.answers.made
    again = trained.get(f"/api/v1/{path}", **known)
    assert (again.status, again.body, trained.services.answers.made) == (304, b"", made)
    one = agent(run="run", attempt=1, layers=[make.layer(0, "l0", ("grad", "fp16"))])
    summaries = make.summaries("grad", 600, [[5000.0]])
    one.deliver(wire.Body(summaries=(summaries,), scalars=(make.scalars("loss", 600, [5000.0]),)))
    later = trained.get(f"/api/v1/{path}", **known)
    assert later.status == 200
    assert b"5000" in later.body
    assert b"5000" not in first.body


def test_who_waits_for_the_same_shares_the_answer() -> None:
    async def ask() -> None:
        flights = Flights()
        begin = asyncio.Event()
        asked = 0

        def slowly(reply: Response) -> Callable[[Callable[[], None]], Awaitable[Response]]:
            async def answer(begun: Callable[[], None]) -> Response:
                nonlocal asked
                asked += 1
                await begin.wait()
                begun()
                return reply

            return answer

        reply, other = Response(b"1"), Response(b"2")
        waiting = [asyncio.create_task(flights.ask("a", slowly(reply))) for _ in range(20)]
        alone = asyncio.create_task(flights.ask("b", slowly(other)))
        await asyncio.sleep(0)
        waiting[0].cancel()  # one that goes away takes no answer along
        await asyncio.sleep(0)
        begin.set()
        assert await asyncio.gather(*waiting[1:], alone) == [reply] * 19 + [other]
        assert asked == 2
        # What has begun is not shared: its snapshot may be older than the question.
        assert await flights.ask("a", slowly(other)) is other

        async def failing(begun: Callable[[], None]) -> Response:
            begun()
            raise LookupError

        with pytest.raises(LookupError):
            await flights.ask("c", failing)

    asyncio.run(ask())


def test_many_viewers_of_the_same_cost_one_computation(trained: Running) -> None:
    path = "/api/v1/runs/run/heatmap?metric=rms&columns=77"
    bodies: list[bytes] = []
    before = trained.services.answers.made
    viewers = [threading.Thread(target=lambda: bodies.append(trained.get(path).body)) for _ in range(12)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    assert len(set(bodies)) == 1
    assert len(bodies) == 12
    # Those that were asked at the same time may each have begun.
    assert trained.services.answers.made - before <= 3


def test_a_sealed_step_shows_what_the_ranks_gave_together(server: Running, agent: MakeAgent, make: Make) -> None:
    server.services.sealer.stop()
    for rank in range(2):
        one = agent(rank=rank, world=2, layers=[make.layer(0, "a")])
        one.deliver(wire.Body(summaries=(make.summaries("grad", 5, [[2.0 + rank]], count=100, zeros=10, sum=50.0),)))
    before = server.json("/api/v1/runs/run/summaries?step=5")
    assert (before["sealed"], sorted(before["layers"][0]["ranks"])) == (False, ["0", "1"])
    seal(server.services.store)
    after = server.json("/api/v1/runs/run/summaries?step=5")
    assert (after["sealed"], after["complete"]) == (True, True)
    (layer,) = after["layers"]
    assert layer["ranks"] == {}
    assert layer["between_ranks"]["absmax"] == [2.0, 3.0]
    merged = layer["merged"]
    assert {name: merged[name] for name in ("count", "zeros", "absmax", "absmax_rank")} == {
        "count": 200,
        "zeros": 20,
        "absmax": 3.0,
        "absmax_rank": 1,
    }
    assert merged["sum"] == pytest.approx(100.0)
    assert merged["sumsq"] == pytest.approx(25.0 * (4 + 9))
    shown = server.json("/api/v1/runs/run")
    assert shown["coverage"]["observed"] == {"grad": 1}


@pytest.mark.parametrize(
    "path",
    ["heatmap", "heatmap?metric=absmax&from=3&to=400&attempt=1", "scalars", "latest", "tail", "compare"],
)
def test_an_answer_asks_the_database_for_nothing_twice(trained: Running, path: str) -> None:
    asked: list[tuple[str, object]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_rest: object) -> None:
        # The server looks for other things meanwhile, in threads of its own.
        if threading.current_thread().name.startswith("AnyIO") and statement.startswith("SELECT"):
            asked.append((statement, repr(parameters)))

    store = trained.services.store
    assert store._reader is not None
    engine = store._reader._engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        of = "compare?runs=run,other" if path == "compare" else f"runs/run/{path}"
        trained.json(f"/api/v1/{of}")
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert asked
    # Of the open tail's frames, which are asked for where they are read.
    twice = {text for text, of in asked if asked.count((text, of)) > 1 and "wal_frame" not in text}
    assert not twice
