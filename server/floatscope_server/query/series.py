"""Scalars by step with their envelope, and device samples by time."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from sqlalchemy import func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from floatscope_server.models import Run, ScalarSeries, WalFrame
from floatscope_server.query.frames import stored_frames
from floatscope_server.query.line import Stretch, canonical_line, stream_id
from floatscope_server.query.pool import cell_size
from floatscope_server.store.parts import MAX_STEP, NANOSECONDS
from floatscope_server.store.replay import DEVICES, SCALARS

__all__ = ["Series", "device_samples", "raw_series", "scalar_figures", "scalar_series"]


_Points = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Steps and values."""


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
class _Figures:
    n: int
    last_step: int
    last: float
    min: float
    max: float

    @classmethod
    def of(cls, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> _Figures:
        return cls(
            n=len(steps),
            last_step=int(steps[-1]),
            last=float(values[-1]),
            min=float(np.fmin.reduce(values)),
            max=float(np.fmax.reduce(values)),
        )


def raw_series(session: Session, run_id: int, names: Iterable[str] | None, first: int, last: int) -> dict[str, _Points]:
    """Every point of the canonical line from the lowest rank that has the name; a step that came twice counts last."""
    stream = stream_id(session, run_id, "scalar")
    if stream is None:
        return {}
    wanted = None if names is None else set(names)
    pieces: dict[str, dict[int, list[_Points]]] = {}
    for stretch in canonical_line(session, run_id):
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, first), last=min(stretch.last, last))
        if part.first <= part.last:
            _collect(session, stream, part, wanted, pieces)
    return {name: _joined(by_rank[min(by_rank)]) for name, by_rank in sorted(pieces.items())}


def _collect(
    session: Session,
    stream: int,
    part: Stretch,
    wanted: Container[str] | None,
    pieces: dict[str, dict[int, list[_Points]]],
) -> None:
    for stored in stored_frames(session, stream, part, SCALARS.decode):
        for series in stored.content:
            if wanted is not None and series.name not in wanted:
                continue
            steps = np.frombuffer(series.steps, "<i8")
            keep = (steps >= part.first) & (steps <= part.last)
            values = np.frombuffer(series.values, "<f8")
            pieces.setdefault(series.name, {}).setdefault(stored.rank, []).append((steps[keep], values[keep]))


def scalar_figures(session: Session, run_id: int) -> dict[str, dict[str, object]]:
    """{name: {n, last_step, last, min, max}} of the canonical line, from the lowest rank that has the name.

    Kept figures answer for an attempt that is on the line as a whole and came in order; others are read.
    """
    stream = stream_id(session, run_id, "scalar")
    if stream is None:
        return {}
    line = canonical_line(session, run_id)
    kept = session.exec(select(ScalarSeries).where(ScalarSeries.run_id == run_id)).all()
    figures: dict[str, dict[int, list[_Figures]]] = {}
    for stretch in line:
        unkept: dict[str, None] = {}
        for row in kept:
            if row.attempt != stretch.attempt or row.first_step > stretch.last:
                continue
            if row.ordered and row.last_step <= stretch.last:
                last, low, high = (math.nan if value is None else value for value in (row.last, row.min, row.max))
                figures.setdefault(row.name, {}).setdefault(row.rank, []).append(
                    _Figures(n=row.n, last_step=row.last_step, last=last, min=low, max=high)
                )
            else:
                unkept[row.name] = None
        pieces: dict[str, dict[int, list[_Points]]] = {}
        if unkept:
            _collect(session, stream, stretch, unkept, pieces)
        for name, by_rank in pieces.items():
            for rank, points in by_rank.items():
                steps, values = _joined(points)
                if len(steps):
                    # A rank that is kept and read is the same either way.
                    known = figures.setdefault(name, {}).setdefault(rank, [])
                    if not known or known[-1].last_step < steps[0]:
                        known.append(_Figures.of(steps, values))
    shown: dict[str, dict[str, object]] = {}
    for name, ranks in sorted(figures.items()):
        parts = ranks[min(ranks)]
        shown[name] = {
            "n": sum(part.n for part in parts),
            "last_step": parts[-1].last_step,
            "last": parts[-1].last,
            "min": float(np.fmin.reduce([part.min for part in parts])),
            "max": float(np.fmax.reduce([part.max for part in parts])),
        }
    return shown


def _joined(pieces: list[_Points]) -> _Points:
    steps = np.concatenate([s for s, _ in pieces])
    values = np.concatenate([v for _, v in pieces])
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    if not len(steps):
        return steps, values
    newest = np.append(steps[1:] != steps[:-1], True)
    return steps[newest], values[newest]


def scalar_series(
    session: Session, run: Run, *, names: Iterable[str] | None, first: int | None, last: int | None, points: int
) -> list[Series]:
    """Each series in at most ``points`` cells, aligned to multiples of the cell."""
    assert run.id is not None
    found = raw_series(session, run.id, names, 0 if first is None else first, MAX_STEP if last is None else last)
    return [_pooled(name, steps, values, points) for name, (steps, values) in found.items() if len(steps)]


def _pooled(name: str, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], points: int) -> Series:
    cell = 1 if len(steps) <= points else cell_size(int(steps[0]), int(steps[-1]), points)
    if cell == 1:
        return Series(name=name, cell=1, n=len(steps), steps=steps, values=values, min=values, max=values)
    cells = steps // cell
    starts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    maxima = np.maximum.reduceat(values, starts)  # a NaN stays: one bad step is visible at every zoom
    minima = np.fmin.reduceat(values, starts)
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), maxima)
    return Series(name=name, cell=cell, n=len(steps), steps=cells[starts] * cell, values=mean, min=minima, max=maxima)


def device_samples(session: Session, run: Run, *, seconds: float) -> list[dict[str, object]]:
    """Samples of the last ``seconds`` before the newest of their rank, newest last, each with its rank."""
    assert run.id is not None
    stream = stream_id(session, run.id, "gpu")
    if stream is None:
        return []
    # Each rank by its own newest reading, which is the one that came last: a clock that is ahead must hide neither
    # other ranks nor what its own rank sends once it is right.
    last = select_columns(func.max(WalFrame.id)).where(col(WalFrame.stream_id) == stream).group_by(col(WalFrame.rank))
    newest = session.execute(
        select_columns(col(WalFrame.rank), col(WalFrame.first), col(WalFrame.n)).where(col(WalFrame.id).in_(last))
    ).all()
    samples: list[dict[str, object]] = []
    for attempt in session.exec(select(WalFrame.attempt).where(WalFrame.stream_id == stream).distinct()).all():
        for rank, first, n in newest:
            end = first + n
            stretch = Stretch(attempt=attempt, first=int(end - 1 - seconds), last=end)
            for stored in stored_frames(session, stream, stretch, DEVICES.decode, rank=rank):
                samples += [
                    {**msgspec.structs.asdict(device), "rank": rank}
                    for device in stored.content
                    if end - 1 - seconds <= device.time_ns / NANOSECONDS < end
                ]
    samples.sort(key=lambda sample: (sample["time_ns"], sample["rank"], sample["index"]))
    return samples
