"""Level 0 and the first pooling of it, against what the frames say cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server.frame import Frame
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.planes import Planes, derived, pooled_planes, raw_planes
from floatscope_server.tiles.statistics import POOLED, RAW, Agg, Stat
from tests.server.tiles.frames import Cells, oracle_raw, random_frame

_FIRST, _COLUMNS, _LAYERS = 1000, 16, 6


def _frames(rng: np.random.Generator, placements: Mapping[int, str]) -> list[tuple[int, Frame]]:
    """Some ranks send all layers, some a part; with holes, steps sent twice, and frames that reach beyond."""
    frames = []
    for rank, placement in placements.items():
        own = sorted(rng.choice(_LAYERS + 2, rng.integers(1, _LAYERS + 3), replace=False).tolist())
        for _ in range(int(rng.integers(0, 6))):
            start, steps = int(rng.integers(_FIRST - 4, _FIRST + _COLUMNS + 3)), int(rng.integers(1, 10))
            frames.append((rank, random_frame(rng, start, steps, own, placement=placement)))
    order = rng.permutation(len(frames))
    return [frames[at] for at in order]


def _assert_plane(plane: np.ndarray, cells: Mapping[tuple[int, int], float], first_layer: int, what: object) -> None:
    gone = is_missing(plane)
    for row in range(plane.shape[0]):
        for column in range(plane.shape[1]):
            expected = cells.get((first_layer + row, _FIRST + column))
            assert gone[row, column] == (expected is None), what
            if expected is not None:
                assert float(plane[row, column]) == pytest.approx(expected, rel=1e-6, abs=1e-37), what


def _checked(raw: Planes, cells: Cells, first_layer: int) -> None:
    values = {stat: plane for (stat, agg), plane in raw.items() if agg == Agg.VALUE}
    if values:
        values |= derived(values)
    for stat in (*RAW, Stat.ZERO_SHARE, Stat.NONFINITE, Stat.LOG2_AMAX):
        value = values.get(stat, np.full((_LAYERS, _COLUMNS), np.nan, np.float32))
        known = cells.get((stat, Agg.VALUE), {})
        if stat in values:
            _assert_plane(value, known, first_layer, stat)
        for agg in (Agg.MAX, Agg.MIN) if stat in POOLED and stat in values else ():
            _assert_plane(raw.get((stat, agg), value), cells.get((stat, agg), {}), first_layer, (stat, agg))
    for stat, agg in cells:
        inside = {
            at
            for at in cells[stat, agg]
            if first_layer <= at[0] < first_layer + _LAYERS and _FIRST <= at[1] < _FIRST + _COLUMNS
        }
        assert stat in values or (stat, agg) in raw or not inside


_PLACEMENTS = st.dictionaries(st.integers(0, 300), st.sampled_from(["", "local", "shard", "data"]), max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), _PLACEMENTS, st.sampled_from([0, 2]))
def test_level_0_is_what_the_frames_say(seed: int, placements: dict[int, str], first_layer: int) -> None:
    frames = _frames(np.random.default_rng(seed), placements)
    raw = raw_planes(
        frames,
        first=_FIRST,
        columns=_COLUMNS,
        layers=_LAYERS,
        ranks=len(placements),
        first_layer=first_layer,
    )
    cells = oracle_raw(frames, several=len(placements) > 1)
    _checked(raw, cells, first_layer)
    if len(placements) > 1 and raw:
        _assert_plane(raw[Stat.ABSMAX, Agg.RANK], cells.get((Stat.ABSMAX, Agg.RANK), {}), first_layer, "rank")
    else:
        assert (Stat.ABSMAX, Agg.RANK) not in raw


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), _PLACEMENTS)
def test_one_step_a_column(seed: int, placements: dict[int, str]) -> None:
    frames = _frames(np.random.default_rng(seed), placements)
    raw = raw_planes(frames, first=_FIRST, columns=_COLUMNS, layers=_LAYERS, ranks=len(placements))
    cells = oracle_raw(frames, several=False)
    pooled = pooled_planes(raw)
    assert bool(pooled) == bool(raw)
    for stat in POOLED:
        top = pooled.get((stat, Agg.MAX))
        if stat == Stat.STEPS or top is None:
            continue
        known = {agg: cells.get((stat, agg), {}) for agg in (Agg.VALUE, Agg.MAX, Agg.MIN)}
        if stat == Stat.ABSMIN:
            known = {agg: {at: x for at, x in of.items() if x != math.inf} for agg, of in known.items()}
        _assert_plane(top, known[Agg.MAX], 0, (stat, "max"))
        _assert_plane(pooled[stat, Agg.MIN], known[Agg.MIN], 0, (stat, "min"))
        finite = {at: x for at, x in known[Agg.VALUE].items() if math.isfinite(x)}
        _assert_plane(pooled[stat, Agg.MEAN], finite, 0, (stat, "mean"))
        weights = pooled.get((stat, Agg.WEIGHT), pooled[Stat.STEPS, Agg.MAX])
        _assert_plane(weights, dict.fromkeys(finite, 1.0), 0, (stat, "weight"))
    if pooled:
        _assert_plane(
            pooled[Stat.STEPS, Agg.MAX], dict.fromkeys(cells.get((Stat.COUNT, Agg.VALUE), {}), 1.0), 0, "steps"
        )


def test_a_count_that_float32_cannot_hold_is_float64() -> None:
    frame = random_frame(np.random.default_rng(0), 0, 4, [0])
    frame.fields["count"] = np.array([[1 << 24], [(1 << 24) + 1], [(1 << 53) - 1], [0]], "<i8")
    raw = raw_planes([(0, frame)], first=0, columns=4, layers=1, ranks=1)
    count = raw[Stat.COUNT, Agg.VALUE]
    assert count.dtype == np.float64
    assert count[0, :3].tolist() == [1 << 24, (1 << 24) + 1, (1 << 53) - 1]
    assert is_missing(count).tolist() == [[False, False, False, True]]


def test_nothing_is_nothing() -> None:
    assert raw_planes([], first=0, columns=8, layers=3, ranks=1) == {}
    beyond = random_frame(np.random.default_rng(0), 8, 4, [0])
    assert raw_planes([(0, beyond)], first=0, columns=8, layers=3, ranks=1) == {}
    assert pooled_planes({}) == {}
