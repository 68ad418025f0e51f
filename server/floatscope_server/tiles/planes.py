"""Summaries as planes [layers, columns]: level 0, and what is pooled of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.merge import MERGING, merge_ranks
from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.statistics import POOLED, Agg, Stat

__all__ = [
    "Plane",
    "Planes",
    "derived",
    "joined",
    "log2_amax",
    "pooled_planes",
    "raw_planes",
    "same_bits",
    "without_inf",
]

Plane = npt.NDArray[Any]
Planes = dict[tuple[Stat, Agg], Plane]
"""Each [layers, columns] of float32, or float64 where that cannot hold a count. One that is not there is missing
throughout, or what the one is that it gives way to (see ``Agg``)."""

_COUNTS = {Stat.COUNT: "count", Stat.ZEROS: "zeros", Stat.NANS: "nans", Stat.INFS: "infs"}
_FLOATS = {
    Stat.ABSMAX: "absmax",
    Stat.ABSMIN: "absmin",
    Stat.SCALE: "scale",
    Stat.UNDER: "under",
    Stat.OVER_LOW: "over_low",
    Stat.OVER_HIGH: "over_high",
    Stat.FLOOR: "floor",
}


def raw_planes(
    frames: Iterable[tuple[int, Frame]], *, first: int, columns: int, layers: int, ranks: int, first_layer: int = 0
) -> Planes:
    """Level 0 of steps ``first`` to ``first + columns - 1`` and of ``layers`` layers from ``first_layer`` on.

    ``frames`` are (rank, frame) in the order of arrival: of a step that a rank sent twice the later one stands.
    ``VALUE`` is what the ranks give together: those that do not merge (see ``merge``) are added up as well. ``MAX`` and
    ``MIN`` of the statistics in ``POOLED`` are over what merges as one and over each rank that does not, and are there
    only where they are something else. ``RANK`` of ``ABSMAX`` is there if ``ranks`` (the attempt's) or those that sent
    something are several.
    """
    inside = [
        (rank, cut)
        for rank, frame in frames
        if frame.first_step < first + columns
        and frame.first_step + frame.steps > first
        and (cut := _cut(frame.between(first, first + columns - 1), first_layer, layers)) is not None
    ]
    if not inside:
        return {}
    several = ranks > 1 or len({rank for rank, _ in inside}) > 1
    if len({(rank, frame.placement, frame.copy_of) for rank, frame in inside}) == 1:
        raw = _values(_spread([frame for _, frame in inside], first, columns, layers))
        if several:
            raw[Stat.ABSMAX, Agg.RANK] = _rank_plane(
                np.where(is_missing(raw[Stat.ABSMAX, Agg.VALUE]), -1, inside[0][0]).T
            )
        return raw
    raw = _merged(inside, first, columns, layers)
    if not several:
        del raw[Stat.ABSMAX, Agg.RANK]
    return raw


def pooled_planes(raw: Planes) -> Planes:
    """The statistics of ``POOLED`` with one step in each column: ``MAX``, ``MIN`` and ``MEAN``, ``WEIGHT`` where that
    is not ``STEPS``, and ``MAX`` of ``STEPS``. What is the same is the same array."""
    count = raw.get((Stat.COUNT, Agg.VALUE))
    if count is None:
        return {}
    unobserved = is_missing(count)
    steps = np.where(unobserved, MISSING, np.float32(1))
    pooled: Planes = {(Stat.STEPS, Agg.MAX): steps}
    values = {stat: plane for (stat, agg), plane in raw.items() if agg == Agg.VALUE}
    values |= derived(values)
    for stat in POOLED:
        value = values.get(stat)
        if value is None:
            continue
        top, low = raw.get((stat, Agg.MAX), value), raw.get((stat, Agg.MIN), value)
        if stat == Stat.ABSMIN:
            given = value
            value = without_inf(given)
            top, low = (value if plane is given else without_inf(plane) for plane in (top, low))
        mean = value if stat == Stat.ABSMIN else without_inf(value)
        if is_missing(top).all() and is_missing(low).all():
            continue
        pooled[stat, Agg.MAX], pooled[stat, Agg.MIN], pooled[stat, Agg.MEAN] = top, low, mean
        finite = np.isfinite(mean)
        if not np.array_equal(finite, ~unobserved):
            pooled[stat, Agg.WEIGHT] = np.where(finite, np.float32(1), MISSING)
    return pooled


def derived(values: Mapping[Stat, Plane]) -> dict[Stat, Plane]:
    """``ZERO_SHARE``, ``NONFINITE`` and ``LOG2_AMAX`` of level-0 statistics."""
    count = values[Stat.COUNT].astype(np.float64)
    unobserved = np.isnan(count)
    scale = values.get(Stat.SCALE)
    nonfinite = values[Stat.NANS].astype(np.float64) + values[Stat.INFS]
    return {
        Stat.ZERO_SHARE: _plane(values[Stat.ZEROS] / count, unobserved),
        Stat.NONFINITE: _exact(np.where(unobserved, 0, nonfinite), unobserved),
        Stat.LOG2_AMAX: log2_amax(values[Stat.ABSMAX], scale, unobserved),
    }


def same_bits(a: Plane, b: Plane) -> bool:
    """Whether ``a`` and ``b`` (contiguous) are the same bit for bit."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    ours, theirs = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    # Those that differ mostly do so in their first row.
    return bool((ours[:1] == theirs[:1]).all() and (ours == theirs).all())


def _merged(inside: Sequence[tuple[int, Frame]], first: int, columns: int, layers: int) -> Planes:
    """Several ranks, or several placements of one."""
    in_ranks = sorted(((rank, _below_all(frame)) for rank, frame in inside), key=lambda item: item[0])
    steps = np.arange(first, first + columns)
    # What nobody sent would be added up all the same.
    names = {name for _, frame in in_ranks for name in frame.fields}
    merged = merge_ranks(in_ranks, steps, layers, names)
    units = list(merged.alone.values())
    if merged.present.any():
        units.append(merged.together)
    argmax = merged.argmax
    if len(units) == 1 and merged.alone:
        (rank,) = merged.alone
        argmax = np.where(units[0].observed, np.int32(rank), np.int32(-1))
    whole = units[0]
    if len(units) > 1:
        added = [
            (rank, frame if frame.placement in MERGING else replace(frame, placement="data", copy_of=-1))
            for rank, frame in in_ranks
        ]
        together = merge_ranks(added, steps, layers, names)
        whole, argmax = together.together, together.argmax
    raw = _values(whole)
    raw[Stat.ABSMAX, Agg.RANK] = _rank_plane(np.where(whole.observed, argmax, np.int32(-1)))
    value = {stat: plane for (stat, agg), plane in raw.items() if agg == Agg.VALUE}
    value |= derived(value)
    if len(units) > 1:
        _between_units(raw, value, units)
    highest = _highest_amax(in_ranks, first, columns, layers)
    if not same_bits(highest, value[Stat.LOG2_AMAX]):
        raw[Stat.LOG2_AMAX, Agg.MAX] = highest
    else:
        raw.pop((Stat.LOG2_AMAX, Agg.MAX), None)
    return raw


def _below_all(frame: Frame) -> Frame:
    """``frame`` whose cells that nobody observed are smaller than any that somebody did."""
    if frame.observed.all():
        return frame
    absmax = np.where(frame.observed, frame.fields["absmax"], np.float32(-1))
    return replace(frame, fields={**frame.fields, "absmax": absmax})


def _between_units(raw: Planes, value: Mapping[Stat, Plane], units: Sequence[Frame]) -> None:
    of_units = []
    for unit in units:
        planes = {stat: plane for (stat, _), plane in _values(unit).items()}
        of_units.append(planes | derived(planes))
    for stat in POOLED:
        found = [planes[stat] for planes in of_units if stat in planes]
        if stat not in value or not found:
            continue
        if stat == Stat.ABSMIN:
            found = [without_inf(plane) for plane in found]
        for agg, reduce in ((Agg.MAX, np.fmax), (Agg.MIN, np.fmin)):
            plane = reduce.reduce(np.stack(found), axis=0)
            plane = np.where(np.isnan(plane), value[stat], plane).astype(plane.dtype)
            if not same_bits(plane, value[stat]):
                raw[stat, agg] = plane


def _highest_amax(in_ranks: Sequence[tuple[int, Frame]], first: int, columns: int, layers: int) -> Plane:
    """The largest log2(absmax x scale) of any rank: each may have a scale of its own."""
    highest = np.full((columns, layers), np.nan, np.float32)
    of_rank = highest.copy()
    for place, (rank, frame) in enumerate(in_ranks):
        row = frame.first_step - first
        amax = log2_amax(frame.fields["absmax"], frame.fields.get("scale"), ~frame.observed)
        of_rank[row : row + frame.steps, frame.layers] = amax
        if place + 1 == len(in_ranks) or in_ranks[place + 1][0] != rank:
            np.fmax(highest, of_rank, out=highest)
            of_rank.fill(np.nan)
    plane = np.ascontiguousarray(highest.T)
    plane[np.isnan(plane)] = MISSING
    return plane


def _cut(frame: Frame, first_layer: int, layers: int) -> Frame | None:
    """``frame`` [steps, those of the layers that it has], numbered from ``first_layer``."""
    own = frame.layers
    if not first_layer and (not len(own) or own.max() < layers):
        return frame if len(own) else None
    low, high = np.searchsorted(own, (first_layer, first_layer + layers))
    if (own[1:] > own[:-1]).all():
        if low == high:
            return None
        where: slice | npt.NDArray[np.bool_] = slice(int(low), int(high))
    else:
        where = (own >= first_layer) & (own < first_layer + layers)
        if not where.any():
            return None
    fields = {name: field[:, where] for name, field in frame.fields.items()}
    return replace(frame, layers=own[where] - first_layer, fields=fields)


def _spread(frames: Sequence[Frame], first: int, columns: int, layers: int) -> Frame:
    """Frames of one rank as one [columns, layers], count 0 where nothing was observed."""
    every = np.arange(layers)
    if len(frames) == 1 and frames[0].steps == columns and np.array_equal(frames[0].layers, every):
        return frames[0]
    names = dict.fromkeys(name for frame in frames for name in frame.fields)
    dense: dict[str, npt.NDArray[Any]] = {
        name: np.full((columns, layers), np.nan if np.dtype(FIELD_DTYPES[name]).kind == "f" else 0, FIELD_DTYPES[name])
        for name in names
    }
    for frame in frames:
        row = frame.first_step - first
        for name, plane in dense.items():
            # Only floats may be missing.
            plane[row : row + frame.steps, frame.layers] = frame.fields.get(name, np.nan)
    return Frame(first_step=first, steps=columns, layers=every, fields=dense)


def joined(frames: Iterable[tuple[int, Frame]]) -> list[tuple[int, Frame]]:
    """(rank, frame) with those of a rank that follow each other as one: the fewer there are, the less it takes to
    spread them out. Nothing else about them changes."""
    groups: dict[tuple[int, str, int], list[Frame]] = {}
    for rank, frame in frames:
        groups.setdefault((rank, frame.placement, frame.copy_of), []).append(frame)
    found: list[tuple[int, Frame]] = []
    for (rank, _, _), group in groups.items():
        alike = all(np.array_equal(frame.layers, group[0].layers) for frame in group[1:])
        run: list[Frame] = []
        for frame in group:
            if run and not (alike and run[-1].first_step + run[-1].steps == frame.first_step):
                found.append((rank, _one(run)))
                run = []
            run.append(frame)
        found.append((rank, _one(run)))
    return found


def _one(run: Sequence[Frame]) -> Frame:
    if len(run) == 1:
        return run[0]
    names = dict.fromkeys(name for frame in run for name in frame.fields)
    fields = {
        name: np.concatenate([frame.fields[name] if name in frame.fields else _absent(name, frame) for frame in run])
        for name in names
    }
    return replace(run[0], steps=sum(frame.steps for frame in run), fields=fields)


def _absent(name: str, frame: Frame) -> npt.NDArray[Any]:
    return np.full((frame.steps, len(frame.layers)), np.nan, FIELD_DTYPES[name])


def _values(frame: Frame) -> Planes:
    """``VALUE`` of a dense frame."""
    fields: dict[str, npt.NDArray[Any]] = {name: field.T for name, field in frame.fields.items()}
    unobserved = fields["count"] <= 0
    planes: Planes = {
        (stat, Agg.VALUE): _exact(fields[name], unobserved) for stat, name in _COUNTS.items() if name in fields
    }
    planes |= {(stat, Agg.VALUE): _plane(fields[name], unobserved) for stat, name in _FLOATS.items() if name in fields}
    finite = fields["count"] - fields["nans"] - fields["infs"]
    with np.errstate(divide="ignore", invalid="ignore"):
        if "sum" in fields:
            planes[Stat.MEAN, Agg.VALUE] = _plane(fields["sum"] / finite, unobserved | (finite <= 0))
        if "sumsq" in fields:
            planes[Stat.RMS, Agg.VALUE] = _plane(np.sqrt(fields["sumsq"] / finite), unobserved | (finite <= 0))
    return planes


def _plane(values: Plane, unobserved: npt.NDArray[np.bool_]) -> Plane:
    """As float32, with no NaN but missing: summaries are of finite elements, and NaNs are counted."""
    with np.errstate(over="ignore"):
        plane = np.array(values, np.float32, order="C")
    gone = np.isnan(plane)
    gone |= unobserved
    if gone.any():
        plane[gone] = MISSING
    return plane


def _exact(counts: Plane, unobserved: npt.NDArray[np.bool_]) -> Plane:
    """Counts as float32 if it holds them all."""
    plane = np.array(counts, np.float32, order="C")
    if plane.size and plane.max() >= 1 << 24 and (plane.astype(np.float64) != counts).any():
        plane = np.array(counts, np.float64, order="C")
        plane[unobserved] = MISSING64
    else:
        plane[unobserved] = MISSING
    return plane


def log2_amax(absmax: Plane, scale: Plane | None, unobserved: npt.NDArray[np.bool_]) -> Plane:
    amax = absmax.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        if scale is not None:
            amax = amax * np.where(np.isnan(scale), 1.0, scale)
        bits = np.log2(amax).astype(np.float32)
    # An all-zero tensor under an infinite scale: the cast gives NaN.
    bits[np.isnan(bits)] = np.inf
    bits[unobserved] = MISSING
    return bits


def _rank_plane(argmax: npt.NDArray[np.integer[Any]]) -> Plane:
    return _plane(argmax.T, argmax.T < 0)


def without_inf(plane: Plane) -> Plane:
    infinite = np.isinf(plane)
    if not infinite.any():
        return plane
    return np.where(infinite, MISSING64 if plane.dtype == np.float64 else MISSING, plane)
