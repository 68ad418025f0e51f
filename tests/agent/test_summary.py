"""The algebra of summaries against brute force over float32 arrays."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatscope._formats import formats
from floatscope._summary import BINS, Summary, count_at_or_below, magnitude_of_bits, rescaled_histogram

Array: TypeAlias = NDArray[np.float32]

any_bits = st.integers(0, 2**32 - 1)
arrays = st.lists(st.one_of(any_bits, st.sampled_from([0, 1 << 31, 0x7F800000, 0x7FC00000, 1])), max_size=40).map(
    lambda bits: np.array(bits, dtype=np.uint32).view(np.float32)
)
normal_arrays = st.lists(
    st.floats(2.0**-120, 2.0**120, width=32).flatmap(lambda x: st.sampled_from([x, -x])), min_size=1, max_size=40
).map(lambda values: np.array(values, dtype=np.float32))
format_names = st.sampled_from(list(formats))


def brute_force(values: Array) -> Summary:
    finite = values[np.isfinite(values)]
    magnitude = np.abs(finite[finite != 0])
    doubles = finite.astype(np.float64)
    hist = np.zeros(BINS, dtype=np.int64)
    np.add.at(hist, (magnitude.view(np.uint32).astype(np.int64) - 1) >> 22, 1)
    return Summary(
        count=len(values),
        zeros=int((finite == 0).sum()),
        nans=int(np.isnan(values).sum()),
        infs=int(np.isinf(values).sum()),
        absmax=float(magnitude.max(initial=0.0)),
        absmin=float(magnitude.min(initial=math.inf)),
        sum=math.fsum(doubles),
        sumsq=math.fsum(doubles**2),
        hist=hist,
        hist_n=len(values),
    )


def fields(summary: Summary) -> dict[str, Any]:
    values = {name: getattr(summary, name) for name in summary.__slots__}
    return values | {"hist": summary.hist.tolist()}


def assert_same(a: Summary, b: Summary) -> None:
    left, right = fields(a), fields(b)
    size = max(math.sqrt(a.sumsq * max(a.count, 1)), 1e-300)
    assert left.pop("sum") == pytest.approx(right.pop("sum"), rel=1e-12, abs=1e-12 * size)
    assert left.pop("sumsq") == pytest.approx(right.pop("sumsq"), rel=1e-12)
    assert left == right


@given(arrays, arrays, arrays)
def test_merge_is_that_of_the_concatenation(a: Array, b: Array, c: Array) -> None:
    x, y, z = map(brute_force, (a, b, c))
    whole = brute_force(np.concatenate([a, b, c]))
    assert_same(x.merge(y).merge(z), whole)
    assert_same(x.merge(y.merge(z)), whole)
    assert_same(z.merge(y).merge(x), whole)
    assert_same(x.merge(Summary()), x)


@given(arrays)
def test_derived_values(values: Array) -> None:
    summary, finite = brute_force(values), values[np.isfinite(values)].astype(np.float64)
    assert summary.finite == len(finite)
    if len(finite) == 0:
        assert math.isnan(summary.mean)
        assert math.isnan(summary.rms)
    else:
        assert summary.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-12)
        assert summary.rms == pytest.approx(math.sqrt(math.fsum(finite**2) / len(finite)), rel=1e-12)
    assert summary.norm == pytest.approx(math.sqrt(math.fsum(finite**2)), rel=1e-12)


def shares(values: Array, threshold: float, scale: float) -> tuple[float, float]:
    """Exact shares (at or below, above) of the finite non-zero elements, in rational arithmetic."""
    exact = [Fraction(float(abs(v))) * Fraction(scale) for v in values if np.isfinite(v) and v != 0]
    below = sum(v <= Fraction(threshold) for v in exact)
    return below / len(exact), (len(exact) - below) / len(exact)


@given(normal_arrays, format_names, st.integers(-40, 40))
def test_underflow_is_exact_at_powers_of_two(values: Array, name: str, exponent: int) -> None:
    scale = 2.0**exponent
    zero = formats[name].zero_at_or_below
    if zero / scale >= 2.0**-126:
        assert brute_force(values).underflow(name, scale) == shares(values, zero, scale)[0]


@given(arrays, format_names, st.floats(1e-12, 1e12))
def test_overflow_brackets_and_knows_whether(values: Array, name: str, scale: float) -> None:
    summary = brute_force(values)
    low, high = summary.overflow(name, scale)
    if not summary.hist.any():
        assert math.isnan(low)
        assert math.isnan(high)
        return
    share = shares(values, formats[name].max, scale)[1]
    # The threshold max / scale is itself rounded, by half a unit in the last place of float64.
    nudge = shares(values, formats[name].max * (1 + 2.0**-50), scale)[1]
    assert low - 1e-12 <= max(share, nudge)
    assert high + 1e-12 >= min(share, nudge)
    assert (low > 0) == (high > 0)
    if share == nudge:
        assert (high > 0) == (share > 0)


@given(arrays, st.floats(2.0**-140, 2.0**120))
def test_counts_at_or_below_bracket_the_truth(values: Array, threshold: float) -> None:
    summary = brute_force(values)
    magnitude = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    counted = count_at_or_below(summary.hist, threshold, summary.absmin, summary.absmax)
    truth = int((magnitude <= threshold).sum())
    assert counted.low <= truth <= counted.high
    assert counted.low <= counted.estimate <= counted.high


@pytest.mark.parametrize("distribution", ["normal", "laplace", "uniform", "lognormal", "student"])
@pytest.mark.parametrize("scale", [1.1, 3.0, 0.7, 1234.5, 1e-3])
def test_underflow_is_within_two_percent_at_any_scale(distribution: str, scale: float) -> None:
    rng = np.random.default_rng(1)
    draw = {
        "normal": lambda: rng.normal(size=4000),
        "laplace": lambda: rng.laplace(size=4000),
        "uniform": lambda: rng.uniform(-1, 1, size=4000),
        "lognormal": lambda: rng.lognormal(sigma=1.5, size=4000),
        "student": lambda: rng.standard_t(3, size=4000),
    }[distribution]()
    for size in (2.0**-11, 2.0**-9, 0.01, 0.3):
        values = (draw * size / scale).astype(np.float32)
        summary = brute_force(values)
        for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e3m2", "e2m1"):
            truth = float((np.abs(values) * scale <= formats[name].zero_at_or_below).mean())
            assert summary.underflow(name, scale) == pytest.approx(truth, abs=0.02)


def test_headroom() -> None:
    summary = brute_force(np.array([0.0, -30.0, 7.5], dtype=np.float32))
    assert summary.headroom("e4m3fnuz") == 3.0
    assert summary.headroom("e4m3fnuz", 16.0) == -1.0
    assert Summary(count=3, zeros=3).headroom("fp16") == math.inf
    assert brute_force(np.array([1.0, math.inf], dtype=np.float32)).headroom("fp16") == -math.inf
    assert brute_force(np.array([1.0, math.nan], dtype=np.float32)).headroom("fp16") == -math.inf


@pytest.mark.parametrize("method", ["underflow", "overflow", "headroom"])
def test_bad_questions(method: str) -> None:
    with pytest.raises(ValueError, match=r"unknown format 'fp9'; known formats are fp32, bf16, .*e2m1"):
        getattr(Summary(), method)("fp9")
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            getattr(Summary(), method)("fp16", scale)


@given(normal_arrays, st.integers(-5, 5))
def test_histogram_moves_with_a_power_of_two(values: Array, exponent: int) -> None:
    scale = 2.0**exponent
    moved = rescaled_histogram(brute_force(values).hist[None], np.array([scale]))
    assert moved[0].tolist() == brute_force((values / np.float32(scale)).astype(np.float32)).hist.tolist()


@given(st.integers(0, 0x7F7FFFFF))
def test_magnitudes_come_from_bits(bits: int) -> None:
    assert magnitude_of_bits(bits) == float(np.uint32(bits).view(np.float32))
