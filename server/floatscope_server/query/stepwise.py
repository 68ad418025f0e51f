"""Statistics of single steps: those that level 0 holds, and those that are computed of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from floatscope_server.query.cells import Plane, Wanted
from floatscope_server.tiles.codec import MISSING, is_missing
from floatscope_server.tiles.planes import log2_amax, without_inf
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["MADE_OF", "made_plane", "needed_for"]

MADE_OF: dict[Stat, tuple[Stat, ...]] = {
    Stat.LOG2_AMAX: (Stat.ABSMAX, Stat.SCALE),
    Stat.NONFINITE: (Stat.NANS, Stat.INFS),
    Stat.ZERO_SHARE: (Stat.ZEROS, Stat.COUNT),
    Stat.STEPS: (Stat.COUNT,),
}
"""What level 0 holds of the statistics that it does not hold."""


@cache
def needed_for(what: Wanted) -> tuple[Wanted, ...]:
    """The planes of level 0 that ``made_plane`` may use for ``what``."""
    stat, agg = what
    values = tuple((of, Agg.VALUE) for of in MADE_OF.get(stat, (stat,)))
    return (*values, what) if agg in (Agg.MAX, Agg.MIN, Agg.RANK) else values


def made_plane(what: Wanted, planes: Mapping[Wanted, Plane]) -> Plane | None:
    """``what`` [layers, steps] of ``planes`` of level 0; None if nothing of it is there.

    ``MAX`` and ``MIN`` are over the ranks, what they give together where there are none; ``MEAN`` is that without
    infinities, as it goes into the mean of a cell.
    """
    stat, agg = what
    if agg == Agg.RANK:
        return planes.get(what)
    value = _value(stat, planes)
    apart = planes.get(what) if agg in (Agg.MAX, Agg.MIN) else None
    if value is None or apart is None:
        value = apart if value is None else value
    else:
        value = np.where(is_missing(apart), value, apart)
    if value is None:
        return None
    # The smallest magnitude of a tensor that has none is +inf.
    return without_inf(value) if agg == Agg.MEAN or (stat == Stat.ABSMIN and agg != Agg.VALUE) else value


def _value(stat: Stat, planes: Mapping[Wanted, Plane]) -> Plane | None:
    held = planes.get((stat, Agg.VALUE))
    if held is not None or stat not in MADE_OF:
        return held
    first, second = ([planes.get((part, Agg.VALUE)) for part in MADE_OF[stat]] + [None])[:2]
    if first is None:
        return None
    unobserved = is_missing(first)
    if stat == Stat.STEPS:
        return np.where(unobserved, MISSING, np.float32(1))
    if stat == Stat.LOG2_AMAX:
        return log2_amax(first, second, unobserved)
    if second is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        made = (first / second).astype(np.float32) if stat == Stat.ZERO_SHARE else first + second
    return np.where(unobserved, first, made) if unobserved.any() else made
