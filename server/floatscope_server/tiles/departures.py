"""Where a rank departs from the others: what is kept of single ranks once all are reduced to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from floatscope_server.frame import Frame
from floatscope_server.tiles.statistics import Stat

__all__ = ["MOST", "Departure", "departures"]

MOST = 64
"""Of a kind in a block and tile; the earliest."""

_OCTAVES = 2.0
_FEWEST_RANKS = 3
"""Of two that differ nobody can say which departs."""


class Departure(NamedTuple):
    """One column of ``models.RankEvent`` each; ``layer`` counts from 0 in the run."""

    step: int
    rank: int
    layer: int
    stat: int
    value: float | None
    median: float | None
    kind: str


def departures(
    frames: Sequence[tuple[int, Frame]], *, first: int, columns: int, first_layer: int, layers: int
) -> list[Departure]:
    """Ranks whose absmax or rms is more than two octaves away from the median over the ranks ("outlier"), and those
    that are not finite ("nonfinite") where another one is; ``frames`` are (rank, frame) in the order of arrival."""
    ranks = sorted({rank for rank, _ in frames})
    if len(ranks) < 2:
        return []
    shape = len(ranks), columns, layers
    planes = {stat: np.full(shape, np.nan, np.float32) for stat in (Stat.ABSMAX, Stat.RMS)}
    nonfinite = np.full(shape, np.nan, np.float32)
    for rank, frame in frames:
        low, high = max(frame.first_step, first), min(frame.first_step + frame.steps, first + columns)
        own = (frame.layers >= first_layer) & (frame.layers < first_layer + layers)
        if low >= high or not own.any():
            continue
        inside = frame.between(low, high - 1)
        count, nans, infs = (inside.fields[name][:, own].astype(np.float64) for name in ("count", "nans", "infs"))
        finite = np.where(count > nans + infs, count - nans - infs, np.nan)
        number, where = ranks.index(rank), (slice(low - first, high - first), frame.layers[own] - first_layer)
        nonfinite[number][where] = np.where(count > 0, nans + infs, np.nan)
        planes[Stat.ABSMAX][number][where] = np.where(np.isnan(finite), np.nan, inside.fields["absmax"][:, own])
        if "sumsq" in inside.fields:
            with np.errstate(invalid="ignore", over="ignore"):
                planes[Stat.RMS][number][where] = np.sqrt(inside.fields["sumsq"][:, own].astype(np.float64) / finite)
    events = [
        _departure(nonfinite, at, Stat.NONFINITE, "nonfinite", ranks, (first, first_layer))
        for at in _where(nonfinite > 0, (nonfinite == 0).any(axis=0))
    ]
    for stat, plane in planes.items():
        events += _outliers(plane, stat, ranks, (first, first_layer))
    return events


def _outliers(
    plane: npt.NDArray[np.float32], stat: Stat, ranks: Sequence[int], origin: tuple[int, int]
) -> list[Departure]:
    known = ~np.isnan(plane)
    enough = known.sum(axis=0) >= _FEWEST_RANKS
    if not enough.any():
        return []
    # All of them unknown: a number stands in, and ``enough`` keeps it out.
    median = np.nanmedian(np.where(enough, plane, np.float32(0)), axis=0)
    factor = np.float32(2.0**_OCTAVES)
    with np.errstate(invalid="ignore", over="ignore"):
        away = known & ((plane > median * factor) | (plane * factor < median))
    return [
        _departure(plane, at, stat, "outlier", ranks, origin)._replace(median=float(median[at[0], at[2]]))
        for at in _where(away, enough)
    ]


def _departure(
    plane: npt.NDArray[np.float32],
    at: tuple[int, int, int],
    stat: Stat,
    kind: str,
    ranks: Sequence[int],
    origin: tuple[int, int],
) -> Departure:
    step, rank, layer = at
    value = float(plane[rank, step, layer])
    return Departure(origin[0] + step, ranks[rank], origin[1] + layer, int(stat), value, None, kind)


def _where(hits: npt.NDArray[np.bool_], allowed: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """(step, rank, layer) of ``hits`` [ranks, steps, layers], the earliest first."""
    steps, ranks, layers = np.nonzero((hits & allowed).transpose(1, 0, 2))
    return list(zip(steps[:MOST].tolist(), ranks[:MOST].tolist(), layers[:MOST].tolist(), strict=True))
