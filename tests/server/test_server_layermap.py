"""Each agent numbers its layers as it likes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine, event
from sqlmodel import select

from floatscope import wire
from floatscope_server.models import Gap, LayerRow, WalFrame, Writer
from floatscope_server.observation import Observation
from floatscope_server.store import Store
from floatscope_server.store.layermap import LayerMap

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore


def test_a_map_is_a_dictionary_as_arrays() -> None:
    rng = np.random.default_rng(0)
    layers, plain = LayerMap.empty(), dict[int, int]()
    for _ in range(50):
        more = dict(rng.integers(0, 300, (int(rng.integers(0, 9)), 2)).tolist())
        plain |= more
        layers = LayerMap.of(layers.named(more).stored())
        asked = rng.integers(0, 400, 50).astype(np.uint32)
        assert layers[asked].tolist() == [plain.get(number, -1) for number in asked.tolist()]
        assert layers.named(plain) is layers
        assert len(layers) == len(plain)


def test_a_map_of_the_first_release_is_read() -> None:
    layers = LayerMap.of(np.array([3, -1, 0], "<i4").tobytes())
    assert layers[np.arange(5, dtype=np.uint32)].tolist() == [3, -1, 0, -1, -1]
    assert len(LayerMap.of(b"")) == 0


def test_a_high_number_takes_no_room(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer((1 << 20) - 1, "last"), make.layer(1 << 20, "absurd")])
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0]], layers=[(1 << 20) - 1]),)))
    with store.read() as session:
        assert len(session.exec(select(Writer.layer_map)).one()) < 100
        assert len(session.exec(select(WalFrame)).all()) == 1
        assert {gap.reason: gap.count for gap in session.exec(select(Gap))} == {"layer index out of range": 1}


def test_one_agent_cannot_give_a_layer_numbers_without_end(open_store: OpenStore, pen: MakePen, make: Make) -> None:
    store = open_store(max_layers=3)
    pen(store, layers=[make.layer(i, "a") for i in range(10)])
    with store.read() as session:
        assert len(LayerMap.of(session.exec(select(Writer.layer_map)).one())) == 6
        assert session.exec(select(Gap.reason, Gap.count)).all() == [("more than 6 layer numbers from one agent", 4)]


def test_many_refused_layers_cost_one_row_and_few_statements(store: Store, pen: MakePen, make: Make) -> None:
    statements: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        one = pen(store, layers=[make.layer(i, "") for i in range(2000)])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(statements) < 50
    one.deliver(wire.Body(layers=tuple(make.layer(i, "") for i in range(3))))
    with store.read() as session:
        assert [gap.count for gap in session.exec(select(Gap))] == [2003]
        assert session.exec(select(Writer.left_out)).one() == 2003


def test_who_is_silent_is_forgotten_and_known_again(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    gone, stays = (pen(store, run=run, layers=[make.layer(9, "a")]) for run in ("gone", "stays"))
    late = pen(store, run="stays", rank=1, world=2, layers=[make.layer(7, "a")])
    clock.now += 100
    stays.ask(wire.Beat())
    store.tick()
    store.tick()
    assert list(store._ledger.runs) == ["stays"]
    assert store._ledger.runs["stays"].writers[late.writer].layer_map is None
    for one, number in ((gone, 9), (late, 7)):
        answer = one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0]], layers=[number]),)))
        assert isinstance(answer, wire.Ack)
    with store.read() as session:
        assert session.exec(select(Gap)).all() == []
        assert len(session.exec(select(WalFrame)).all()) == 2


def test_layers_are_numbered_by_the_run_not_by_the_writer(store: Store, pen: MakePen, make: Make) -> None:
    seen: list[Observation] = []
    store.observers.append(seen.append)
    first = pen(store, world=2, layers=[make.layer(0, "a"), make.layer(1, "b")])
    second = pen(store, rank=1, world=2, layers=[make.layer(5, "b"), make.layer(9, "a")])
    first.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0, 2.0]]),)))
    second.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[20.0, 10.0]], layers=[5, 9]),)))
    store.write(lambda _: None)  # the writer thread takes this up after the observers had theirs
    layers = [np.frombuffer(o.body.summaries[0].layers, "<u4").tolist() for o in seen]
    assert layers == [[0, 1], [1, 0]]
    assert {index: layer.name for index, layer in seen[1].layers.items()} == {0: "a", 1: "b"}


def test_a_layer_named_again_is_renewed_in_place(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    one.deliver(wire.Body(layers=(make.layer(0, "a", ("grad", "fp16"), order=4),)))
    with store.read() as session:
        (row,) = session.exec(select(LayerRow)).all()
    assert (row.idx, row.order_no) == (0, 4)
    assert row.operands == [{"kind": "grad", "format": "fp16", "role": "stored", "scaling": "none"}]
