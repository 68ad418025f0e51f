"""The recent past of a scalar: what a spike is measured against."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

__all__ = ["Recent"]


class Recent:
    """The last ``length`` finite, non-zero records of a series with their steps."""

    def __init__(self, length: int = 20) -> None:
        self._records: deque[tuple[int, float]] = deque(maxlen=length)

    def __len__(self) -> int:
        return len(self._records)

    def push(self, step: int, value: float | None) -> None:
        """Remember ``value`` unless it is missing, zero or not finite."""
        if value is not None and value != 0 and math.isfinite(value):
            self._records.append((step, value))

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
