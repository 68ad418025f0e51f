"""Reading chunks of series: any stretch, at the level that answers a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, select
from sqlmodel import Session, SQLModel

from floatscope_server.store.pyramid import Shape
from floatscope_server.tiles.points import Points, Records, records_of

__all__ = ["Extent", "Sealed", "Shelf", "answering", "cover", "dropped_before"]

_BATCH = 400
"""Values in one IN list."""

_NEVER = 1 << 62

_CHUNK = SQLModel.metadata.tables["scalar_chunk"].c
# Made once: to build them takes as long as to run them.
_LISTING = (
    select(_CHUNK.id, _CHUNK.series_id, _CHUNK.level, _CHUNK.first_step, _CHUNK.last_step, _CHUNK.n)
    .where(_CHUNK.series_id.in_(bindparam("series", expanding=True)))
    .order_by(_CHUNK.series_id, _CHUNK.level, _CHUNK.first_step)
)
_DATA = select(_CHUNK.id, _CHUNK.level, _CHUNK.data).where(_CHUNK.id.in_(bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True)
class Shelf:
    """The chunks of one level, ascending: [n] each."""

    id: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    n: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Shelf:
        """From rows of (id, first step, last step, n)."""
        return cls(*np.array(rows, np.int64).reshape(-1, 4).T)

    def touching(self, first: int, last: int) -> slice:
        """Those that hold something of steps ``first`` to ``last``, or may."""
        return slice(int(np.searchsorted(self.last, first)), int(np.searchsorted(self.first, last, side="right")))


@dataclass(frozen=True, slots=True)
class Extent:
    """How many points, and the first and last step that has one. ``coarse``: some are only in records any more."""

    n: int
    first: int
    last: int
    coarse: bool = False


def cover(first: int, last: int, levels: Sequence[int], shape: Shape) -> Iterator[tuple[int, int, int]]:
    """Level, first and last step of stretches that make up ``first`` to ``last``, each of whole cells of its level;
    ``levels`` descend to 0."""
    if not levels:
        return
    level, *lower = levels
    cell = shape.cell(level)
    low, high = -(-first // cell) * cell, (last + 1) // cell * cell
    if low >= high:
        yield from cover(first, last, lower, shape)
        return
    if first < low:
        yield from cover(first, low - 1, lower, shape)
    yield level, low, high - 1
    if high <= last:
        yield from cover(high, last, lower, shape)


def dropped_before(shelves: Mapping[int, Shelf], shape: Shape) -> int:
    """The step before which level 0 has gone and coarser levels are still there; 0 if it has not."""
    fine = shelves.get(0)
    border = int(fine.first[0]) if fine is not None and len(fine.first) else _NEVER
    coarser = (shelf.first[0] // shape.cell(k) < border // shape.cell(k) for k, shelf in shelves.items() if k)
    return border if any(coarser) else 0


def answering(
    shelves: Mapping[int, Shelf], shape: Shape, level: int, low: int, high: int
) -> Iterator[tuple[int, int, int]]:
    """Level, first and last step of stretches that make up ``low`` to ``high``: of ``level`` as far as it reaches back,
    and before that of the finest level that does."""
    own = shelves.get(level)
    begin = int(own.first[0]) if own is not None and len(own.first) else _NEVER
    for above in sorted(k for k in shelves if k > level):
        border = begin // shape.cell(above) * shape.cell(above)
        if low < border and shelves[above].first[0] < border:
            yield from answering(shelves, shape, above, low, min(border - 1, high))
            low = max(low, border)
            break
    if low <= high and own is not None:
        yield level, low, high


class Sealed:
    """The chunks of several series: listed at once, read when they are needed, decoded once."""

    def __init__(self, session: Session, series: Sequence[int], shape: Shape) -> None:
        self._connection = session.connection()
        self._shape = shape
        self._decoded: dict[int, Any] = {}
        listed: dict[int, dict[int, list[tuple[int, int, int, int]]]] = {}
        for start in range(0, len(series), _BATCH):
            some = {"series": series[start : start + _BATCH]}
            for number, of, level, first, last, n in self._connection.execute(_LISTING, some):
                listed.setdefault(of, {}).setdefault(level, []).append((number, first, last, n))
        self._shelves = {of: {level: Shelf.of(rows) for level, rows in levels.items()} for of, levels in listed.items()}

    def last_step(self, series: int) -> int:
        """The last that is sealed; -1 before the first."""
        shelf = self._shelves.get(series, {}).get(0)
        return -1 if shelf is None else int(shelf.last[-1])

    def extent(self, series: int, first: int, last: int) -> Extent | None:
        """Of the points of steps ``first`` to ``last``; None without any."""
        shelves = self._shelves.get(series, {})
        border = dropped_before(shelves, self._shape)
        if border > first:
            records = self.records(series, first, min(last, border - 1), self._shape.cell(max(shelves)))
            fine = self.extent(series, border, last) if border <= last else None
            if not len(records.steps):
                return fine
            known, low, high = int(records.count.sum()), int(records.steps[0]), int(records.last.max())
            return Extent(known + (fine.n if fine else 0), low, fine.last if fine else high, coarse=True)
        shelf = shelves.get(0)
        if shelf is None:
            return None
        at = shelf.touching(first, last)
        begin, end, n = shelf.first[at].copy(), shelf.last[at].copy(), shelf.n[at].copy()
        cut = np.flatnonzero((begin < first) | (end > last))
        self._fetch(shelf.id[at][cut])
        for place in cut.tolist():
            points: Points = self._decoded[int(shelf.id[at][place])].between(first, last)
            n[place] = len(points.steps)
            if n[place]:
                begin[place], end[place] = points.steps[0], points.steps[-1]
        there = np.flatnonzero(n)
        return Extent(int(n.sum()), int(begin[there[0]]), int(end[there[-1]])) if len(there) else None

    def points(self, series: int, first: int, last: int) -> Points:
        """Every point of steps ``first`` to ``last``."""
        shelf = self._shelves.get(series, {}).get(0)
        if shelf is None:
            return Points.none()
        ids = shelf.id[shelf.touching(first, last)]
        self._fetch(ids)
        parts = [self._decoded[number].between(first, last) for number in ids.tolist()]
        return Points.joined([Points.none(), *parts])

    def holding(self, series: int, steps: npt.NDArray[np.int64]) -> int:
        """How many of ``steps``, which ascend, have a point."""
        shelf = self._shelves.get(series, {}).get(0)
        if shelf is None:
            return 0
        low, high = np.searchsorted(steps, shelf.first), np.searchsorted(steps, shelf.last, side="right")
        ids = shelf.id[low < high]
        self._fetch(ids)
        return sum(int(np.isin(steps, self._decoded[number].steps).sum()) for number in ids.tolist())

    def records(self, series: int, first: int, last: int, cell: int) -> Records:
        """Steps ``first`` to ``last`` in stretches of ``cell`` steps or finer, none of which reaches over two cells."""
        shelves = self._shelves.get(series)
        if shelves is None or first > last:
            return Records.none()
        levels = sorted((level for level in shelves if cell % self._shape.cell(level) == 0), reverse=True)
        parts = [Records.none()]
        wanted: list[tuple[int, int, int, npt.NDArray[np.int64]]] = []
        for stretch in cover(first, last, levels or [0], self._shape):
            for level, low, high in answering(shelves, self._shape, *stretch):
                shelf = shelves[level]
                wanted.append((level, low, high, shelf.id[shelf.touching(low, high)]))
        self._fetch(*(ids for _, _, _, ids in wanted))
        for level, low, high, ids in wanted:
            for number in ids.tolist():
                entries = self._decoded[number]
                begin, end = np.searchsorted(entries.steps, (low, high + 1))
                part = entries.take(slice(int(begin), int(end)))
                parts.append(part if level else records_of(part))
        return Records.concatenated(parts)

    def _fetch(self, *ids: npt.NDArray[np.int64]) -> None:
        missing = [number for some in ids for number in some.tolist() if number not in self._decoded]
        for start in range(0, len(missing), _BATCH):
            some = {"ids": missing[start : start + _BATCH]}
            for number, level, data in self._connection.execute(_DATA, some):
                self._decoded[number] = self._shape.decode(level, data)
