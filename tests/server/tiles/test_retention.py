"""What goes, and what stays: decisions without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from floatscope_server.models import Milestone, Retention
from floatscope_server.store.retention import Ages, Alarm, Held, SteadyClock, going, pins
from floatscope_server.tiles.geometry import Geometry

_NOW = datetime(2026, 7, 1, tzinfo=UTC)
_GEOMETRY = Geometry(columns=16, fan=4, block=4)
_GEOMETRIES = {1: _GEOMETRY, 2: _GEOMETRY}
_FOR_EVER = {"raw_keep_days": None, "raw_keep_steps": None, "level1_keep_days": None}


def _raw(count: int, *, stream: int = 1, attempt: int = 1, nbytes: int = 100) -> list[Held]:
    return [
        Held(stream=stream, attempt=attempt, level=0, idx=n, first=16 * n, end=16 * n + 16, nbytes=nbytes)
        for n in range(count)
    ]


def _level1(count: int, *, stream: int = 1, attempt: int = 1, nbytes: int = 50) -> list[Held]:
    return [
        Held(stream=stream, attempt=attempt, level=1, idx=n, first=64 * n, end=64 * n + 64, nbytes=nbytes)
        for n in range(count)
    ]


def _ages(*at: tuple[int, float], attempt: int = 1) -> Ages:
    """(step, days ago)."""
    return Ages(
        [Milestone(run_id=1, attempt=attempt, step=step, at=_NOW - timedelta(days=days)) for step, days in at], _NOW
    )


def _keeping(**values: object) -> Retention:
    return Retention.model_validate({"run_id": 0, **_FOR_EVER, **values})


def _numbers(tiles: list[Held]) -> list[tuple[int, int]]:
    return [(tile.level, tile.idx) for tile in tiles]


def test_the_last_steps_stay() -> None:
    gone = going(_keeping(raw_keep_steps=32), _raw(5), geometries=_GEOMETRIES, ages=_ages())
    assert _numbers(gone) == [(0, 0), (0, 1), (0, 2)]
    gone = going(_keeping(raw_keep_steps=33), _raw(5), geometries=_GEOMETRIES, ages=_ages())
    assert _numbers(gone) == [(0, 0), (0, 1)]


def test_a_step_far_away_makes_no_other_old() -> None:
    far = Held(stream=1, attempt=1, level=0, idx=10**12 // 16, first=10**12, end=10**12 + 16)
    gone = going(_keeping(raw_keep_steps=64), [*_raw(4), far], geometries=_GEOMETRIES, ages=_ages())
    assert _numbers(gone) == [(0, 0)]


def test_the_last_steps_are_those_of_the_last_attempts() -> None:
    held = [*_raw(3), *_raw(2, attempt=2)]
    gone = going(_keeping(raw_keep_steps=48), held, geometries=_GEOMETRIES, ages=_ages())
    assert [(tile.attempt, tile.idx) for tile in gone] == [(1, 0), (1, 1)]


def test_each_stream_has_its_last_steps() -> None:
    held = [*_raw(3), *_raw(5, stream=2)]
    gone = going(_keeping(raw_keep_steps=32), held, geometries=_GEOMETRIES, ages=_ages())
    assert sorted((tile.stream, tile.idx) for tile in gone) == [(1, 0), (2, 0), (2, 1), (2, 2)]


def test_what_came_long_ago_goes() -> None:
    ages = _ages((31, 31.0), (47, 29.9))
    gone = going(_keeping(raw_keep_days=30.0), _raw(4), geometries=_GEOMETRIES, ages=ages)
    assert _numbers(gone) == [(0, 0), (0, 1)]


def test_a_tile_stays_until_its_last_step_is_old() -> None:
    gone = going(_keeping(raw_keep_days=30.0), _raw(2), geometries=_GEOMETRIES, ages=_ages((30, 40.0)))
    assert _numbers(gone) == [(0, 0)]


def test_what_nobody_noted_is_not_old() -> None:
    gone = going(_keeping(raw_keep_days=0.0), _raw(2, attempt=3), geometries=_GEOMETRIES, ages=_ages((99, 99.0)))
    assert gone == []


def test_a_clock_that_jumped_back_makes_nothing_old() -> None:
    gone = going(_keeping(raw_keep_days=30.0), _raw(2), geometries=_GEOMETRIES, ages=_ages((31, -400.0)))
    assert gone == []


def test_an_alert_pins_its_tile_and_the_neighbours() -> None:
    pinned = pins([Alarm(1, 70, 75)])
    gone = going(_keeping(raw_keep_steps=0), _raw(8), geometries=_GEOMETRIES, ages=_ages(), pinned=pinned)
    assert _numbers(gone) == [(0, 0), (0, 1), (0, 2), (0, 6), (0, 7)]
    unpinned = _keeping(raw_keep_steps=0, pin_alerts=False)
    assert len(going(unpinned, _raw(8), geometries=_GEOMETRIES, ages=_ages(), pinned=pinned)) == 8


def test_an_alert_of_another_attempt_pins_nothing() -> None:
    gone = going(
        _keeping(raw_keep_steps=0), _raw(2), geometries=_GEOMETRIES, ages=_ages(), pinned=pins([Alarm(2, 0, 0)])
    )
    assert len(gone) == 2


def test_a_long_alert_pins_its_beginning_and_its_end() -> None:
    gone = going(
        _keeping(raw_keep_steps=0), _raw(20), geometries=_GEOMETRIES, ages=_ages(), pinned=pins([Alarm(1, 0, 319)])
    )
    assert [tile.idx for tile in gone] == list(range(2, 18))


def test_level_1_goes_after_its_own_time_and_not_before_what_is_below_it() -> None:
    held = [*_raw(8), *_level1(2)]
    ages = _ages((127, 200.0))
    gone = going(_keeping(level1_keep_days=180.0), held, geometries=_GEOMETRIES, ages=ages)
    assert gone == []
    gone = going(_keeping(raw_keep_days=30.0, level1_keep_days=180.0), held, geometries=_GEOMETRIES, ages=ages)
    assert _numbers(gone) == [*((0, n) for n in range(8)), (1, 0), (1, 1)]


def test_level_1_of_a_pinned_tile_stays() -> None:
    held = [*_raw(8), *_level1(2)]
    gone = going(
        _keeping(raw_keep_days=30.0, level1_keep_days=180.0),
        held,
        geometries=_GEOMETRIES,
        ages=_ages((127, 200.0)),
        pinned=pins([Alarm(1, 20, 20)]),
    )
    assert _numbers(gone) == [*((0, n) for n in range(3, 8)), (1, 1)]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (900, []),
        (899, [(0, 0)]),
        (700, [(0, 0), (0, 1)]),
        (100, [*((0, n) for n in range(8))]),
        (99, [*((0, n) for n in range(8)), (1, 0)]),
        (0, [*((0, n) for n in range(8)), (1, 0), (1, 1)]),
    ],
)
def test_a_run_that_takes_too_much_loses_its_oldest_steps_first(most: int, expected: list[tuple[int, int]]) -> None:
    held = [*_raw(8), *_level1(2)]
    gone = going(_keeping(max_bytes_per_run=most), held, geometries=_GEOMETRIES, ages=_ages(), nbytes=900)
    assert _numbers(gone) == expected


def test_the_limit_counts_what_goes_anyhow() -> None:
    gone = going(
        _keeping(max_bytes_per_run=500, raw_keep_steps=64), _raw(8), geometries=_GEOMETRIES, ages=_ages(), nbytes=900
    )
    assert [tile.idx for tile in gone] == [0, 1, 2, 3]


def test_by_default_a_short_and_new_run_keeps_everything() -> None:
    held = [*_raw(3000), *_level1(750)]
    assert going(Retention(run_id=0), held, geometries=_GEOMETRIES, ages=_ages((47_999, 1.0))) == []


def test_a_clock_that_jumps_ahead_is_believed_a_day_later() -> None:
    clock = SteadyClock()
    assert clock.now(1000.0, 0.0) == 1000.0
    assert clock.now(1100.0, 90.0) == 1100.0
    ahead = 1e9
    assert clock.now(ahead + 1200, 190.0) == 1200.0
    assert clock.now(ahead + 80_000, 80_000.0) == 81_010.0
    assert clock.now(ahead + 86_600, 86_600.0) == ahead + 86_600


def test_a_clock_that_was_ahead_for_an_hour_has_made_nothing_old() -> None:
    clock = SteadyClock()
    clock.now(1000.0, 0.0)
    assert clock.now(1e9, 10.0) == 1010.0
    assert clock.now(4600.0, 3600.0) == 4600.0
    assert clock.now(1e9 + 90_000, 90_000.0) == 91_000.0


def test_a_clock_that_goes_back_is_believed() -> None:
    clock = SteadyClock()
    clock.now(1e9, 0.0)
    assert clock.now(500.0, 100.0) == 500.0
