"""Rows of different lengths, one after the other in a flat array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["places", "starts_of"]

Int64 = npt.NDArray[np.int64]


def starts_of(length: npt.NDArray[Any]) -> Int64:
    """Where each row begins."""
    ends: Int64 = np.cumsum(length, dtype=np.int64)
    return ends - length.astype(np.int64)


def places(starts: Int64, length: npt.NDArray[Any]) -> Int64:
    """The places in the flat array of rows that begin at ``starts``, one row after the other."""
    found: Int64 = np.arange(int(length.sum(dtype=np.int64))) + np.repeat(starts - starts_of(length), length)
    return found
