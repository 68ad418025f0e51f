"""Coarser columns from finer ones, so that every extreme and every NaN stays visible.

| in a cell | max | min | mean |
|---|---|---|---|
| finite | max | min | mean, weighted by the steps of each |
| +inf or -inf among them | as a number | as a number | of the finite ones |
| an observed NaN | NaN | min of the rest, NaN if there is none | of the finite ones |
| missing | ignored | ignored | ignored |
| nothing but missing | missing | missing | missing |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.planes import Planes, same_bits
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["pool", "pool_max", "pool_mean", "pool_min", "pool_sum"]

_Plane = npt.NDArray[Any]

_SLICED = 16
"""Up to this factor strided slices are several times faster than a reduction of an axis that short."""


def pool(planes: Planes, factor: int) -> Planes:
    """Every ``factor`` columns of ``planes``, as ``pooled_planes`` makes them, as one; ``factor`` divides the columns.

    A ``MIN`` or ``MEAN`` that is not there is what ``MAX`` is, a ``WEIGHT`` that is not there what ``STEPS`` are. All
    of them are there in the result but ``WEIGHT`` where it is what ``STEPS`` are.
    """
    steps = planes.get((Stat.STEPS, Agg.MAX))
    if steps is None:
        return {}
    if factor == 1:
        return dict(planes)
    pooled: Planes = {(Stat.STEPS, Agg.MAX): pool_sum(steps, factor)}
    pooled_steps = pooled[Stat.STEPS, Agg.MAX]
    for (stat, agg), top in planes.items():
        if stat == Stat.STEPS or agg != Agg.MAX:
            continue
        low, mean, weight = (planes.get((stat, other)) for other in (Agg.MIN, Agg.MEAN, Agg.WEIGHT))
        pooled[stat, Agg.MAX] = pool_max(top, factor)
        pooled[stat, Agg.MIN] = pool_min(top if low is None else low, factor)
        mean = top if mean is None else mean
        pooled[stat, Agg.MEAN], of = pool_mean(mean, steps if weight is None else weight, factor)
        if weight is not None or not _finite(mean):
            if of is None:
                of = pooled_steps if weight is None else pool_sum(weight, factor)
            if not same_bits(of, pooled_steps):
                pooled[stat, Agg.WEIGHT] = of
    return pooled


def pool_max(values: _Plane, factor: int) -> _Plane:
    """The largest of every ``factor`` columns; an observed NaN wins."""
    if _finite(values):
        return _reduced(np.maximum, values, factor)
    missing = is_missing(values)
    nan = np.isnan(values)
    pooled = _reduced(np.maximum, np.where(nan, -np.inf, values).astype(values.dtype), factor)
    pooled[_reduced(np.logical_or, nan & ~missing, factor)] = np.nan
    pooled[_reduced(np.logical_and, missing, factor)] = _missing(values)
    return pooled


def pool_min(values: _Plane, factor: int) -> _Plane:
    """The smallest of every ``factor`` columns; NaN only where nothing else was observed."""
    if _finite(values):
        return _reduced(np.minimum, values, factor)
    missing = is_missing(values)
    nan = np.isnan(values)
    pooled = _reduced(np.minimum, np.where(nan, np.inf, values).astype(values.dtype), factor)
    pooled[_reduced(np.logical_and, nan, factor)] = np.nan
    pooled[_reduced(np.logical_and, missing, factor)] = _missing(values)
    return pooled


def pool_mean(values: _Plane, weights: _Plane, factor: int) -> tuple[_Plane, _Plane | None]:
    """The mean of the finite ones of every ``factor`` columns by ``weights`` (a missing one weighs nothing), and the
    sums of the weights that went into it, missing for 0; None for those where all weights went in."""
    if _finite(values) and _finite(weights):
        if weights.size and (weights == weights.flat[0]).all():
            return (_reduced(np.add, values, factor, np.float64) / factor).astype(values.dtype), None
        total = _reduced(np.add, weights, factor, np.float64)
        summed = _reduced(np.add, np.multiply(values, weights, dtype=np.float64), factor)
        return (summed / total).astype(values.dtype), None
    finite = np.isfinite(values) & ~is_missing(weights)
    total = _reduced(np.add, np.where(finite, weights, 0).astype(np.float64), factor)
    summed = _reduced(np.add, np.where(finite, values, 0).astype(np.float64) * np.where(finite, weights, 0), factor)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (summed / total).astype(values.dtype)
    of = total.astype(weights.dtype)
    mean[total == 0] = _missing(mean)
    of[total == 0] = _missing(of)
    return mean, of


def pool_sum(values: _Plane, factor: int) -> _Plane:
    """The sum of every ``factor`` columns; missing where all are."""
    if _finite(values):
        return _reduced(np.add, values, factor)
    missing = is_missing(values)
    pooled = _reduced(np.add, np.where(missing, 0, values).astype(values.dtype), factor)
    pooled[_reduced(np.logical_and, missing, factor)] = _missing(values)
    return pooled


def _reduced(how: np.ufunc, values: _Plane, factor: int, dtype: npt.DTypeLike | None = None) -> _Plane:
    columns = values.shape[1]
    assert columns % factor == 0, (columns, factor)
    if factor > _SLICED:
        # The type of an accumulator is not that of a comparison.
        wide = values if dtype is None else values.astype(dtype)
        return np.asarray(how.reduce(wide.reshape(len(values), columns // factor, factor), axis=2))
    pooled = np.array(values[:, ::factor], dtype, order="C")
    for place in range(1, factor):
        how(pooled, values[:, place::factor], out=pooled)
    return pooled


def _finite(values: _Plane) -> bool:
    return bool(np.isfinite(values).all())


def _missing(values: _Plane) -> np.float32 | np.float64:
    return np.float64(MISSING64) if values.dtype == np.float64 else np.float32(MISSING)
