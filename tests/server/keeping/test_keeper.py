"""What is old goes in the background, and what it leaves can be read."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import text
from sqlmodel import Session, col, delete, select

from floatscope import wire
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.database import utc
from floatscope_server.models import HistTile, Milestone, Retention, ScalarChunk, ScalarSeries, Stream, Tile, TileRaw
from floatscope_server.query.answers import window_tag
from floatscope_server.query.line import run_named
from floatscope_server.store import Store
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.series_thread import SeriesThread
from floatscope_server.tiles.codec import is_missing
from tests.server.bodies import histogram
from tests.server.keeping import kept
from tests.server.keeping.kept import TOP
from tests.server.tiles.frames import random_frame
from tests.server.tiles.sealing import deliver

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore

_DAY = 86_400.0


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def test_what_is_dropped_is_answered_by_the_finest_level_that_is_left(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)
    before = kept.window(store, 0, 63, cell=4)
    assert kept.raw_tiles(store) == list(range(24))
    kept.retain(store, raw_keep_steps=100)
    kept.keep(store)
    assert kept.raw_tiles(store) == list(range(17, 24))
    assert (kept.state(store).raw_from, kept.state(store).level1_from) == (17 * 16, 0)
    after = kept.window(store, 0, 63, cell=4)
    np.testing.assert_array_equal(after.planes[TOP], before.planes[TOP])
    fine = kept.window(store, 0, 63)
    assert (fine.cell, fine.resolution, fine.damaged) == (1, 4, 0)
    np.testing.assert_array_equal(fine.planes[TOP], np.repeat(before.planes[TOP], 4, axis=1))
    assert kept.window(store, 17 * 16, 17 * 16 + 63).resolution == 1


def test_all_streams_of_all_runs_and_a_row_of_its_own_wins(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make, steps=100, kinds="grad act")
    kept.fill(store, pen, make, steps=100, run="spared")
    kept.retain(store, raw_keep_steps=16)
    kept.retain(store, run_id=2)
    kept.keep(store)
    with store.read() as session:
        left = session.exec(select(TileRaw.run_id, TileRaw.stream_id, TileRaw.idx).distinct()).all()
    by_stream: dict[tuple[int, int], list[int]] = {}
    for run_id, stream, idx in left:
        by_stream.setdefault((run_id, stream), []).append(idx)
    assert sorted(map(len, by_stream.values())) == [1, 1, 5]


def test_tiles_around_an_alert_stay(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)
    kept.alarm(store, 100)
    kept.alarm(store, 300, state="pending")
    kept.retain(store, raw_keep_steps=16)
    kept.keep(store)
    assert kept.raw_tiles(store) == [5, 6, 7, 23]


def test_a_day_after_the_last_it_is_old(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    one = kept.fill(store, pen, make, steps=200)
    kept.retain(store, raw_keep_days=30.0)
    keeper = Keeper(store, monotonic=clock)
    kept.keep(store, keeper)
    clock.now += 20 * _DAY
    rng = np.random.default_rng(2)
    deliver(one, [random_frame(rng, 200, 200, range(kept.LAYERS))])
    kept.seal(store)
    kept.keep(store, keeper)
    assert len(kept.raw_tiles(store)) == 24
    clock.now += 10 * _DAY + 1
    kept.keep(store, keeper)
    assert kept.raw_tiles(store) == list(range(12, 24))
    clock.now += 20 * _DAY
    kept.keep(store, keeper)
    assert kept.raw_tiles(store) == []
    assert kept.pooled_tiles(store, 1), "level 1 stays"


def test_the_log_of_deliveries_loses_what_ended_long_ago(store: Store, clock: Clock) -> None:
    def add(session: Session) -> None:
        session.add(Endpoint(id=1, url="https://example.com/", created_at=store.now()))
        session.flush()
        for number, (state, days) in enumerate(
            [("ok", 91), ("ok", 89), ("dead", 91), ("failed", 91), ("pending", 91), ("leased", 91)]
        ):
            at = store.now() - timedelta(days=days)
            session.add(
                Delivery(
                    endpoint_id=1,
                    event_id=f"{number}-{state}-{days}",
                    type="alert.firing",
                    body="{}",
                    state=state,
                    next_at=at,
                    created_at=at,
                    done_at=at if state in ("ok", "dead") else None,
                )
            )

    store.write(add)
    kept.keep(store)
    with store.read() as session:
        left = session.exec(select(Delivery.event_id).order_by(col(Delivery.id))).all()
    assert left == ["1-ok-89", "3-failed-91", "4-pending-91", "5-leased-91"]


def test_a_clock_that_goes_back_drops_nothing(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make, steps=200)
    kept.retain(store, raw_keep_days=30.0)
    kept.keep(store)
    clock.now -= 400 * _DAY
    kept.keep(store)
    assert len(kept.raw_tiles(store)) == 12


def test_level_1_goes_and_parts_that_nothing_is_above_stay(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    kept.fill(store, pen, make)
    kept.retain(store, raw_keep_days=1.0, level1_keep_days=2.0)
    kept.keep(store)
    clock.now += 3 * _DAY
    before = kept.window(store, 0, 399, cell=16)
    kept.keep(store)
    assert kept.raw_tiles(store) == []
    assert kept.pooled_tiles(store, 1) == []
    assert kept.state(store).level1_from == 384
    after = kept.window(store, 0, 399, cell=16)
    np.testing.assert_array_equal(after.planes[TOP], before.planes[TOP])
    assert kept.window(store, 0, 63).resolution == 16


def test_a_run_that_takes_too_much_loses_its_oldest_steps(store: Store, pen: MakePen, make: Make) -> None:
    kept.fill(store, pen, make)
    with store.read() as session:
        raw = session.exec(select(TileRaw.idx, TileRaw.data)).all()
        total = sum(len(data) for _, data in raw) + sum(len(data) for data in session.exec(select(Tile.data)))
    least = sum(len(data) for idx, data in raw if idx < 10)
    kept.retain(store, max_bytes_per_run=total - least)
    kept.keep(store)
    assert kept.raw_tiles(store) == list(range(10, 24))


def test_histograms_and_readings_of_cards_go(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make, steps=100)
    now_ms = round(clock.now * 1e3)

    def add(session: Session) -> None:
        stream = Stream(run_id=1, name="hist/grad")
        session.add(stream)
        series = [
            ScalarSeries(run_id=1, attempt=1, rank=0, stream=name, name="power", n=1, first_step=0, last_step=0)
            for name in ("gpu", "scalar")
        ]
        session.add_all(series)
        session.add(Milestone(run_id=1, attempt=1, step=49, at=utc(clock.now) - timedelta(days=20)))
        session.flush()
        for level, last in ((0, 41), (0, 49), (0, 50), (1, 48)):
            row = HistTile(
                run_id=1, stream_id=stream.id or 0, attempt=1, level=level, block=0, first_step=last, last_step=last,
                n=1, data=b"",
            )  # fmt: skip
            session.add(row)
        for one in series:
            for level, days in ((0, 8), (0, 6), (1, 31), (1, 6), (2, 400), (2, 6)):
                at = now_ms - round(days * _DAY * 1e3)
                session.add(ScalarChunk(series_id=one.id or 0, level=level, first_step=at, last_step=at, n=1, data=b""))

    store.write(add)
    kept.keep(store)
    with store.read() as session:
        assert sorted(session.exec(select(HistTile.level, HistTile.last_step))) == [(0, 50), (1, 48)]
        left = session.exec(
            select(ScalarSeries.stream, ScalarChunk.level, ScalarChunk.last_step)
            .join(ScalarSeries, col(ScalarSeries.id) == col(ScalarChunk.series_id))
            .order_by(col(ScalarSeries.stream), col(ScalarChunk.level), col(ScalarChunk.last_step))
        ).all()
    days = [(stream, level, round((now_ms - at) / _DAY / 1e3)) for stream, level, at in left]
    assert [row for row in days if row[0] == "gpu"] == [("gpu", 0, 6), ("gpu", 1, 6), ("gpu", 2, 400), ("gpu", 2, 6)]
    assert len([row for row in days if row[0] == "scalar"]) == 6


def test_an_answer_that_was_made_of_histograms_is_another_one_when_some_go(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    one = kept.fill(store, pen, make, steps=100)
    for step in range(0, 100, 5):
        one.deliver(wire.Body(histograms=(histogram(step, 100, [1, 2]),)))
    SeriesThread(store).seal(everything=True)
    before = _tag(store)
    assert _tag(store) == before
    old = Milestone(run_id=1, attempt=1, step=99, at=utc(clock.now) - timedelta(days=200))
    store.write(lambda session: session.add(old))
    assert kept.rows_of(store, "hist_tile")["hist_tile"]
    kept.retain(store, hist_keep_days=14, hist_level1_keep_days=180)
    kept.keep(store)
    assert not kept.rows_of(store, "hist_tile")["hist_tile"]
    assert _tag(store) != before


def _tag(store: Store) -> str:
    """Of a heat map that histograms answer."""
    with store.read() as session:
        tag, _ = window_tag(
            session,
            run_named(session, "run"),
            store=store.epoch,
            question="?",
            kind="grad",
            attempt=None,
            first=0,
            last=49,
            histograms=True,
        )
    return tag


def test_what_comes_late_for_dropped_steps_is_refused_and_said_so(store: Store, pen: MakePen, make: Make) -> None:
    one = kept.fill(store, pen, make)
    kept.alarm(store, 20)
    kept.retain(store, raw_keep_steps=16)
    kept.keep(store)
    before = kept.window(store, 64, 127, cell=4)
    rng = np.random.default_rng(3)
    deliver(one, [random_frame(rng, 70, 2, range(kept.LAYERS))])
    deliver(one, [random_frame(rng, 20, 2, range(kept.LAYERS))])
    kept.seal(store)
    assert [(gap.first, gap.last, gap.reason) for gap in kept.gaps(store)] == [
        (70, 71, "late for steps that are not kept one by one any more")
    ]
    np.testing.assert_array_equal(kept.window(store, 64, 127, cell=4).planes[TOP], before.planes[TOP])
    assert kept.raw_tiles(store) == [0, 1, 2, 23], "a pinned tile can be patched"


def test_it_goes_in_pieces_and_the_writer_is_free_between_them(store: Store, pen: MakePen, make: Make) -> None:
    one = kept.fill(store, pen, make, steps=1600)
    kept.retain(store, raw_keep_steps=0)
    keeper = Keeper(store)
    rows = [kept.rows_of(store, "tile_raw")["tile_raw"]]
    while keeper.step():
        rows.append(kept.rows_of(store, "tile_raw")["tile_raw"])
        answer = one.deliver(wire.Body())
        assert isinstance(answer, wire.Ack)
    assert rows[-1] == 0
    most = max(a - b for a, b in pairwise(rows))
    assert 0 < most <= 400


def test_pages_are_given_back(store: Store, pen: MakePen, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.settings.postgres:
        assert store.shrink(10) == 0
        return
    monkeypatch.setattr("floatscope_server.store.keeper._SPARE_PAGES", 8)
    monkeypatch.setattr("floatscope_server.store.keeper._PAGES", 16)
    kept.fill(store, pen, make, steps=1600)
    kept.retain(store, raw_keep_steps=0)
    assert kept.keep(store) > 5
    with store.read() as session:
        assert session.execute(text("PRAGMA freelist_count")).scalar_one() <= 8


def test_a_failure_is_tried_again(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make)
    kept.retain(store, raw_keep_steps=16)
    keeper = Keeper(store, monotonic=clock)
    store.write(lambda session: session.execute(text("ALTER TABLE retention RENAME TO elsewhere")))
    kept.keep(store, keeper)
    assert len(kept.raw_tiles(store)) == 24
    store.write(lambda session: session.execute(text("ALTER TABLE elsewhere RENAME TO retention")))
    kept.keep(store, keeper)
    assert len(kept.raw_tiles(store)) == 24
    clock.now += 61.0
    kept.keep(store, keeper)
    assert kept.raw_tiles(store) == [23]


def test_without_settings_the_built_in_ones_hold(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    kept.fill(store, pen, make)
    kept.keep(store)
    clock.now += 31 * _DAY
    store.write(lambda session: session.execute(delete(Retention)))
    kept.keep(store)
    assert kept.raw_tiles(store) == []
    assert not is_missing(kept.window(store, 0, 383, cell=4).planes[TOP]).all()
