"""Several runs on the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from sqlmodel import Session

from floatscope_server.models import Run
from floatscope_server.query.heatmap import HeatMap, HeatQuestion, comparable_cell, heat_map, most_columns
from floatscope_server.query.line import BadQueryError, line_of, run_named, span_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.series import Series, scalar_series
from floatscope_server.query.tails import Tails
from floatscope_server.query.window import TileReader

__all__ = ["MOST_RUNS", "compared_heat_maps", "compared_scalars", "runs_named"]

MOST_RUNS = 8


def runs_named(session: Session, names: Sequence[str]) -> list[Run]:
    """The runs in the order of ``names``; ``BadQueryError`` for none or too many of them."""
    if not 1 <= len(names) <= MOST_RUNS:
        raise BadQueryError(f"compare takes 1 to {MOST_RUNS} runs, by commas")
    return [run_named(session, name) for name in names]


def compared_heat_maps(session: Session, reader: TileReader, runs: Sequence[Run], asked: HeatQuestion) -> list[HeatMap]:
    """One of each run; columns of the same number begin at the same step."""
    spans = [span_of(line_of(session, run.id or 0, asked.attempt), asked.first, asked.last) for run in runs]
    known = [span for span in spans if span is not None]
    cell = 1
    if known:
        columns = min(asked.columns, *(most_columns(session, run) for run in runs))
        cell = cell_size(min(first for first, _ in known), max(last for _, last in known), columns)
        cell = max(comparable_cell(session, reader, run, asked, cell) for run in runs)
    return [heat_map(session, reader, run, asked, cell=cell) for run in runs]


def compared_scalars(
    session: Session,
    runs: Sequence[Run],
    *,
    names: Iterable[str] | None,
    first: int | None,
    last: int | None,
    points: int,
    tails: Tails | None = None,
) -> list[list[Series]]:
    """The series of each run, all of one name in cells of the same size; ``tails`` are those of the server."""
    wanted = None if names is None else list(names)
    found = [
        scalar_series(session, run, names=wanted, first=first, last=last, points=points, tails=tails) for run in runs
    ]
    cells: dict[str, int] = {}
    for series in (series for of_run in found for series in of_run):
        cells[series.name] = max(cells.get(series.name, 1), series.cell)
    return [[_in_cells(series, cells[series.name]) for series in of_run] for of_run in found]


def _in_cells(series: Series, cell: int) -> Series:
    """``series`` in wider cells; the mean is that of the narrower cells' means."""
    if series.cell == cell or not len(series.steps):
        return replace(series, cell=cell)
    numbers = series.steps // cell
    starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    finite = np.isfinite(series.values)
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(finite, series.values, 0.0), starts)
    maxima = np.maximum.reduceat(series.max, starts)
    return replace(
        series,
        cell=cell,
        steps=numbers[starts] * cell,
        values=np.where(counts > 0, sums / np.maximum(counts, 1), maxima),
        min=np.fmin.reduceat(series.min, starts),
        max=maxima,
    )
