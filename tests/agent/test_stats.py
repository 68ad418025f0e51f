"""The torch reference against brute force in numpy over every float dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import floatscope
from floatscope._stats import _reference as _stats
from floatscope._stats._reference import STATISTICS, measure, merge_, row_summary
from tests.agent.brute_force import Array, assert_same, expected

DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@pytest.fixture(params=list(DTYPES), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value: torch.dtype = request.param
    return value


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stats, "_PIECE", {"cpu": 7})


def tensor_of_codes(codes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with the given bit patterns, taken modulo the dtype's width."""
    size = dtype.itemsize
    data = b"".join((code % (1 << 8 * size)).to_bytes(size, "little") for code in codes)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)


def through_ml_dtypes(tensor: torch.Tensor) -> Array:
    """The tensor's values as float32, decoded by ml_dtypes from its bytes."""
    codes = tensor.view(AS_INTEGERS[tensor.dtype.itemsize]).numpy()
    values: Array = codes.view(DTYPES[tensor.dtype]).astype(np.float32)
    return values


@given(codes=st.lists(st.integers(0, 2**32 - 1), max_size=60))
def test_any_bit_pattern_of_any_dtype(codes: list[int]) -> None:
    for dtype in DTYPES:
        tensor = tensor_of_codes(codes, dtype)
        assert_same(floatscope.summarize(tensor), expected(through_ml_dtypes(tensor)))


def test_every_code_of_the_narrow_dtypes(dtype: torch.dtype) -> None:
    tensor = tensor_of_codes([*range(1 << 16), 1 << 22, 1 << 23, 0x7F7FFFFF, 0x7F800001], dtype)
    assert_same(floatscope.summarize(tensor), expected(through_ml_dtypes(tensor)))


@given(st.lists(st.floats(width=64), max_size=40), st.sampled_from([1.0, 2.0, 65536.0, 3.0, 1e-3]))
def test_float64_counts_through_float32(values: list[float], scale: float) -> None:
    doubles = np.array(values, dtype=np.float64)
    limit = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore", invalid="ignore"):
        clamped = np.clip(doubles / scale, -limit, limit)
        singles = np.where(np.isinf(doubles), doubles, clamped).astype(np.float32)
    assert_same(floatscope.summarize(torch.tensor(values, dtype=torch.float64), scale=scale), expected(singles))


def test_the_scale_is_divided_out(dtype: torch.dtype) -> None:
    tensor = tensor_of_codes(list(range(0, 1 << 16, 7)), dtype)
    with np.errstate(invalid="ignore"):
        divided = (through_ml_dtypes(tensor).astype(np.float64) / 1024).astype(np.float32)
    assert_same(floatscope.summarize(tensor, scale=1024.0), expected(divided))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.permute(2, 0, 1),
    "strided": lambda x: x[:, ::2, 1:],
    "narrow": lambda x: x[:, :, 2],
    "expanded": lambda x: x[:1].expand(3, -1, -1),
    "scalar": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
    "flipped": lambda x: x.flip(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("small_pieces")
def test_layouts_and_pieces(layout: str) -> None:
    base = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    base[1, 2, 3], base[0, 0, 0], base[2, 5, 2], base[3, 1, 1] = math.nan, math.inf, 0.0, -0.0
    view = LAYOUTS[layout](base)
    want = expected(np.ascontiguousarray(view.numpy()).reshape(-1))
    assert_same(floatscope.summarize(view), want)
    assert all(piece.numel() <= 7 for piece in _stats.pieces(view, 7))


def test_several_tensors_are_one() -> None:
    tensors = [torch.randn(3), torch.zeros(2, 2, dtype=torch.bfloat16), torch.empty(0)]
    joined = torch.cat([t.float().reshape(-1) for t in tensors])
    assert_same(floatscope.summarize(tensors), expected(joined.numpy()))
    assert_same(floatscope.summarize(iter(tensors)), expected(joined.numpy()))


def test_nothing_finite() -> None:
    summary = floatscope.summarize(torch.tensor([0.0, math.nan, -math.inf]))
    assert (summary.absmax, summary.absmin, summary.zeros, summary.nans, summary.infs) == (0.0, math.inf, 1, 1, 1)
    assert not summary.hist.any()


@pytest.fixture
def flushed_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed_denormals")
def test_subnormals_survive_a_thread_that_flushes_them() -> None:
    summary = floatscope.summarize(tensor_of_codes([1, 0x80000001, 0x400000, 0x400001, 0], torch.float32))
    assert (summary.count, summary.zeros) == (5, 1)
    assert summary.hist[:2].tolist() == [3, 1]
    assert summary.hist.sum() == 4
    # Compared as text: comparing two subnormals would flush them both.
    assert repr(summary.absmin / 2.0**-149) == "1.0"


def test_rows_merge_in_place() -> None:
    a, b = torch.randn(50), torch.tensor([math.nan, 0.0, 1e-42, 7.0])
    row = measure(a, histogram=True)
    merged = merge_(row, measure(b, histogram=True))
    assert merged.statistics is row.statistics
    assert merged.hist is row.hist
    assert_same(row_summary(merged), expected(torch.cat([a, b]).numpy()))
    assert measure(a, histogram=False).hist is None
    assert len(row.statistics) == len(STATISTICS)


def test_masked_path_agrees_with_the_short_one() -> None:
    clean = torch.randn(1000)
    dirty = torch.cat([clean, torch.tensor([math.inf])])
    short, masked = (row_summary(measure(x, histogram=True)) for x in (clean, dirty))
    assert masked.infs == 1
    assert short.sum == pytest.approx(masked.sum)
    assert (short.absmax, short.absmin) == (masked.absmax, masked.absmin)
    assert short.hist.tolist() == masked.hist.tolist()


def test_scatter_agrees_with_bincount() -> None:
    rank = (torch.randn(3000).view(torch.int32) & 0x7FFFFFFF) - 1
    assert _stats._scattered_ones((rank >> 22) + 1).tolist() == _stats.histogram_of_ranks(rank).tolist()


@pytest.mark.parametrize("bad", [torch.arange(3), torch.tensor([True]), torch.zeros(2, dtype=torch.complex64)])
def test_only_floats(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="summarize takes floating-point tensors"):
        floatscope.summarize(bad)
    with pytest.raises(ValueError, match="scale must be positive"):
        floatscope.summarize(torch.ones(1), scale=0.0)


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_squares_beyond_the_range_of_fp32_are_summed(size: float) -> None:
    values = torch.linspace(0.5, 2.0, 100) * size
    summary = floatscope.summarize(values)
    assert summary.sumsq == pytest.approx(float(values.double().square().sum()), rel=1e-12)
    assert summary.rms == pytest.approx(float(values.double().square().mean().sqrt()), rel=1e-12)
