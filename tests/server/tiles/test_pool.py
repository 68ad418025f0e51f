"""Pooling against a slow reading of its table, for every kind of value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.planes import Planes, same_bits
from floatscope_server.tiles.pool import pool, pool_max, pool_mean, pool_min, pool_sum
from floatscope_server.tiles.statistics import Agg, Stat

_Plane = npt.NDArray[Any]

_WORDS = st.one_of(
    st.floats(-1e6, 1e6, width=32).map(lambda x: int(np.float32(x).view(np.uint32))),
    st.sampled_from([0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC00001, 0x7FC00001, 0, 0x80000000, 1]),
)


@st.composite
def _cells(draw: st.DrawFn) -> tuple[_Plane, int]:
    factor = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 17, 32]))
    shape = draw(st.integers(1, 4)), factor * draw(st.integers(1, 3))
    words = draw(hnp.arrays(np.uint32, shape, elements=_WORDS, fill=_WORDS))
    values = words.view(np.float32)
    if draw(st.booleans()):
        values = np.where(np.isfinite(values), values, np.float32(1.5))
    if draw(st.booleans()):
        missing = is_missing(values)
        values = values.astype(np.float64)
        values[missing] = MISSING64
    return values, factor


def _by_cell(values: _Plane, factor: int) -> list[list[list[float | None]]]:
    """[layers][cells][observed]; None for what is missing."""
    gone = is_missing(values)
    return [
        [
            [None if gone[row, at] else float(values[row, at]) for at in range(start, start + factor)]
            for start in range(0, values.shape[1], factor)
        ]
        for row in range(len(values))
    ]


def _oracle_max(cell: list[float | None]) -> float | None:
    observed = [x for x in cell if x is not None]
    if not observed:
        return None
    return math.nan if any(map(math.isnan, observed)) else max(observed)


def _oracle_min(cell: list[float | None]) -> float | None:
    observed = [x for x in cell if x is not None]
    if not observed:
        return None
    rest = [x for x in observed if not math.isnan(x)]
    return min(rest) if rest else math.nan


def _check(pooled: _Plane, expected: list[list[float | None]]) -> None:
    gone = is_missing(pooled)
    for row, cells in enumerate(expected):
        for at, value in enumerate(cells):
            assert gone[row, at] == (value is None)
            if value is not None:
                shown = float(pooled[row, at])
                assert shown == value or (math.isnan(shown) and math.isnan(value))


@given(_cells())
def test_extremes(cells: tuple[_Plane, int]) -> None:
    values, factor = cells
    by_cell = _by_cell(values, factor)
    _check(pool_max(values, factor), [[_oracle_max(cell) for cell in row] for row in by_cell])
    _check(pool_min(values, factor), [[_oracle_min(cell) for cell in row] for row in by_cell])


@given(_cells(), st.data())
def test_means_are_of_the_finite_ones_by_their_weight(cells: tuple[_Plane, int], data: st.DataObject) -> None:
    values, factor = cells
    weights = data.draw(hnp.arrays(np.float32, values.shape, elements=st.sampled_from([1.0, 1.0, 3.0, 64.0])))
    weights[is_missing(values)] = MISSING
    mean, of = pool_mean(values, weights, factor)
    means: list[list[float | None]] = []
    totals: list[list[float | None]] = []
    for row, row_weights in zip(_by_cell(values, factor), _by_cell(weights, factor), strict=True):
        pairs = [
            [(x, w) for x, w in zip(cell, ws, strict=True) if x is not None and w is not None and math.isfinite(x)]
            for cell, ws in zip(row, row_weights, strict=True)
        ]
        totals.append([sum(w for _, w in pair) or None for pair in pairs])
        means.append([sum(x * w for x, w in pair) / sum(w for _, w in pair) if pair else None for pair in pairs])
    assert (is_missing(mean) == np.array([[value is None for value in row] for row in means])).all()
    for layer, of_row in enumerate(means):
        for at, value in enumerate(of_row):
            if value is not None:
                cell = values[layer, at * factor : (at + 1) * factor]
                # Terms may cancel: what rounds is the largest of them.
                largest = float(np.abs(cell[np.isfinite(cell)]).max())
                assert abs(float(mean[layer, at]) - value) <= 2.0**-23 * largest + 2.0**-149
    _check(pool_sum(weights, factor) if of is None else of, totals)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 4), (8, 8), (8, 4), (4, 16)]))
def test_two_steps_give_what_one_gives(seed: int, factors: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    once, again = factors
    shape = 3, once * again * 2
    value = np.exp2(rng.normal(-6, 8, shape)).astype(np.float32)
    for special in (np.inf, np.nan, MISSING):
        value[rng.random(shape) < rng.choice([0, 0.05, 0.9])] = special
    unobserved = is_missing(value) & (rng.random(shape) < 0.5)
    steps = np.where(unobserved, MISSING, np.float32(1))
    finite = np.where(np.isfinite(value), value, MISSING)
    planes: Planes = {
        (Stat.STEPS, Agg.MAX): steps,
        (Stat.ABSMAX, Agg.MAX): value,
        (Stat.ABSMAX, Agg.MEAN): finite,
        (Stat.ABSMAX, Agg.WEIGHT): np.where(np.isfinite(value), np.float32(1), MISSING),
    }
    at_once, in_two = pool(planes, once * again), pool(pool(planes, once), again)
    assert at_once.keys() == in_two.keys()
    for key, plane in at_once.items():
        if key[1] == Agg.MEAN:
            assert (is_missing(plane) == is_missing(in_two[key])).all()
            np.testing.assert_allclose(in_two[key], plane, rtol=3e-7)
        else:
            assert same_bits(plane, in_two[key]), key


def test_a_weight_that_is_all_the_steps_is_left_out() -> None:
    value = np.arange(16, dtype=np.float32).reshape(1, 16)
    planes: Planes = {(Stat.STEPS, Agg.MAX): np.ones((1, 16), np.float32), (Stat.RMS, Agg.MAX): value}
    pooled = pool(planes, 8)
    assert set(pooled) == {
        (Stat.STEPS, Agg.MAX),
        *((Stat.RMS, agg) for agg in (Agg.MAX, Agg.MIN, Agg.MEAN)),
    }
    assert pooled[Stat.STEPS, Agg.MAX].tolist() == [[8, 8]]
    assert pooled[Stat.RMS, Agg.MAX].tolist() == [[7, 15]]
    assert pooled[Stat.RMS, Agg.MIN].tolist() == [[0, 8]]
    assert pooled[Stat.RMS, Agg.MEAN].tolist() == [[3.5, 11.5]]
