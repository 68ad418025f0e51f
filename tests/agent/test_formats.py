"""Every row of the format table against the libraries that implement the formats."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from floatscope._formats import Format, format_named, formats

_ML_DTYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
_NUMPY: dict[str, Any] = {"fp32": np.float32, "fp16": np.float16}
_TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}


def test_every_format_has_a_judge() -> None:
    assert set(formats) == set(_ML_DTYPES) | set(_NUMPY)


@pytest.mark.parametrize("name", sorted(_ML_DTYPES))
def test_limits_are_those_of_ml_dtypes(name: str) -> None:
    info: Any = ml_dtypes.finfo(_ML_DTYPES[name])  # type: ignore[no-untyped-call]
    row = formats[name]
    assert row.max == float(info.max)
    assert row.min_normal == float(info.smallest_normal)
    assert row.min_subnormal == float(info.smallest_subnormal)
    assert row.mantissa_bits == info.nmant


@pytest.mark.parametrize("name", sorted(_NUMPY))
def test_limits_are_those_of_numpy(name: str) -> None:
    info, row = np.finfo(_NUMPY[name]), formats[name]
    assert (row.max, row.min_normal) == (float(info.max), float(info.smallest_normal))
    assert (row.min_subnormal, row.mantissa_bits) == (float(info.smallest_subnormal), info.nmant)


@pytest.mark.parametrize("name", sorted(_TORCH))
def test_limits_are_those_of_torch(name: str) -> None:
    info = torch.finfo(_TORCH[name])
    assert (formats[name].max, formats[name].min_normal) == (info.max, info.smallest_normal)


@pytest.mark.parametrize("name", sorted(_ML_DTYPES | _NUMPY))
def test_zero_at_or_below_is_where_rounding_gives_zero(name: str) -> None:
    dtype = (_ML_DTYPES | _NUMPY)[name]
    threshold = formats[name].zero_at_or_below
    # A quarter above is exact in float32, which ml_dtypes rounds through, and nearer to the subnormal than to zero.
    assert float(np.float64(threshold).astype(dtype)) == 0
    assert float(np.float64(threshold * 1.25).astype(dtype)) == formats[name].min_subnormal


@pytest.mark.parametrize("row", formats.values(), ids=formats.keys())
def test_headroom_at_the_marks(row: Format) -> None:
    assert row.headroom(row.max) == 0
    assert row.headroom(row.max / 2) == 1
    assert row.headroom(row.max / 4, scale=8) == -1
    assert row.headroom(0.0) == math.inf
    assert row.headroom(math.inf) == -math.inf
    assert math.isnan(row.headroom(math.nan))


@given(st.floats(min_value=1e-30, max_value=1e30), st.integers(-60, 60))
def test_headroom_loses_one_bit_per_doubling(amax: float, exponent: int) -> None:
    row = formats["e4m3fnuz"]
    assert math.isclose(row.headroom(amax, 2.0**exponent), row.headroom(amax) - exponent, abs_tol=1e-9)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown format 'e4m3'; known formats are fp32, bf16, fp16, e4m3fn"):
        format_named("e4m3")
