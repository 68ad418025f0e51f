"""Scalars by step with their envelope: from chunks, and from the open tail what is not sealed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam
from sqlalchemy import select as select_columns
from sqlmodel import Session, SQLModel

from floatscope_server.models import Run
from floatscope_server.query.line import Stretch, canonical_line, stream_id
from floatscope_server.query.memory import now_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.sealed import Extent, Sealed
from floatscope_server.query.tails import Tails
from floatscope_server.store.parts import MAX_STEP
from floatscope_server.store.pyramid import Shape, cell_of
from floatscope_server.store.shapes import SCALARS
from floatscope_server.tiles.points import Points, Records, records_of

__all__ = ["Piece", "Series", "newest_scalars", "pooled_series", "raw_series", "scalar_figures", "scalar_series"]

_MOST_READ_ANEW = 1 << 18
"""Steps around late points that are read in full, so that of a step that came twice the later one is shown alone.
Beyond, both are shown until the late ones are sealed."""


_TABLE = SQLModel.metadata.tables["scalar_series"].c
_SERIES = select_columns(
    _TABLE.id, _TABLE.attempt, _TABLE.rank, _TABLE.name, _TABLE.first_step, _TABLE.last_step, _TABLE.sealed
).where(_TABLE.run_id == bindparam("run"), _TABLE.stream == "scalar")


_FIGURES = select_columns(
    _TABLE.attempt,
    _TABLE.rank,
    _TABLE.name,
    _TABLE.n,
    _TABLE.first_step,
    _TABLE.last_step,
    _TABLE.last,
    _TABLE.min,
    _TABLE.max,
    _TABLE.ordered,
).where(_TABLE.run_id == bindparam("run"), _TABLE.stream == "scalar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A scalar in cells of ``cell`` steps: where each begins, its mean, its extremes; ``n`` points in all."""

    name: str
    cell: int
    n: int
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]

    def meta(self) -> dict[str, object]:
        """Everything but the arrays."""
        return {"name": self.name, "cell": self.cell, "n": self.n}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays by name."""
        return {"steps": self.steps, "values": self.values, "min": self.min, "max": self.max}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one attempt gives a series: steps ``first`` to ``last`` of chunks of ``series``, and ``tail``, which holds
    the rest of them and of a step that is in both what stands."""

    sealed: Sealed
    series: int
    first: int
    last: int
    tail: Points

    @property
    def _late(self) -> Points:
        return self.tail.between(0, self.sealed.last_step(self.series))

    def extent(self) -> Extent | None:
        """Over both; None without points."""
        found = self.sealed.extent(self.series, self.first, self.last)
        steps = self.tail.steps
        if not len(steps):
            return found
        if found is None:
            return Extent(len(steps), int(steps[0]), int(steps[-1]))
        twice = self.sealed.holding(self.series, self._late.steps)
        first, last = min(found.first, int(steps[0])), max(found.last, int(steps[-1]))
        return Extent(found.n + len(steps) - twice, first, last, coarse=found.coarse)

    def points(self) -> Points:
        """All of them."""
        return Points.joined([self.sealed.points(self.series, self.first, self.last), self.tail])

    def records(self, cell: int) -> Records:
        """In stretches of ``cell`` steps or finer, in no order."""
        tail, start = self.tail, self.first
        parts: list[Records] = []
        cells = np.unique(self._late.steps // cell)
        if len(cells) * cell <= _MOST_READ_ANEW:
            for at in cells.tolist():
                low, high = max(self.first, at * cell), min(self.last, at * cell + cell - 1)
                both = (self.sealed.points(self.series, low, high), tail.between(low, high))
                parts.append(self.sealed.records(self.series, start, low - 1, cell))
                parts.append(records_of(Points.joined(both)))
                start = high + 1
            tail = tail.take(~np.isin(tail.steps // cell, cells))
        parts.append(self.sealed.records(self.series, start, self.last, cell))
        return Records.concatenated([*parts, records_of(tail)])


def _pieces(
    session: Session, run_id: int, names: Iterable[str] | None, first: int, last: int, tails: Tails | None
) -> dict[str, list[Piece]]:
    """By name, along the canonical line; of the lowest rank that has the name."""
    stream = stream_id(session, run_id, "scalar")
    if stream is None:
        return {}
    line = [
        Stretch(attempt=part.attempt, first=max(part.first, first), last=min(part.last, last))
        for part in canonical_line(session, run_id)
        if part.first <= last and part.last >= first
    ]
    wanted = None if names is None else set(names)
    of_attempt: dict[int, list[Any]] = {}
    lowest: dict[str, int] = {}
    for row in session.connection().execute(_SERIES, {"run": run_id}):
        if wanted is None or row.name in wanted:
            of_attempt.setdefault(row.attempt, []).append(row)
            if any(
                part.attempt == row.attempt and row.first_step <= part.last and row.last_step >= part.first
                for part in line
            ):
                lowest[row.name] = min(row.rank, lowest.get(row.name, row.rank))
    chosen = [
        (part, row)
        for part in line
        for row in of_attempt.get(part.attempt, ())
        if lowest.get(row.name) == row.rank and row.first_step <= part.last and row.last_step >= part.first
    ]
    sealed = Sealed(session, [row.id for _, row in chosen if row.sealed], SCALARS)
    kept = tails or Tails()
    tail_of = {
        key: kept.points(session, stream, *key) for key in {(part.attempt, int(row.rank)) for part, row in chosen}
    }
    found: dict[str, list[Piece]] = {}
    for part, row in chosen:
        tail = tail_of[part.attempt, row.rank].get(row.name, Points.none())
        found.setdefault(row.name, []).append(
            Piece(
                sealed=sealed,
                series=row.id,
                first=part.first,
                last=part.last,
                tail=tail.between(part.first, part.last),
            )
        )
    return dict(sorted(found.items()))


def raw_series(
    session: Session, run_id: int, names: Iterable[str] | None, first: int, last: int
) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Every point of the canonical line from the lowest rank that has the name; a step that came twice counts last."""
    found = {
        name: Points.joined([piece.points() for piece in pieces])
        for name, pieces in _pieces(session, run_id, names, first, last, None).items()
    }
    return {name: (points.steps, points.values) for name, points in found.items()}


def scalar_figures(session: Session, run_id: int, tails: Tails | None = None) -> dict[str, dict[str, object]]:
    """{name: {n, last_step, last, min, max}} of the canonical line, from the lowest rank that has the name.

    Kept figures answer for a series that one attempt alone has and that came in order; others are read.
    """
    line = canonical_line(session, run_id)
    kept: dict[str, list[Any]] = {}
    for row in _figures(session, run_id):
        if any(part.attempt == row.attempt and row.first_step <= part.last for part in line):
            kept.setdefault(row.name, []).append(row)
    ends = {part.attempt: part.last for part in line}
    whole: dict[str, Any] = {}
    for name, rows in kept.items():
        row = min(rows, key=lambda row: row.rank)
        of_rank = [other for other in rows if other.rank == row.rank]
        if len(of_rank) == 1 and row.ordered and row.last_step <= ends[row.attempt]:
            whole[name] = row
    shown: dict[str, dict[str, object]] = {}
    for name, row in whole.items():
        last, low, high = (math.nan if value is None else value for value in (row.last, row.min, row.max))
        shown[name] = {"n": row.n, "last_step": row.last_step, "last": last, "min": low, "max": high}
    unkept = kept.keys() - whole.keys()
    for name, pieces in _pieces(session, run_id, unkept, 0, MAX_STEP, tails).items() if unkept else ():
        records = Records.concatenated([piece.records(_FIGURES_CELL) for piece in pieces]).pooled(MAX_STEP)
        if len(records.steps):
            last_step = int(records.last[0])
            holder = next(piece for piece in reversed(pieces) if piece.first <= last_step <= piece.last)
            value = holder.tail.between(last_step, last_step).values
            if not len(value):
                value = holder.sealed.points(holder.series, last_step, last_step).values
            shown[name] = {
                "n": int(records.count[0]),
                "last_step": last_step,
                "last": float(value[0]),
                "min": float(records.min[0]),
                "max": float(records.max[0]),
            }
    return dict(sorted(shown.items()))


def newest_scalars(session: Session, run_id: int, tails: Tails | None = None) -> dict[str, tuple[int, float]]:
    """Step and value of the newest point of each scalar, as ``scalar_figures`` has them.

    The kept figures of the last attempt that has a series say it, unless a later one has replaced its end.
    """
    line = canonical_line(session, run_id)
    place = {part.attempt: at for at, part in enumerate(line)}
    kept: dict[str, list[Any]] = {}
    for row in _figures(session, run_id):
        if row.attempt in place and row.first_step <= line[place[row.attempt]].last:
            kept.setdefault(row.name, []).append(row)
    found: dict[str, tuple[int, float]] = {}
    for name, rows in kept.items():
        rank = min(row.rank for row in rows)
        row = max((row for row in rows if row.rank == rank), key=lambda row: place[row.attempt])
        if row.last_step > line[place[row.attempt]].last:
            break
        found[name] = row.last_step, math.nan if row.last is None else row.last
    else:
        return dict(sorted(found.items()))
    figures = scalar_figures(session, run_id, tails)
    return {name: (of["last_step"], of["last"]) for name, of in figures.items()}  # type: ignore[misc]


def _figures(session: Session, run_id: int) -> Iterable[Any]:
    now = now_of(session)
    if now is not None:
        return now.series.values()
    return session.connection().execute(_FIGURES, {"run": run_id})


_FIGURES_CELL = cell_of(4)


def scalar_series(
    session: Session,
    run: Run,
    *,
    names: Iterable[str] | None,
    first: int | None,
    last: int | None,
    points: int,
    tails: Tails | None = None,
) -> list[Series]:
    """Each series in at most ``points`` cells, aligned to multiples of the cell; ``tails`` are those of the server."""
    assert run.id is not None
    found = _pieces(session, run.id, names, 0 if first is None else first, MAX_STEP if last is None else last, tails)
    shown = (pooled_series(name, pieces, points, SCALARS) for name, pieces in found.items())
    return [series for series in shown if series is not None]


def pooled_series(name: str, pieces: list[Piece], points: int, shape: Shape) -> Series | None:
    """A series in at most ``points`` cells of a power of two of units; None if nothing is there."""
    extents = [extent for piece in pieces if (extent := piece.extent()) is not None]
    if not extents:
        return None
    n = sum(extent.n for extent in extents)
    if n <= points and not any(extent.coarse for extent in extents):
        all_points = Points.joined([piece.points() for piece in pieces])
        values = all_points.values
        return Series(name=name, cell=1, n=n, steps=all_points.steps, values=values, min=values, max=values)
    first, last = min(extent.first for extent in extents), max(extent.last for extent in extents)
    cell = cell_size(first // shape.unit, last // shape.unit, points) * shape.unit
    records = Records.concatenated([piece.records(cell) for piece in pieces]).pooled(cell)
    # One bad step is visible at every zoom.
    highest = np.where(records.nans > 0, np.nan, records.max)
    return Series(
        name=name,
        cell=cell,
        n=n,
        steps=records.steps,
        values=np.where(records.finite > 0, records.mean, highest),
        min=records.min,
        max=highest,
    )
