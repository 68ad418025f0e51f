"""What a chunk of a series holds: points, lossless, or records of a stretch of steps each.

A record is ``first`` and ``last`` step, smallest and largest value (infinities among them, NaNs not), mean of the
finite ones, and how many points there were, how many of them finite, how many NaN: so that a NaN of one step is visible
at every zoom, and figures that leave NaNs out can be had too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.columns import decode_columns, encode_columns

__all__ = ["Points", "Records", "records_of"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice

_POINTS, _RECORDS = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """``values`` by ``steps``, which ascend and are distinct."""

    steps: Int64
    values: Float64

    @classmethod
    def none(cls) -> Points:
        """No points."""
        return cls(np.empty(0, np.int64), np.empty(0))

    @classmethod
    def joined(cls, parts: Sequence[Points]) -> Points:
        """All of ``parts``, whatever their order; of a step that is there more than once the last one."""
        steps = np.concatenate([part.steps for part in parts])
        values = np.concatenate([part.values for part in parts])
        if len(steps) < 2 or (np.diff(steps) > 0).all():
            return cls(steps, values)
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        newest = np.append(steps[1:] != steps[:-1], True)
        return cls(steps[newest], values[newest])

    def take(self, index: Index) -> Points:
        """Some of them."""
        return Points(self.steps[index], self.values[index])

    def between(self, first: int, last: int) -> Points:
        """Those of steps ``first`` to ``last``."""
        low, high = np.searchsorted(self.steps, (first, last + 1))
        return self.take(slice(int(low), int(high)))

    def encoded(self) -> bytes:
        """As bytes; every NaN becomes the canonical one."""
        return encode_columns(_POINTS, (self.steps, np.where(np.isnan(self.values), np.nan, self.values)))

    @classmethod
    def decoded(cls, data: bytes) -> Points:
        """From bytes; ``TileError`` if they are damaged."""
        return cls(*decode_columns(_POINTS, data))

    def pooled(self, cell: int) -> Records:
        """A record for each stretch of ``cell`` steps that has points, aligned to multiples of it."""
        return records_of(self).pooled(cell)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """``steps`` are where the stretches begin; they ascend. ``min`` and ``max`` are NaN where all points are."""

    steps: Int64
    first: Int64
    last: Int64
    count: Int64
    finite: Int64
    nans: Int64
    min: Float64
    max: Float64
    mean: Float64

    @classmethod
    def none(cls) -> Records:
        """No records."""
        return records_of(Points.none())

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """All of ``parts``, whatever their order; of a stretch that is there more than once the last one."""
        return cls.concatenated(parts)._sorted(newest=True)

    @classmethod
    def concatenated(cls, parts: Sequence[Records]) -> Records:
        """All of ``parts`` one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))

    def _sorted(self, *, newest: bool) -> Records:
        if len(self.steps) < 2 or (np.diff(self.steps) > 0).all():
            return self
        ordered = self.take(np.argsort(self.steps, kind="stable"))
        return ordered.take(np.append(ordered.steps[1:] != ordered.steps[:-1], True)) if newest else ordered

    def take(self, index: Index) -> Records:
        """Some of them."""
        return Records(*(getattr(self, name)[index] for name in _NAMES))

    def encoded(self) -> bytes:
        """As bytes."""
        ints = (self.steps, self.first - self.steps, self.last - self.first, self.count)
        odd = (self.count - self.finite, self.nans)
        return encode_columns(_RECORDS, (*ints, *odd, self.min, self.max, self.mean))

    @classmethod
    def decoded(cls, data: bytes) -> Records:
        """From bytes; ``TileError`` if they are damaged."""
        steps, ahead, length, count, odd, nans, low, high, mean = decode_columns(_RECORDS, data)
        first = steps + ahead
        return cls(steps, first, first + length, count, count - odd, nans, low, high, mean)

    def pooled(self, cell: int) -> Records:
        """These added up to stretches of ``cell`` steps, aligned to multiples of it."""
        if not len(self.steps):
            return self
        ordered = self._sorted(newest=False)
        cells = ordered.steps // cell * cell
        starts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
        count, finite, nans = (
            np.add.reduceat(column, starts) for column in (ordered.count, ordered.finite, ordered.nans)
        )
        # Each mean by its share of the points: a sum of large values could leave the range.
        share = ordered.finite / np.maximum(np.repeat(finite, np.diff(np.append(starts, len(cells)))), 1)
        weighted = np.where(ordered.finite > 0, ordered.mean, 0.0) * share
        mean = np.where(finite > 0, np.add.reduceat(weighted, starts), np.nan)
        return Records(
            steps=cells[starts],
            first=np.minimum.reduceat(ordered.first, starts),
            last=np.maximum.reduceat(ordered.last, starts),
            count=count,
            finite=finite,
            nans=nans,
            min=np.fmin.reduceat(ordered.min, starts),
            max=np.fmax.reduceat(ordered.max, starts),
            mean=mean,
        )


_NAMES = tuple(field.name for field in fields(Records))


def records_of(points: Points) -> Records:
    """A record for each point."""
    finite = np.isfinite(points.values)
    return Records(
        steps=points.steps,
        first=points.steps,
        last=points.steps,
        count=np.ones(len(finite), np.int64),
        finite=finite.astype(np.int64),
        nans=np.isnan(points.values).astype(np.int64),
        min=points.values,
        max=points.values,
        mean=np.where(finite, points.values, np.nan),
    )
