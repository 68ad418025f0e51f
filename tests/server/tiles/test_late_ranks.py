"""Each rank counts once in what is sealed, whatever it sends late, however often and beside whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import delete, update
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.models import AGAIN, Gap, Stream, TileRaw, WalFrame
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.soundness import findings
from floatscope_server.store.tilestore import Place, StreamKey, read_planes
from floatscope_server.tiles.rank_sets import RankSets
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.tiles.frames import random_frame
from tests.server.tiles.interposed import Interposed
from tests.server.tiles.sealing import EXACT, assert_sealed, deliver, judge, open_frames, states

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore, Pen

_LAYERS = 6
_RANKS = 3
_HEAD = 99
_END = 80
"""Sealed before it with 8 steps of slack: whole tiles."""

Cell = dict[str, Any]


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _sealer(store: Store | Interposed) -> Sealer:
    return Sealer(store, lost_after_s=60.0, slack=8, monotonic=partial(next, count(0, 1000)))


def _seal_all(store: Store, sealer: Sealer) -> None:
    judge(store)
    while sealer.seal_due():
        pass
    assert not sealer.failed


@pytest.fixture
def pens(store: Store, pen: MakePen, make: Make) -> list[Pen]:
    table = [make.layer(i, f"l{i}") for i in range(_LAYERS)]
    return [pen(store, rank=rank, world=_RANKS, layers=table) for rank in range(_RANKS)]


@dataclass
class Model:
    """What a tile should hold: of each cell the rows that count by rank, and the frames that wait."""

    counted: dict[tuple[int, int], dict[int, Cell]] = field(default_factory=dict)
    waiting: list[tuple[int, Frame]] = field(default_factory=list)

    def round(self, came: Iterable[tuple[int, Frame]]) -> None:
        """Late frames of single ranks, in the order of their blocks, all brought in at once."""
        parts = [*self.waiting, *came]
        self.waiting = []
        for tile in range(_END // EXACT.columns):
            first, last = tile * EXACT.columns, (tile + 1) * EXACT.columns - 1
            inside = [
                (rank, frame.between(first, last))
                for rank, frame in parts
                if frame.first_step <= last and frame.first_step + frame.steps > first
            ]
            sent: dict[tuple[int, int], dict[int, Cell]] = {}
            for rank, frame in inside:
                for at, cell in _cells(frame):
                    if cell["count"]:
                        sent.setdefault(at, {})[rank] = cell
                    else:
                        sent.get(at, {}).pop(rank, None)
            waits: set[tuple[int, int]] = set()
            for at, of_ranks in sent.items():
                if not of_ranks:
                    continue
                held = self.counted.setdefault(at, {})
                if held.keys() <= of_ranks.keys():
                    self.counted[at] = of_ranks
                    continue
                waits |= {(rank, at[0]) for rank in of_ranks if rank in held}
                self.counted[at] = {**of_ranks, **held}
            behind: set[int] = set()
            for rank, frame in inside:
                steps = range(frame.first_step, frame.first_step + frame.steps)
                if rank in behind or any((rank, step) in waits for step in steps):
                    # And all that this rank has sent since.
                    behind.add(rank)
                    self.waiting.append((rank, frame))

    def frames(self) -> list[tuple[int, Frame]]:
        """One for each cell."""
        return [
            (
                rank,
                Frame(
                    first_step=step,
                    steps=1,
                    layers=np.array([layer]),
                    fields={name: np.array([[value]], FIELD_DTYPES[name]) for name, value in cell.items()},
                    placement="data",
                ),
            )
            for (step, layer), cells in self.counted.items()
            for rank, cell in cells.items()
        ]


def _cells(frame: Frame) -> Iterable[tuple[tuple[int, int], Cell]]:
    for row, place in np.ndindex(frame.steps, len(frame.layers)):
        cell = {name: values[row, place].item() for name, values in frame.fields.items()}
        yield (frame.first_step + row, int(frame.layers[place])), cell


def _frame(rng: np.random.Generator, first: int, steps: int, layers: Sequence[int]) -> Frame:
    """With all fields: of how many elements a share is, a tile does not tell. And zeros have no scale: of ranks that
    have nothing else any has the largest magnitude."""
    while True:
        frame = random_frame(rng, first, steps, layers, placement="data")
        if {"scale", "under"} <= frame.fields.keys():
            scale = np.where(frame.fields["absmax"] == 0, np.float32(np.nan), frame.fields["scale"])
            return replace(frame, fields={**frame.fields, "scale": scale})


@pytest.mark.parametrize("seed", range(4))
def test_each_rank_counts_once_however_often_it_comes_late(store: Store, pens: list[Pen], seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Model()

    def send(rank: int, first: int, steps: int) -> tuple[int, Frame]:
        layers = np.sort(rng.choice(_LAYERS, rng.integers(1, _LAYERS + 1), replace=False)).tolist()
        frame = _frame(rng, first, steps, layers)
        deliver(pens[rank], [frame])
        return rank, frame

    for first in range(0, _END, 10):
        for rank in range(_RANKS):
            if rng.random() < 0.6:
                model.round([send(rank, first, 10)])
    model.waiting.clear()
    for one in pens:
        deliver(one, [random_frame(rng, _HEAD, 1, range(_LAYERS), placement="data")])
    sealer = _sealer(store)
    _seal_all(store, sealer)
    assert states(store)[1][0] == _END
    assert_sealed(store, model.frames(), layers=_LAYERS, ranks=_RANKS)
    for number in range(5):
        steps = [(int(rng.integers(0, _END - 30)), int(rng.integers(1, 30))) for _ in range(4)]
        if number == 3:
            # A rollback: all ranks train these steps once more.
            came = [(rank, _frame(rng, 20, 25, range(_LAYERS))) for rank in range(_RANKS)]
            for rank, frame in came:
                deliver(pens[rank], [frame])
        else:
            came = [send(int(rng.integers(_RANKS)), *some) for some in steps]
        model.round(sorted(came, key=lambda item: item[0]))
        _seal_all(store, sealer)
        assert_sealed(store, model.frames(), layers=_LAYERS, ranks=_RANKS, rtol=1e-5)
    assert open_frames(store) == _RANKS + len(model.waiting)
    with closing(store.database.reader()) as reader:
        assert list(findings(reader)) == []


def _plain(first: int, steps: int, absmax: float = 1.0, placement: str = "data") -> Frame:
    frame = random_frame(np.random.default_rng(first), first, steps, [0], placement=placement)
    values = {"count": 100, "zeros": 0, "nans": 0, "infs": 0, "absmax": absmax, "absmin": absmax / 4}
    values |= {"sum": 1.0, "sumsq": 25.0 * absmax**2}
    shape = steps, 1
    return replace(frame, fields={name: np.full(shape, value, FIELD_DTYPES[name]) for name, value in values.items()})


def _elements(store: Store, steps: slice) -> list[float]:
    """Count of layer 0."""
    with store.read() as session:
        key = StreamKey(run_id=1, stream_id=1, attempt=1, sealed=_END, epoch=0)
        found = read_planes(session, key, Place(0, 0, 0, 0), _END // EXACT.columns)
    line = np.concatenate([found[idx][Stat.COUNT, Agg.VALUE][0] for idx in sorted(found)])
    return [float(value) for value in line[steps]]


def _sealed_once(store: Store, pens: list[Pen]) -> Sealer:
    for one in pens:
        deliver(one, [_plain(0, _END)])
        deliver(one, [_plain(_HEAD, 1)])
    sealer = _sealer(store)
    _seal_all(store, sealer)
    assert states(store)[1][0] == _END
    return sealer


def _gaps(store: Store) -> list[tuple[int, int, int, str]]:
    with store.read() as session:
        rows = session.exec(select(Gap).order_by(col(Gap.rank), col(Gap.first)))
        return [(gap.rank, gap.first, gap.last, gap.reason) for gap in rows]


def test_a_rank_that_came_again_alone_is_declared_when_the_run_is_over(
    store: Store, pens: list[Pen], clock: Clock
) -> None:
    sealer = _sealed_once(store, pens)
    # Over the end of a tile: each of both parts waits on its own.
    deliver(pens[1], [_plain(10, 10, 8.0)])
    _seal_all(store, sealer)
    assert _elements(store, slice(0, 32)) == [300.0] * 32
    assert open_frames(store) == _RANKS + 2
    with store.read() as session:
        waiting = session.exec(select(WalFrame).where(col(WalFrame.first) < _END).order_by(col(WalFrame.first)))
        assert [(row.first, row.n, row.flags & AGAIN) for row in waiting] == [(10, 6, AGAIN), (16, 4, AGAIN)]
    assert _gaps(store) == []
    clock.now += 200.0
    store.tick()
    _seal_all(store, sealer)
    assert open_frames(store) == 0
    reason = "came again after it was sealed, and not from all ranks"
    assert _gaps(store) == [(1, 10, 15, reason), (1, 16, 19, reason)]


@pytest.mark.engines("sqlite")
def test_what_waits_for_steps_long_past_is_refused(store: Store, pens: list[Pen]) -> None:
    sealer = _sealed_once(store, pens)
    deliver(pens[1], [_plain(10, 3)])
    _seal_all(store, sealer)
    for one in pens:
        for first in range(_HEAD + 1, 1300, 64):
            deliver(one, [_plain(first, 64)])
    _seal_all(store, sealer)
    assert _gaps(store) == [(1, 10, 12, "more than 1024 steps late")]


@pytest.mark.engines("sqlite")
def test_a_copy_that_counts_is_not_added_to_by_its_original(store: Store, pen: MakePen, make: Make) -> None:
    """Two shards, each with a copy: rank 2 has that of rank 0, rank 3 that of rank 1."""
    pens = [pen(store, rank=rank, world=4, layers=[make.layer(0, "l")]) for rank in range(4)]

    def send(rank: int, frame: Frame) -> None:
        part = make.summaries("grad", frame.first_step, frame.fields["absmax"])
        part = msgspec.structs.replace(part, placement="shard", copy_of=rank - 2 if rank > 1 else -1)
        pens[rank].deliver(wire.Body(summaries=(part,)))

    for rank in (1, 2, 3):
        for first, steps in ((0, 60), (60, 20)):
            send(rank, _plain(first, steps))
    _cut_small(store)
    for rank in range(4):
        send(rank, _plain(_HEAD, 1))
    sealer = _sealer(store)
    _seal_all(store, sealer)
    assert states(store)[1][0] == _END
    assert _elements(store, slice(0, _END)) == [200.0] * _END
    send(0, _plain(20, 30))
    _seal_all(store, sealer)
    assert _elements(store, slice(0, _END)) == [200.0] * _END


def _cut_small(store: Store) -> None:
    names = ("columns", "fan", "block", "keep_bits", "keep_bits_pooled")
    values = {name: getattr(EXACT, name) for name in names}
    store.write(lambda session: session.execute(update(Stream).values(**values)))


@pytest.mark.engines("sqlite")
def test_without_knowing_whose_rows_there_are_gaps_are_filled_and_nothing_is_added(
    store: Store, pens: list[Pen]
) -> None:
    for one in pens:
        deliver(one, [_plain(0, 20)])
        deliver(one, [_plain(30, 50)])
        deliver(one, [_plain(_HEAD, 1)])
    sealer = _sealer(store)
    _seal_all(store, sealer)

    def forget(session: Session) -> None:
        session.execute(delete(TileRaw).where(col(TileRaw.stat) == int(Stat.RANKS)))

    store.write(forget)
    deliver(pens[0], [_plain(17, 6)])
    _seal_all(store, sealer)
    nans = np.isnan(_elements(store, slice(16, 32)))
    assert nans.tolist() == [False] * 7 + [True] * 7 + [False] * 2
    assert _elements(store, slice(16, 23)) == [300.0] * 4 + [100.0] * 3
    reason = "came late for steps of which it is not known any more what ranks are in them"
    assert _gaps(store) == [(0, 17, 22, reason)]


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("job", [1, 2, 3, 4])
def test_a_patch_of_many_layers_is_cut_and_may_end_anywhere(store: Store, pen: MakePen, make: Make, job: int) -> None:
    layers = 60
    rng = np.random.default_rng(0)
    pens = [pen(store, rank=rank, world=2, layers=[make.layer(i, f"l{i}") for i in range(layers)]) for rank in range(2)]
    frames = [(0, random_frame(rng, 0, 60, range(layers), placement="data"))]
    frames += [(rank, random_frame(rng, _HEAD, 1, range(layers), placement="data")) for rank in range(2)]
    for rank, frame in frames:
        deliver(pens[rank], [frame])
    sealer = _sealer(store)
    _seal_all(store, sealer)
    frames.append((1, random_frame(rng, 16, 16, range(layers), placement="data")))
    deliver(pens[1], [frames[-1][1]])
    judge(store)

    def killed() -> None:
        raise OSError("killed")

    broken = Interposed(store, job, killed)
    first = _sealer(broken)
    while first.seal_due():
        pass
    assert (first.failed, broken.jobs) == (1, job)
    _seal_all(store, sealer)
    assert_sealed(store, frames, layers=layers, ranks=2, rtol=1e-5)


def test_sets_of_ranks_are_what_was_sent() -> None:
    rng = np.random.default_rng(0)
    ranks = np.sort(rng.choice(5000, 21, replace=False)).tolist()
    frames = [(rank, random_frame(rng, 3, 9, [0, 2, 5], placement="data")) for rank in [*ranks, *ranks[:9]]]
    sets = RankSets.of(frames, first=5, columns=8, layers=4, first_layer=2)
    expected = np.zeros((len(ranks), 4, 8), np.bool_)
    for rank, frame in frames:
        expected[ranks.index(rank)][[0, 3], :7] = frame.observed[2:, 1:].T
    again = RankSets.decoded(sets.encoded())
    for found in (sets, again, sets.united(RankSets.none(1, 8)), RankSets.none(6, 8).united(sets)):
        assert found.has(4999 if 4999 not in ranks else 0).sum() == 0
        for rank, cells in zip(ranks, expected, strict=True):
            assert (found.has(rank)[:4] == cells).all()
    some = RankSets.of(frames[9:14], first=5, columns=8, layers=4, first_layer=2)
    assert some.within(sets).all()
    assert (sets.within(some) == ~np.delete(expected, slice(9, 14), axis=0).any(axis=0)).all()
    assert (
        RankSets.beside([some, sets]).has(ranks[20]) == np.concatenate((expected[20] & False, expected[20]), 1)
    ).all()
    assert len(RankSets.none(64, 256).encoded()) < 200
