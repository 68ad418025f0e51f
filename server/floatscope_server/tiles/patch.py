"""What came late, brought into a tile that is there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.planes import Plane, Planes, derived, same_bits
from floatscope_server.tiles.statistics import RAW, Agg, Stat

__all__ = ["overlaid", "patched"]

_ADDING = (Stat.COUNT, Stat.ZEROS, Stat.NANS, Stat.INFS)
_SHARES = (Stat.UNDER, Stat.OVER_LOW, Stat.OVER_HIGH, Stat.FLOOR)

_F64 = npt.NDArray[np.float64]


def overlaid(held: Planes, late: Planes) -> Planes:
    """``held`` with what ``late`` observed in its place. Both are ``raw_planes`` of the same columns and layers."""
    there = late.get((Stat.COUNT, Agg.VALUE))
    if there is None or (Stat.COUNT, Agg.VALUE) not in held:
        return held if there is None else late
    where = _observed(there)
    apart = {(stat, agg) for stat, agg in {**held, **late} if agg in (Agg.MAX, Agg.MIN)}
    planes = {key: _chosen(where, late.get(key), held.get(key)) for key in {**held, **late} if key not in apart}
    if apart:
        ours, theirs, values = _values(held), _values(late), _values(planes)
        ours, theirs, values = ours | derived(ours), theirs | derived(theirs), values | derived(values)
    for stat, agg in sorted(apart):
        # Where one has none it is what it gives way to.
        plane = _chosen(where, late.get((stat, agg), theirs.get(stat)), held.get((stat, agg), ours.get(stat)))
        if not same_bits(plane, values[stat]):
            planes[stat, agg] = plane
    return planes


def patched(held: Planes, late: Planes) -> Planes:
    """``held``, which some ranks gave together, with what other ranks gave later added to it by the rules of
    ``merge``."""
    if (Stat.COUNT, Agg.VALUE) not in late or (Stat.COUNT, Agg.VALUE) not in held:
        return {**held, **late}
    ours, theirs = _values(held), _values(late)
    ahead = _highest(late, theirs) > _highest(held, ours)
    both = _observed(ours[Stat.COUNT]) & _observed(theirs[Stat.COUNT])
    merged = overlaid(held, late)
    for stat, value in _added(ours, theirs, ahead).items():
        if stat not in ours and stat not in theirs:
            continue
        merged[stat, Agg.VALUE] = _chosen(both, _narrow(value, stat in _ADDING), merged.get((stat, Agg.VALUE)))
    rank = Stat.ABSMAX, Agg.RANK
    if rank in merged:
        # Of equals the lowest rank, as where all of them come in time.
        lower = late[rank] < held[rank] if rank in held and rank in late else np.zeros_like(both)
        higher = (theirs[Stat.ABSMAX] > ours[Stat.ABSMAX]) | ((theirs[Stat.ABSMAX] == ours[Stat.ABSMAX]) & lower)
        merged[rank] = _chosen(both & ~higher, held.get(rank), merged[rank])
    values = _values(merged)
    values |= derived(values)
    ours |= derived(ours)
    theirs |= derived(theirs)
    apart = {(stat, agg) for stat, agg in {**held, **late} if agg in (Agg.MAX, Agg.MIN)} | {(Stat.LOG2_AMAX, Agg.MAX)}
    for stat, agg in apart:
        pair = [planes.get((stat, agg), given.get(stat)) for planes, given in ((held, ours), (late, theirs))]
        found = [plane for plane in pair if plane is not None]
        extreme = (np.fmax if agg == Agg.MAX else np.fmin).reduce(np.stack(found))
        extreme = _chosen(~np.isnan(extreme), extreme, values[stat])
        merged.pop((stat, agg), None)
        if not same_bits(extreme, values[stat]):
            merged[stat, agg] = extreme
    return merged


def _highest(planes: Planes, values: Mapping[Stat, Plane]) -> Plane:
    """The largest log2(absmax x scale) of any rank."""
    plane = planes.get((Stat.LOG2_AMAX, Agg.MAX))
    return derived(values)[Stat.LOG2_AMAX] if plane is None else plane


def _added(ours: Mapping[Stat, Plane], theirs: Mapping[Stat, Plane], ahead: npt.NDArray[np.bool_]) -> dict[Stat, _F64]:
    """Both together, where both were observed; ``ahead``: where ``theirs`` has the largest magnitude at its cast."""
    shape = ours[Stat.COUNT].shape
    a, b = (
        {stat: values[stat].astype(np.float64) if stat in values else np.full(shape, np.nan) for stat in RAW}
        for values in (ours, theirs)
    )
    finite_a, finite_b = (v[Stat.COUNT] - v[Stat.NANS] - v[Stat.INFS] for v in (a, b))
    alive_a, alive_b = finite_a - a[Stat.ZEROS], finite_b - b[Stat.ZEROS]
    added = {stat: a[stat] + b[stat] for stat in _ADDING}
    added[Stat.ABSMAX] = np.fmax(a[Stat.ABSMAX], b[Stat.ABSMAX])
    added[Stat.ABSMIN] = np.fmin(a[Stat.ABSMIN], b[Stat.ABSMIN])
    added[Stat.MEAN] = _weighted(a[Stat.MEAN], finite_a, b[Stat.MEAN], finite_b)
    added[Stat.RMS] = np.sqrt(_weighted(a[Stat.RMS] ** 2, finite_a, b[Stat.RMS] ** 2, finite_b))
    for stat in _SHARES:
        added[stat] = _weighted(a[stat], alive_a, b[stat], alive_b)
    added[Stat.SCALE] = np.where(ahead, b[Stat.SCALE], a[Stat.SCALE])
    return added


def _weighted(a: _F64, of_a: _F64, b: _F64, of_b: _F64) -> _F64:
    known_a, known_b = ~np.isnan(a) & (of_a > 0), ~np.isnan(b) & (of_b > 0)
    weight_a, weight_b = np.where(known_a, of_a, 0.0), np.where(known_b, of_b, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(
            (np.where(known_a, a, 0.0) * weight_a + np.where(known_b, b, 0.0) * weight_b) / (weight_a + weight_b)
        )


def _values(planes: Planes) -> dict[Stat, Plane]:
    return {stat: plane for (stat, agg), plane in planes.items() if agg == Agg.VALUE}


def _observed(plane: Plane) -> npt.NDArray[np.bool_]:
    return ~is_missing(plane)


def _narrow(value: _F64, exact: bool) -> Plane:
    with np.errstate(over="ignore"):
        plane: Plane = value.astype(np.float32)
    if exact and (np.isfinite(value) & (plane.astype(np.float64) != value)).any():
        plane = value.copy()
    plane[np.isnan(plane)] = MISSING64 if plane.dtype == np.float64 else MISSING
    return plane


def _chosen(where: npt.NDArray[np.bool_], one: Plane | None, other: Plane | None) -> Plane:
    """``one`` where ``where`` holds, else ``other``; what is not there is missing."""
    pair = [np.full(where.shape, MISSING, np.float32) if plane is None else plane for plane in (one, other)]
    if any(plane.dtype == np.float64 for plane in pair):
        gone = np.where(where, is_missing(pair[0]), is_missing(pair[1]))
        chosen = np.where(where, pair[0], pair[1]).astype(np.float64)
        chosen[gone] = MISSING64
        return chosen
    return np.where(where, pair[0], pair[1])
