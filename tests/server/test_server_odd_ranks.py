"""Ranks that come in other numbers, late, in pieces, or not at all."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from sqlmodel import select

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.ingest import _MOST_WAITING, _Outgoing
from floatscope_server.merge import merge_ranks
from floatscope_server.models import LayerRow, StepEvent
from floatscope_server.query import dumps
from floatscope_server.store import together
from floatscope_server.store.together import SHARE, Together
from tests.server.bodies import norm_of_all_ranks

if TYPE_CHECKING:
    from floatscope_server.store import Store
    from tests.server.conftest import Make, MakeAgent, MakePen, OpenStore, Pen, Reply, Running

INF = float("inf")
NAN = float("nan")


def placed(part: wire.Summaries, placement: str, copy_of: int = -1) -> wire.Summaries:
    return msgspec.structs.replace(part, placement=placement, copy_of=copy_of)


def share(make: Make, pen: Pen, step: int, value: float) -> None:
    pen.deliver(wire.Body(first_step=step, steps=1, scalars=(make.scalars(SHARE, step, [value]),)))


def norms(store: Store, attempt: int) -> tuple[int, float | None] | None:
    with store.read() as session:
        series = norm_of_all_ranks(session, attempt)
        return None if series is None else (series.n, series.last)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_every_attempt_has_ranks_of_its_own_number(
    store: Store, pen: MakePen, make: Make, open_store: OpenStore, before: int, after: int
) -> None:
    old = [pen(store, rank=rank, world=before, attempt=1) for rank in range(before)]
    for one in old[1:]:
        share(make, one, 0, 4.0 / before)
    new = [pen(store, rank=rank, world=after, attempt=2) for rank in range(after)]
    for one in new[1:]:
        share(make, one, 1, 16.0 / after)
    store.stop()
    again = open_store()
    for one in (*old, *new):
        one.store = again
    new[0].hello()
    share(make, new[0], 1, 16.0 / after)
    assert norms(again, 2) == (1, 4.0)
    # What the earlier attempt had not sent yet arrives while the newer one trains.
    old[0].hello()
    share(make, old[0], 0, 4.0 / before)
    assert norms(again, 1) == (1, 2.0)


def test_a_page_shows_the_ranks_of_the_present_attempt(server: Running, agent: MakeAgent, make: Make) -> None:
    for attempt, world in ((1, 3), (2, 2)):
        for rank in range(world):
            one = agent(rank=rank, world=world, attempt=attempt, layers=[make.layer(0, "a")])
            row = placed(make.summaries("grad", attempt, [1.0], zeros=50 * rank), "shard")
            one.deliver(wire.Body(first_step=attempt, steps=1, summaries=(row,)))
    shown = server.json("/api/v1/runs/run")
    assert (shown["world"], shown["missing_ranks"], shown["complete_to"]) == (2, [], 2)
    heat = server.json("/api/v1/runs/run/heatmap?kind=grad&metric=zeros")
    assert heat["values"] == [[0.5, 0.25]]
    assert server.json("/api/v1/runs/run/summaries?kind=grad&step=1")["world"] == 3


def test_a_rank_beyond_the_world_makes_it_larger(store: Store, pen: MakePen, make: Make) -> None:
    # RANK is set, WORLD_SIZE is not.
    ranks = [pen(store, rank=rank, world=1) for rank in (0, 1)]
    for one in ranks:
        share(make, one, 0, 8.0)
    assert norms(store, 1) == (1, 4.0)


def test_a_world_of_a_million_ranks_costs_no_more(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(rank=5, world=1 << 20, layers=[make.layer(0, "a")])
    one.deliver(wire.Body(summaries=(placed(make.summaries("grad", 0, [1.0]), "shard"),)))
    for path in ("summaries?kind=grad&step=0", "summaries?kind=grad&step=7", "heatmap?kind=grad&metric=rms", ""):
        reply = server.get(f"/api/v1/runs/run/{path}".rstrip("/"))
        assert reply.status == 200
        assert len(reply.json["missing_ranks"]) == 64
        assert len(reply.body) < 10_000


def names(store: Store) -> list[str]:
    with store.read() as session:
        return sorted(row.name for row in session.exec(select(LayerRow)))


def test_a_changed_model_keeps_its_names(store: Store, pen: MakePen, make: Make) -> None:
    def table(parameters: int) -> tuple[wire.Layer, ...]:
        return (msgspec.structs.replace(make.layer(0, "fc"), parameters=parameters),)

    for rank in range(2):
        pen(store, rank=rank, world=2, attempt=1, layers=table(16))
    # All ranks are there before one says what its layers are.
    new = [pen(store, rank=rank, world=2, attempt=2) for rank in range(2)]
    for one in new:
        one.deliver(wire.Body(layers=table(32)))
    assert names(store) == ["fc"]


def test_a_lazy_module_that_gets_its_parameters_is_the_same(store: Store, pen: MakePen, make: Make) -> None:
    def table(parameters: int) -> tuple[wire.Layer, ...]:
        return (msgspec.structs.replace(make.layer(0, "fc"), parameters=parameters),)

    ranks = [pen(store, rank=rank, world=2, layers=table(0)) for rank in range(2)]
    for one in ranks:
        one.deliver(wire.Body(layers=table(32)))
    assert names(store) == ["fc"]


def replicas(
    store: Store, pen: MakePen, make: Make, original: list[wire.Summaries], copies: list[wire.Summaries]
) -> list[StepEvent]:
    """The events after rank 1's copies and then rank 0's originals have come, a block each."""
    table = [make.layer(0, "a"), make.layer(1, "b")]
    ranks = [pen(store, rank=rank, world=2, layers=table) for rank in range(2)]
    for one, parts, copy_of in ((ranks[1], copies, 0), (ranks[0], original, -1)):
        for at, part in enumerate(parts):
            body = wire.Body(continued=at + 1 < len(parts), summaries=(placed(part, "replica", copy_of),))
            assert isinstance(one.deliver(body), wire.Ack)
    with store.read() as session:
        return list(session.exec(select(StepEvent).where(StepEvent.kind == "replicas_differ")).all())


def test_copies_that_come_in_pieces_are_compared_whole(store: Store, pen: MakePen, make: Make) -> None:
    first = make.summaries("weight", 0, [1.0], layers=[0])
    originals = [first, make.summaries("weight", 0, [2.0], layers=[1])]
    (event,) = replicas(store, pen, make, originals, [first, make.summaries("weight", 0, [2.5], layers=[1])])
    assert event.detail["layer"] == "b"


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [(NAN, NAN, False), (NAN, 1.0, True), (INF, INF, False), (INF, 1.0, True), (1.0, NAN, True)],
)
def test_copies_with_sums_that_are_not_finite(
    store: Store, pen: MakePen, make: Make, ours: float, theirs: float, *, differ: bool
) -> None:
    parts = [make.summaries("weight", 0, [1.0], sumsq=value) for value in (ours, theirs)]
    assert bool(replicas(store, pen, make, parts[:1], parts[1:])) is differ


def test_layers_named_twice_are_compared_too(store: Store, pen: MakePen, make: Make) -> None:
    twice = make.summaries("weight", 0, [[1.0] * 50], layers=[0] * 50)
    other = make.summaries("weight", 0, [[9.0]], layers=[1])
    assert replicas(store, pen, make, [other], [twice]) == []


def test_ranks_that_call_each_other_the_original_are_shown_once(make: Make) -> None:
    parts = [(rank, placed(make.summaries("grad", 0, [2.0], count=7), "replica", 1 - rank)) for rank in (0, 1)]
    found = merge_ranks(((rank, Frame.of(part)) for rank, part in parts), np.array([0]), 1)
    assert found.together.fields["count"][0, 0] == 7


def test_memory_of_what_waits_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(together, "_SHARES", 1 << 12)
    waiting, table = Together(), {0: make.layer(0, "a")}
    rows = [placed(make.summaries("weight", 0, [1.0]), "replica", -1 if rank == 0 else 0) for rank in (0, 1)]
    tracemalloc.start()
    try:
        for step in range(4000):
            for rank in (1, 0):
                part = msgspec.structs.replace(rows[rank], first_step=step)
                waiting.take(rank, 2, wire.Body(summaries=(part,)), table)
            for rank in range(8):
                waiting.take(rank, 9, wire.Body(scalars=(make.scalars(SHARE, step, [1.0]),)), {})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 << 20


def test_attempts_of_long_ago_wait_for_nothing(store: Store, pen: MakePen, make: Make) -> None:
    attempts = [[pen(store, rank=rank, world=2, attempt=n) for rank in (0, 1)] for n in range(1, 6)]
    for ranks in attempts:
        share(make, ranks[0], 0, 8.0)
    assert len(store._ledger.runs["run"].together) == 2
    # What they had sent is read again when the rest comes.
    for ranks in attempts:
        share(make, ranks[1], 0, 8.0)
    assert [norms(store, n) for n in range(1, 6)] == [(1, 4.0)] * 5


def test_a_focus_passes_by_what_an_earlier_attempt_left(
    server: Running, agent: MakeAgent, http: Callable[..., Reply]
) -> None:
    def focus() -> Reply:
        headers = {"Content-Type": "application/json"}
        return http(f"{server.url}/api/v1/runs/run/focus", method="POST", body=b'{"steps": 5}', headers=headers)

    left = agent(attempt=1)
    assert focus().json["agents"] == 1
    newer = agent(attempt=2)
    assert focus().json["agents"] == 1
    assert newer.hear() == wire.Focus(steps=5)
    newer.close()
    while (gone := focus()).status == 200:
        pass  # the server has not seen the end of the connection yet
    assert gone.status == 409
    left.ask(wire.Beat())
    assert left.told == [wire.Focus(steps=5)]


def test_who_does_not_listen_is_not_listened_to() -> None:
    async def converse() -> None:
        outgoing = _Outgoing()
        for _ in range(_MOST_WAITING):
            await outgoing.room()
            outgoing.put(wire.Beat())
        waiting = asyncio.create_task(outgoing.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert not outgoing.tell(wire.Focus(steps=1))
        assert await outgoing.get() == wire.Beat()
        await asyncio.wait_for(waiting, 30)

    asyncio.run(converse())


def dump(part: int, parts: int, bodies: tuple[bytes, ...], name: str = "d") -> wire.Body:
    return wire.Body(
        dump=wire.Dump(id=name, kind="k", step=0, first_step=0, last_step=0, part=part, parts=parts, bodies=bodies)
    )


def test_a_dump_that_no_answer_holds_is_read_rank_by_rank(
    server: Running, agent: MakeAgent, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tuple(wire.encode(wire.Body(summaries=(make.summaries(kind, 0, [[1.0] * 100]),))) for kind in wire.KINDS)
    for rank in range(2):
        one = agent(rank=rank, world=2, layers=[make.layer(i, str(i)) for i in range(100)])
        for part in range(2):
            assert isinstance(one.deliver(dump(part, 2, content)), wire.Ack)
    path = "/api/v1/runs/run/dumps/d"
    assert [one["complete"] for one in server.json(path)["ranks"]] == [True, True]
    assert [one["rank"] for one in server.json(f"{path}?rank=1")["ranks"]] == [1]
    assert server.get(f"{path}?rank=2").status == 404
    monkeypatch.setattr(dumps, "_MOST_BYTES", 100_000)
    whole = server.get(path)
    assert (whole.status, whole.json["error"]["code"]) == (413, "dump_too_large")
    assert len(server.json(f"{path}?rank=1")["ranks"][0]["summaries"]) == 12
    assert len(server.json(f"{path}?kind=grad")["ranks"]) == 2


def test_a_piece_of_very_many_bodies_delays_nobody(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=[make.layer(0, "a")])
    assert isinstance(one.deliver(dump(0, 1, (wire.encode(wire.Body()),) * 300_000)), wire.Ack)
    (gap,) = server.json("/api/v1/runs/run")["gaps"]
    assert gap["reason"] == "a piece of a dump with more than 1024 bodies"
