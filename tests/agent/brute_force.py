"""What statistics must be, computed by numpy element by element."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from floatscope._summary import BINS, Summary, magnitude_of_bits

__all__ = ["DTYPES", "Array", "assert_same", "expected"]

Array: TypeAlias = NDArray[np.float32]
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
"""Formats that every variant reads without plain torch."""


def expected(values: Array) -> Summary:
    bits = values.view(np.uint32) & 0x7FFFFFFF
    finite = bits < 0x7F800000
    magnitudes = bits[finite & (bits != 0)]
    doubles = values[finite].astype(np.float64)
    hist = np.zeros(BINS, dtype=np.int64)
    np.add.at(hist, (magnitudes.astype(np.int64) - 1) >> 22, 1)
    return Summary(
        count=len(values),
        zeros=int((bits == 0).sum()),
        nans=int((bits > 0x7F800000).sum()),
        infs=int((bits == 0x7F800000).sum()),
        absmax=float(magnitude_of_bits(magnitudes).max(initial=0.0)),
        absmin=float(magnitude_of_bits(magnitudes).min(initial=math.inf)),
        sum=math.fsum(doubles),
        sumsq=math.fsum(doubles**2),
        hist=hist,
        hist_n=len(values),
    )


def assert_same(got: Summary, want: Summary) -> None:
    for name in ("count", "zeros", "nans", "infs", "absmax", "absmin", "hist_n"):
        assert getattr(got, name) == getattr(want, name), name
    assert got.hist.tolist() == want.hist.tolist()
    assert got.sumsq == pytest.approx(want.sumsq, rel=1e-12)
    assert got.sum == pytest.approx(want.sum, rel=1e-12, abs=1e-12 * math.sqrt(want.sumsq * max(want.count, 1)))
