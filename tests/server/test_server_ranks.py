"""What several ranks report is merged, compared and shown as far as it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from sqlmodel import col, select

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.merge import merge_ranks
from floatscope_server.models import LayerRow, StepEvent
from floatscope_server.store.together import FRAMEWORK_NORM, NORM, SHARE
from tests.server.bodies import norm_of_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from floatscope_server.store import Store
    from tests.server.conftest import Make, MakeAgent, MakePen, OpenStore, Running

INF = float("inf")

pytestmark = pytest.mark.usefixtures("kept")


def placed(part: wire.Summaries, placement: str, copy_of: int = -1) -> wire.Summaries:
    return msgspec.structs.replace(part, placement=placement, copy_of=copy_of)


def histogram(step: int, counts: list[int], placement: str, copy_of: int = -1, steps: int = 1) -> wire.Histograms:
    return wire.Histograms(
        kind="grad",
        first_step=step,
        steps=steps,
        layers=np.array([0], "<u4").tobytes(),
        first=np.array([250], "<u2").tobytes(),
        length=np.array([len(counts)], "<u2").tobytes(),
        sampled=np.array([sum(counts)], "<i8").tobytes(),
        counts=np.array(counts, "<u8").tobytes(),
        placement=placement,
        copy_of=copy_of,
    )


def merged(*parts: tuple[int, wire.Summaries]) -> dict[str, Any]:
    found = merge_ranks(((rank, Frame.of(part)) for rank, part in parts), np.array([0]), 1)
    fields: dict[str, Any] = {name: plane[0, 0].item() for name, plane in found.together.fields.items()}
    return {**fields, "argmax": int(found.argmax[0, 0]), "alone": sorted(found.alone)}


def test_shards_add_and_keep_their_extremes(make: Make) -> None:
    found = merged(
        (0, placed(make.summaries("grad", 0, [2.0], count=7, zeros=1, nans=1, under=0.5, scale=4.0), "shard")),
        (1, placed(make.summaries("grad", 0, [8.0], count=3, infs=1, sum=5.0, under=0.1, scale=2.0), "shard")),
        # A shard of no elements, whose extremes are those of nothing.
        (2, placed(make.summaries("grad", 0, [0.0], count=0, absmin=INF, sumsq=0.0, under=np.nan), "shard")),
    )
    assert [found[name] for name in ("count", "zeros", "nans", "infs")] == [10, 1, 1, 1]
    assert found["absmax"] == 8.0
    assert found["argmax"] == 1
    assert found["absmin"] == 0.25
    assert found["sum"] == 5.0
    assert found["sumsq"] == 25.0 * (4 + 64)
    # Of 5 and 2 finite non-zero elements.
    assert found["under"] == pytest.approx((5 * 0.5 + 2 * 0.1) / 7)
    assert found["scale"] == 2.0, "where the largest magnitude meets the format"


def test_of_replicas_one_counts_and_another_stands_in_for_it(make: Make) -> None:
    row = make.summaries("grad", 0, [2.0], count=7)
    original, copies = (0, placed(row, "replica")), [(rank, placed(row, "replica", 0)) for rank in (1, 2)]
    assert merged(original, *copies)["count"] == 7
    assert merged(*copies)["count"] == 7, "rank 0 has reported nothing"


def test_parts_of_one_layer_with_different_placements(make: Make) -> None:
    weight, bias = make.summaries("grad", 0, [2.0], count=50), make.summaries("grad", 0, [1.0], count=5)
    found = merged(
        (0, placed(weight, "shard")),
        (0, placed(bias, "replica")),
        (1, placed(weight, "shard")),
        (1, placed(bias, "replica", 0)),
    )
    assert found["count"] == 105


def test_what_is_not_known_to_merge_stays_apart(make: Make) -> None:
    row = make.summaries("grad", 0, [2.0], count=7)
    found = merged((0, row), (1, placed(row, "local")))
    assert found["count"] == 0
    assert found["alone"] == [0, 1]


def test_the_norm_is_finished_once_by_the_last_rank(
    store: Store, make: Make, pen: MakePen, open_store: OpenStore
) -> None:
    pens = [pen(store, rank=rank, world=3, layers=[make.layer(0, "a")]) for rank in range(3)]

    def share(rank: int, step: int, *values: float) -> None:
        pens[rank].deliver(wire.Body(first_step=step, steps=len(values), scalars=(make.scalars(SHARE, step, values),)))

    share(0, 0, 4.0, 1.0, 1.0)
    share(2, 0, 9.0, np.nan)
    with store.read() as session:
        assert norm_of_all_ranks(session, 1) is None
    store.stop()
    # What waits for its last rank outlives the server.
    again = open_store()
    for one in pens:
        one.store = again
        one.hello()
    share(1, 0, 12.0, 1.0)
    with again.read() as session:
        series = norm_of_all_ranks(session, 1)
        assert series is not None
        assert (series.n, series.first_step, series.last_step, series.ordered) == (2, 0, 1, True)
        assert series.max == 5.0
        assert series.last is None, "a NaN of one rank is the norm's"


def test_the_norm_is_read_like_any_scalar(server: Running, agent: MakeAgent, make: Make) -> None:
    ranks = [agent(rank=rank, world=2, layers=[make.layer(0, "a")]) for rank in (0, 1)]
    for one in ranks:
        one.deliver(wire.Body(scalars=(make.scalars(SHARE, 0, [4.5, 8.0]), make.scalars("loss", 0, [1.0, 1.0]))))
    (series,) = server.json(f"/api/v1/runs/run/scalars?names={NORM}")
    assert series["values"] == [3.0, 4.0]
    shown = server.json("/api/v1/runs/run")
    assert shown["scalars"][NORM]["n"] == 2
    assert server.json("/api/v1/runs")[0]["last"][NORM] == 4.0
    # A user's series of that name stays the user's.
    for one in ranks:
        one.deliver(wire.Body(scalars=(make.scalars(SHARE, 2, [4.5]), make.scalars(NORM, 2, [7.0]))))
    (series,) = server.json(f"/api/v1/runs/run/scalars?names=floatscope/{NORM}")
    assert series["values"] == [3.0]


def test_a_merged_norm_is_judged(
    server: Running, agent: MakeAgent, make: Make, wait_for: Callable[[Callable[[], object], str], None]
) -> None:
    ranks = [agent(rank=rank, world=2, layers=[make.layer(0, "a")]) for rank in (0, 1)]
    shares = [1.0] * 20 + [1e6, 1e6]
    for one in ranks:
        one.deliver(wire.Body(scalars=(make.scalars(SHARE, 0, shares),)))

    def critical() -> list[dict[str, Any]]:
        return [a for a in server.json("/api/v1/runs/run/alerts") if a["severity"] == "critical"]

    wait_for(critical, "the alert")
    assert [(a["kind"], a["rank"]) for a in critical()] == [("grad_norm_spike", None)]


def events(store: Store, kind: str) -> list[StepEvent]:
    with store.read() as session:
        return list(session.exec(select(StepEvent).where(StepEvent.kind == kind).order_by(col(StepEvent.id))).all())


def test_replicas_that_differ_are_told_once(store: Store, make: Make, pen: MakePen) -> None:
    table = [make.layer(0, "a"), make.layer(1, "b")]
    pens = [pen(store, rank=rank, world=3, layers=table) for rank in range(3)]
    tops = {0: [1.0, 2.0], 1: [1.0, 2.0], 2: [1.0, 2.5]}
    for step in range(3):
        for rank in (1, 0, 2):
            top = [1.0, 2.0] if step == 0 else tops[rank]
            row = placed(make.summaries("weight", step, top), "replica", -1 if rank == 0 else 0)
            pens[rank].deliver(wire.Body(first_step=step, steps=1, summaries=(row,)))
    (event,) = events(store, "replicas_differ")
    assert event.step == 1
    assert event.detail == {"kind": "weight", "layer": "b", "layers": 1, "ranks": "0, 2"}


def test_a_norm_unlike_the_framework_s_is_told_once(store: Store, make: Make, pen: MakePen) -> None:
    pens = [pen(store, rank=rank, world=2, layers=[make.layer(0, "a")]) for rank in (0, 1)]
    theirs = make.scalars(FRAMEWORK_NORM, 0, [2.0, 3.0, 3.0, np.nan])
    pens[0].deliver(wire.Body(scalars=(make.scalars(SHARE, 0, [2.0] * 4), theirs)))
    pens[1].deliver(wire.Body(scalars=(make.scalars(SHARE, 0, [2.0] * 4),)))
    (event,) = events(store, "norm_mismatch")
    assert event.step == 1
    assert event.detail == {"ours": 2.0, "framework": 3.0}


def test_the_same_name_for_different_modules_is_kept_apart(store: Store, make: Make, pen: MakePen) -> None:
    def table(*parameters: int) -> list[wire.Layer]:
        return [msgspec.structs.replace(make.layer(i, str(i)), parameters=n) for i, n in enumerate(parameters)]

    pen(store, rank=0, world=2, layers=table(16, 8))
    one = pen(store, rank=1, world=2, layers=table(16, 9))
    one.deliver(wire.Body(first_step=0, steps=1, summaries=(make.summaries("grad", 0, [1.0, 2.0]),)))
    with store.read() as session:
        assert {row.name: row.parameters for row in session.exec(select(LayerRow))} == {"0": 16, "1": 8, "1@rank1": 9}
    (event,) = events(store, "layer_apart")
    assert event.detail == {"layer": "1", "name": "1@rank1"}
    one.hello()
    assert len(events(store, "layer_apart")) == 1


def test_a_heat_map_and_a_step_over_ranks_say_how_far_they_are(server: Running, agent: MakeAgent, make: Make) -> None:
    table = [make.layer(0, "a", ("grad", "fp32"))]
    ranks = [agent(rank=rank, world=3, layers=table) for rank in range(2)]
    for rank, one in enumerate(ranks):
        row = placed(make.summaries("grad", 0, [[2.0], [2.0]], count=10 * (rank + 1), zeros=5 * rank), "shard")
        one.deliver(wire.Body(first_step=0, steps=2, summaries=(row,)))
    heat = server.json("/api/v1/runs/run/heatmap?kind=grad&metric=zeros")
    assert heat["values"][0] == pytest.approx([5 / 30, 5 / 30])
    assert (heat["world"], heat["complete_to"], heat["missing_ranks"]) == (3, None, [2])
    one_step = server.json("/api/v1/runs/run/summaries?kind=grad&step=1")
    assert (one_step["complete"], one_step["missing_ranks"]) == (False, [2])
    (layer,) = one_step["layers"]
    assert layer["merged"]["count"] == 30
    late = agent(rank=2, world=3, layers=table)
    late.deliver(wire.Body(first_step=0, steps=1, summaries=(placed(make.summaries("grad", 0, [[9.0]]), "shard"),)))
    heat = server.json("/api/v1/runs/run/heatmap?kind=grad&metric=headroom")
    assert (heat["complete_to"], heat["missing_ranks"]) == (0, [])
    first = server.json("/api/v1/runs/run/summaries?kind=grad&step=0")
    assert first["complete"]
    assert first["layers"][0]["merged"]["absmax_rank"] == 2
    assert server.json("/api/v1/runs/run")["complete_to"] == 0


def test_histograms_add_over_ranks_however_they_are_cut(server: Running, agent: MakeAgent, make: Make) -> None:
    ranks = [agent(rank=rank, world=3, layers=[make.layer(0, "a")]) for rank in range(3)]
    bodies = [
        (histogram(0, [1, 2], "shard", steps=2), histogram(2, [7], "shard")),
        (histogram(0, [1], "shard"), histogram(1, [0, 0, 4], "shard"), histogram(2, [7], "shard")),
        (histogram(0, [9], "shard", copy_of=0, steps=2),),
    ]
    for one, parts in zip(ranks, bodies, strict=True):
        one.deliver(wire.Body(first_step=0, steps=3, histograms=parts))
    columns = server.json("/api/v1/runs/run/layers/a/histogram?kind=grad")["columns"]
    assert [(c["first_step"], c["steps"], c["counts"], c["complete"]) for c in columns] == [
        (0, 2, [2, 2, 4], True),
        (2, 1, [14], False),
    ]


def test_an_unknown_placement_costs_its_part_only(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=[make.layer(0, "a")])
    row = make.summaries("grad", 0, [1.0])
    body = wire.Body(first_step=0, steps=1, summaries=(placed(row, "scattered"), placed(row, "shard", -2), row))
    assert isinstance(one.deliver(body), wire.Ack)
    shown = server.json("/api/v1/runs/run")
    assert {gap["reason"] for gap in shown["gaps"]} == {
        "unknown placement 'scattered'",
        "copy of rank -2, which is out of range",
    }
