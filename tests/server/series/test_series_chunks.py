"""Chunks hold what they were given, and their levels what NumPy makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server.store.pyramid import Piece, Shape, grow
from floatscope_server.store.shapes import SCALARS
from floatscope_server.tiles.codec import TileError
from floatscope_server.tiles.columns import decode_columns, encode_columns
from floatscope_server.tiles.points import Points, Records

_VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)
_SMALL = Shape(size=(16, 8), fewest=6, unit=1, joined=SCALARS.joined, decode=SCALARS.decode)


def _points(pairs: Sequence[tuple[int, float]]) -> Points:
    return Points.joined([Points(np.array([s], np.int64), np.array([v])) for s, v in pairs])


@given(st.lists(st.tuples(st.integers(0, 2**53), _VALUES), min_size=1, max_size=80))
def test_points_come_back_bit_for_bit(pairs: list[tuple[int, float]]) -> None:
    points = _points(pairs)
    found = Points.decoded(points.encoded())
    assert found.steps.tolist() == sorted(dict(pairs))
    expected = np.where(np.isnan(points.values), np.nan, points.values)
    assert found.values.view(np.uint64).tolist() == expected.view(np.uint64).tolist()


@pytest.mark.parametrize(
    "column",
    [
        np.arange(5, 4101, dtype=np.int64),
        np.full(9, -0.0),
        np.array([1], np.uint8),
        np.empty(0, np.uint64),
        np.empty(0, np.int64),
        np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0]),
        np.random.default_rng(0).integers(0, 60000, 999, dtype=np.uint16),
    ],
)
def test_columns_of_every_sort_come_back(column: np.ndarray) -> None:
    (found,) = decode_columns(9, encode_columns(9, [column]))
    assert found.dtype == column.dtype
    assert found.tobytes() == column.tobytes()


def test_every_damaged_byte_is_noticed() -> None:
    data = _points([(1, 1.0), (2, 5.5), (7, math.pi)]).encoded()
    for at in range(len(data)):
        with pytest.raises(TileError):
            Points.decoded(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
    with pytest.raises(TileError):
        Points.decoded(data[:-1])
    with pytest.raises(TileError):
        Records.decoded(data)


def test_a_constant_stride_takes_no_room() -> None:
    points = Points(np.arange(0, 40960, 10), np.zeros(4096))
    assert len(points.encoded()) < 100


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 300) | st.integers(0, 10**12), _VALUES), min_size=1, max_size=40),
        min_size=1,
        max_size=8,
    )
)
def test_levels_are_those_of_a_plain_dictionary_however_points_arrive(batches: list[list[tuple[int, float]]]) -> None:
    stored: dict[int, bytes] = {}
    levels: dict[int, list[Piece]] = {}
    oracle: dict[int, float] = {}
    for batch in batches:
        oracle |= dict(batch)
        changes = grow(levels, _points(batch), _SMALL, stored.__getitem__)
        for number in changes.removed:
            del stored[number]
        for _, piece in changes.added:
            piece.id = max(stored, default=0) + 1
            stored[piece.id] = piece.entries.encoded()
        for pieces in levels.values():
            for piece in pieces:
                piece.entries = None  # as after a restart
    assert {piece.id for pieces in levels.values() for piece in pieces} == stored.keys()
    for level, pieces in levels.items():
        size = _SMALL.size[min(level, 1)]
        assert all(piece.n <= size for piece in pieces)
        assert all(a.last < b.first for a, b in pairwise(pieces))
        content = _SMALL.joined(level, [_SMALL.decode(level, stored[piece.id or 0]) for piece in pieces])
        if level == 0:
            assert dict(zip(content.steps.tolist(), content.values.tolist(), strict=True)).keys() == oracle.keys()
            np.testing.assert_array_equal(content.values, [oracle[step] for step in sorted(oracle)])
            continue
        cell = _SMALL.cell(level)
        assert content.steps.tolist() == sorted({step // cell * cell for step in oracle})
        for i, start in enumerate(content.steps.tolist()):
            inside = {step: value for step, value in oracle.items() if start <= step < start + cell}
            values = np.array(list(inside.values()))
            assert (content.first[i], content.last[i]) == (min(inside), max(inside))
            assert content.count[i] == len(values)
            assert content.nans[i] == np.isnan(values).sum()
            assert content.finite[i] == np.isfinite(values).sum()
            np.testing.assert_equal(content.min[i], np.fmin.reduce(values))
            np.testing.assert_equal(content.max[i], np.fmax.reduce(values))
            finite = values[np.isfinite(values)]
            mean = sum(value / len(finite) for value in finite.tolist()) if len(finite) else math.nan
            scale = float(np.abs(finite).max(initial=0.0))
            np.testing.assert_allclose(content.mean[i], mean, rtol=1e-9, atol=1e-12 * scale)


def test_a_sparse_series_has_no_levels_that_repeat_its_points() -> None:
    levels: dict[int, list[Piece]] = {}
    steps = np.arange(0, 10**6, 100)
    grow(levels, Points(steps, np.ones(len(steps))), SCALARS, lambda _: b"")
    assert min(level for level in levels if level) == 3
    assert sum(piece.n for piece in levels[3]) == len(np.unique(steps // 512))
