"""What is sealed is what was sent, at every level, whatever was sent and whenever it came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import update
from sqlmodel import col, func, select

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import Gap, RankEvent, TileRaw, WalFrame
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.tilestore import Place, StreamKey, read_planes
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.tiles.frames import random_frame
from tests.server.tiles.sealing import EXACT, assert_sealed, deliver, judge, open_frames, states, tiles

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore

_LAYERS = 6


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _sealer(store: Store, *, monotonic: Callable[[], float] | None = None) -> Sealer:
    """One that finds every pause over when it looks again, unless it has a clock."""
    return Sealer(store, lost_after_s=60.0, slack=8, monotonic=monotonic or partial(next, count(0, 1000)))


def _seal_all(store: Store, sealer: Sealer) -> int:
    judge(store)
    done = 0
    while found := sealer.seal_due():
        done += found
    assert not sealer.failed
    return done


def _gaps(store: Store) -> dict[str, tuple[int, int, int]]:
    with store.read() as session:
        return {gap.reason: (gap.first, gap.last, gap.count) for gap in session.exec(select(Gap))}


def _events(store: Store, kind: str) -> list[RankEvent]:
    with store.read() as session:
        rows = select(RankEvent).where(RankEvent.kind == kind).order_by(col(RankEvent.id))
        return list(session.exec(rows))


def _flat(first: int, steps: int, absmax: float = 1.0, *, layers: int = _LAYERS, placement: str = "") -> Frame:
    rng = np.random.default_rng(first)
    frame = random_frame(rng, first, steps, range(layers), placement=placement)
    shape = steps, layers
    plain = {"count": 100, "zeros": 0, "nans": 0, "infs": 0, "absmax": absmax, "absmin": absmax / 4}
    plain |= {"sum": 1.0, "sumsq": 25.0 * absmax**2}
    fields = {name: np.full(shape, value, frame.fields[name].dtype) for name, value in plain.items()}
    return replace(frame, fields=fields)


def test_every_level_is_what_was_sent(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(0)
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    sealer = _sealer(store)
    frames: list[tuple[int, Frame]] = []
    step = 0
    while step < 16 * 4 * 4 * 2 + 40:
        steps = int(rng.integers(1, 12))
        frame = random_frame(rng, step, steps, range(_LAYERS))
        frames.append((0, frame))
        deliver(one, [frame])
        # Holes, and steps sent again.
        step = max(0, step + steps + int(rng.integers(-3, 4)))
        if rng.random() < 0.1:
            _seal_all(store, sealer)
    _seal_all(store, sealer)
    last = max(frame.first_step + frame.steps for _, frame in frames)
    sealed, epoch = states(store)[1]
    assert sealed == (last - 8) // 16 * 16
    assert epoch >= sealed // 16
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)
    assert open_frames(store) <= 24 + 12


def test_what_is_rounded_is_off_by_no_more(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(1)
    rounded = replace(EXACT, keep_bits=12, keep_bits_pooled=12)
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    frames = [(0, random_frame(rng, step, 10, range(_LAYERS))) for step in range(0, 330, 10)]
    for _, frame in frames:
        deliver(one, [frame], rounded)
    _seal_all(store, _sealer(store))
    assert states(store)[1][0] == 320
    # A mean above level 1 is made of rounded ones.
    assert_sealed(store, frames, layers=_LAYERS, ranks=1, geometry=rounded, rtol=4 * 2.0**-13)


@pytest.mark.parametrize("placement", ["", "data"])
def test_ranks_become_one(store: Store, pen: MakePen, make: Make, placement: str) -> None:
    rng = np.random.default_rng(2)
    pens = [pen(store, rank=r, world=3, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)]) for r in range(3)]
    frames: list[tuple[int, Frame]] = []
    for step in range(0, 160, 8):
        for rank in rng.permutation(3).tolist():
            if rng.random() < 0.9:
                frame = random_frame(rng, step, 8, range(_LAYERS), placement=placement)
                frames.append((rank, frame))
                deliver(pens[rank], [frame])
    for rank, one in enumerate(pens):
        frame = random_frame(rng, 160, 1, range(_LAYERS), placement=placement)
        frames.append((rank, frame))
        deliver(one, [frame])
    _seal_all(store, _sealer(store))
    assert states(store)[1][0] == 144
    assert_sealed(store, frames, layers=_LAYERS, ranks=3)
    assert _events(store, "outlier")
    assert _events(store, "nonfinite")


def test_a_rank_that_lags_is_waited_for_and_not_for_ever(store: Store, pen: MakePen, make: Make) -> None:
    fast, slow = (pen(store, rank=rank, world=2, layers=[make.layer(0, "l")]) for rank in (0, 1))
    frames = [(1, _flat(0, 20, layers=1, placement="data"))]
    deliver(slow, [frames[0][1]])
    for step in range(0, 1000, 100):
        frames.append((0, _flat(step, 100, layers=1, placement="data")))
        deliver(fast, [frames[-1][1]])
    sealer = _sealer(store)
    assert _seal_all(store, sealer) == 0
    frames.append((0, _flat(1000, 100, layers=1, placement="data")))
    deliver(fast, [frames[-1][1]])
    _seal_all(store, sealer)
    assert states(store)[1][0] == (1100 - 4 * 256 - 8) // 16 * 16 == 64
    assert_sealed(store, frames, layers=1, ranks=2)
    assert [event.step for event in _events(store, "missing")] == [32, 48]
    # Then it comes after all.
    frames.append((1, _flat(20, 90, 3.0, layers=1, placement="data")))
    deliver(slow, [frames[-1][1]])
    _seal_all(store, _sealer(store))
    assert states(store)[1][0] == 96
    assert_sealed(store, frames, layers=1, ranks=2)
    assert {(event.step, event.rank) for event in _events(store, "late")} == {(20, 1), (32, 1), (48, 1)}


def test_frames_that_the_rules_have_not_seen_are_not_sealed(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    deliver(one, [_flat(0, 60, layers=1)])
    sealer = _sealer(store)
    assert sealer.seal_due() == 0
    judge(store)
    deliver(one, [_flat(60, 60, layers=1)])
    assert [sealer.seal_due() for _ in range(4)] == [1, 1, 1, 0]
    assert states(store)[1][0] == 48


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_comes_late_is_patched_in_at_every_level(store: Store, pen: MakePen, make: Make, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    table = [make.layer(i, f"l{i}") for i in range(_LAYERS)]
    pens = [pen(store, rank=rank, world=ranks, layers=table) for rank in range(ranks)]
    frames: list[tuple[int, Frame]] = []

    def send(rank: int, first: int, steps: int) -> None:
        frames.append((rank, random_frame(rng, first, steps, range(_LAYERS), placement="data")))
        deliver(pens[rank], [frames[-1][1]])

    for step in range(0, 400, 10):
        # Rank 0 has a hole that it fills later.
        if not 100 <= step < 150:
            send(0, step, 10)
    if ranks == 2:
        send(1, 399, 1)
    sealer = _sealer(store)
    _seal_all(store, sealer)
    assert states(store)[1][0] == 384
    epoch = states(store)[1][1]
    for step in range(100, 150, 10):
        send(0, step, 10)
    if ranks == 2:
        send(1, 5, 70)
    _seal_all(store, sealer)
    assert states(store)[1][1] > epoch
    assert open_frames(store) == ranks + 1
    assert_sealed(store, frames, layers=_LAYERS, ranks=ranks, rtol=1e-6 if ranks > 1 else 0.0)


def test_a_replica_that_comes_late_fills_gaps_and_adds_nothing(store: Store, pen: MakePen, make: Make) -> None:
    pens = [pen(store, rank=rank, world=2, layers=[make.layer(0, "l")]) for rank in range(2)]
    for step in (0, 10, 30, 40, 50):
        deliver(pens[0], [_flat(step, 10, layers=1, placement="replica")])
    deliver(pens[1], [_flat(59, 1, layers=1, placement="replica")])
    sealer = _sealer(store)
    _seal_all(store, sealer)
    deliver(pens[1], [_flat(10, 20, layers=1, placement="replica")])
    _seal_all(store, sealer)
    assert states(store)[1][0] == 48
    with store.read() as session:
        key = StreamKey(run_id=1, stream_id=1, attempt=1, sealed=48, epoch=0)
        tile = read_planes(session, key, Place(0, 0, 0, 1), 2)[1]
    assert tile[Stat.COUNT, Agg.VALUE].tolist() == [[100.0] * 16]
    assert tile[Stat.ABSMAX, Agg.RANK].tolist() == [[0.0] * 4 + [1.0] * 10 + [0.0] * 2]


def test_what_comes_too_late_is_refused_and_declared(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    for step in range(16, 16 * 80, 64):
        deliver(one, [_flat(step, 64, layers=1)])
    sealer = _sealer(store)
    _seal_all(store, sealer)
    before = tiles(store)
    deliver(one, [_flat(0, 8, layers=1)])
    deliver(one, [_flat(8, 8, layers=1)])
    assert _seal_all(store, sealer) == 1
    assert _gaps(store) == {"more than 1024 steps late": (0, 15, 2)}
    assert tiles(store) == before


def test_a_jump_costs_no_empty_tiles(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    frames = [(0, _flat(0, 200, layers=1))]
    far = 900_000_000
    frames.append((0, _flat(far, 40, layers=1)))
    for _, frame in frames:
        deliver(one, [frame])
    _seal_all(store, _sealer(store))
    sealed = states(store)[1][0]
    assert sealed == (far + 40 - 8) // 16 * 16
    # All that lies before the jump has become full tiles of every level, and all of it is in the highest one.
    level = max(level for level in range(20) if EXACT.span(level) <= sealed)
    with store.read() as session:
        key = StreamKey(run_id=1, stream_id=1, attempt=1, sealed=sealed, epoch=0)
        for number in range(1, level + 1):
            planes = read_planes(session, key, Place(number, 0, 0, 0), 1)[0]
            steps = planes[Stat.STEPS, Agg.MAX]
            assert np.nansum(steps) == min(200, EXACT.span(number))
        assert session.exec(select(func.count()).select_from(TileRaw).where(TileRaw.idx > 12)).one() < 60


def test_a_run_may_begin_at_any_step(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    far = 10**12
    frames = [(0, _flat(step, 10, layers=1)) for step in range(far, far + 100, 10)]
    for _, frame in frames:
        deliver(one, [frame])
    assert _seal_all(store, _sealer(store)) == 5
    sealed = states(store)[1][0]
    assert sealed == (far + 100 - 8) // 16 * 16
    with store.read() as session:
        key = StreamKey(run_id=1, stream_id=1, attempt=1, sealed=sealed, epoch=0)
        tile = read_planes(session, key, Place(0, 0, 0, far // 16 + 1), far // 16 + 2)[far // 16 + 1]
    assert tile[Stat.ABSMAX, Agg.VALUE].tolist() == [[1.0] * 16]


def test_steps_far_apart_are_no_reason_to_slow_ingest(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    for step in range(0, 3 * 10**6, 10**6):
        deliver(one, [_flat(step, 1, layers=1)])
    sealer = _sealer(store)
    assert sealer.seal_due() == 0
    assert not sealer.behind()
    for step in range(3 * 10**6, 3 * 10**6 + 100):
        deliver(one, [_flat(step, 1, layers=1)])
    judge(store)
    assert sealer.seal_due() == 1
    assert sealer.behind()
    _seal_all(store, sealer)
    assert not sealer.behind()


def test_an_attempt_has_tiles_of_its_own(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    table = [make.layer(i, f"l{i}") for i in range(_LAYERS)]
    rng = np.random.default_rng(5)
    first = [(0, random_frame(rng, step, 10, range(_LAYERS))) for step in range(0, 100, 10)]
    second = [(0, random_frame(rng, step, 10, range(_LAYERS))) for step in range(50, 120, 10)]
    one = pen(store, layers=table)
    for _, frame in first:
        deliver(one, [frame])
    again = pen(store, layers=table)
    for _, frame in second:
        deliver(again, [frame])
    clock.now += 31.0
    again.ask(wire.Beat())
    _seal_all(store, _sealer(store))
    # The first one has ended.
    assert states(store) == {1: (112, states(store)[1][1]), 2: (112, states(store)[2][1])}
    assert_sealed(store, first, layers=_LAYERS, ranks=1, attempt=1)
    assert_sealed(store, second, layers=_LAYERS, ranks=1, attempt=2)


def test_an_ended_run_is_sealed_to_its_end_and_goes_on_if_it_comes_back(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    table = [make.layer(i, f"l{i}") for i in range(_LAYERS)]
    rng = np.random.default_rng(6)
    frames = [(0, random_frame(rng, step, 10, range(_LAYERS))) for step in range(0, 90, 10)]
    one = pen(store, layers=table)
    for _, frame in frames:
        deliver(one, [frame])
    clock.now += 61.0
    store.tick()
    sealer = _sealer(store)
    _seal_all(store, sealer)
    assert (states(store)[1][0], open_frames(store)) == (96, 0)
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)
    frames.append((0, random_frame(rng, 90, 40, range(_LAYERS))))
    deliver(one, [frames[-1][1]])
    _seal_all(store, sealer)
    assert states(store)[1][0] == 112
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)


def test_a_layer_that_appears_later_gets_its_rows(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(7)
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(3)])
    frames: list[tuple[int, Frame]] = []
    known = 3
    sealer = _sealer(store)
    for step in range(0, 600, 10):
        if step in (100, 200, 330):
            one.deliver(wire.Body(layers=(make.layer(known, f"l{known}"),)))
            known += 1
        frames.append((0, random_frame(rng, step, 10, range(known))))
        deliver(one, [frames[-1][1]])
        _seal_all(store, sealer)
    assert states(store)[1][0] == 592
    assert_sealed(store, frames, layers=known, ranks=1)


def test_a_damaged_frame_is_dropped_and_declared(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    frames = [(0, _flat(step, 10, layers=1)) for step in range(0, 60, 10)]
    for _, frame in frames:
        deliver(one, [frame])
    damage = update(WalFrame).where(col(WalFrame.first) == 20).values(data=b"\x93nothing")
    store.write(lambda session: session.execute(damage))
    _seal_all(store, _sealer(store))
    assert states(store)[1][0] == 48
    assert _gaps(store) == {"a stored frame was damaged": (20, 29, 1)}
    assert_sealed(store, [item for item in frames if item[1].first_step != 20], layers=1, ranks=1)
