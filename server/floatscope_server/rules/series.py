"""The recent past of a scalar: what a spike is measured against."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import median

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["Recent", "RunningMedian"]


class Recent:
    """The last ``length`` finite, non-zero records of a series with their steps."""

    def __init__(self, length: int = 20) -> None:
        self._records: deque[tuple[int, float]] = deque(maxlen=length)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        """Whether there are as many records as it holds."""
        return len(self._records) == self._records.maxlen

    def medians(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The median before and after each of ``values`` [N], finite and non-zero, would be pushed: [N + 1]. It must
        be ``full``."""
        length = len(self._records)
        middle = length // 2
        ordered = np.sort(sliding_window_view(np.concatenate((self.values, values)), length), axis=1)
        if length % 2:
            return ordered[:, middle]
        found: NDArray[np.float64] = (ordered[:, middle - 1] + ordered[:, middle]) / 2
        return found

    def push(self, step: int, value: float | None) -> None:
        """Remember ``value`` unless it is missing, zero or not finite."""
        if value is not None and value != 0 and math.isfinite(value):
            self._records.append((step, value))

    def extend(self, steps: list[int], values: list[float]) -> None:
        """Remember ``values``, finite and non-zero, oldest first."""
        self._records.extend(zip(steps, values, strict=True))

    @property
    def last_step(self) -> int | None:
        """The step of the newest record, None without one."""
        return self._records[-1][0] if self._records else None

    @property
    def values(self) -> list[float]:
        """The records, oldest first."""
        return [value for _, value in self._records]

    @property
    def median(self) -> float:
        """Their median; NaN without records."""
        return median(self.values) if self._records else math.nan

    @property
    def mad(self) -> float:
        """Median absolute deviation from the median, not rescaled; NaN without records."""
        if not self._records:
            return math.nan
        middle = self.median
        return median(abs(value - middle) for value in self.values)


class RunningMedian:
    """The median of the last ``length`` values; each push costs a binary search."""

    def __init__(self, length: int) -> None:
        self._values: deque[float] = deque(maxlen=length)
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def push(self, value: float) -> None:
        """Remember ``value``, which is finite."""
        if len(self._values) == self._values.maxlen:
            del self._ordered[bisect_left(self._ordered, self._values[0])]
        self._values.append(value)
        insort(self._ordered, value)

    def extend(self, values: list[float]) -> None:
        """Remember ``values``, oldest first."""
        self._values.extend(values)
        self._ordered = sorted(self._values)

    @property
    def median(self) -> float:
        """NaN without values."""
        ordered = self._ordered
        if not ordered:
            return math.nan
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
