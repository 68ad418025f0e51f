"""How a series of measurements is put into words: median and quartiles, never a single reading."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

__all__ = ["spread"]


def spread(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """``median [lower quartile, upper quartile] unit, n = count``."""
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}] {unit}".rstrip() + f", n = {len(values)}"
