"""Pooling steps to columns so that the worst step of each stays visible."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from floatscope_server.jsontext import is_missing
from floatscope_server.query.fields import MISSING

__all__ = ["cell_size", "merge_worst", "pool_steps"]

Plane = npt.NDArray[np.float32]


def cell_size(first: int, last: int, columns: int) -> int:
    """The smallest power of two of steps per cell with which ``first`` to ``last`` fit ``columns`` aligned cells."""
    cell = 1
    while last // cell - first // cell + 1 > columns:
        cell *= 2
    return cell


def merge_worst(a: Plane, b: Plane, worst: str) -> Plane:
    """Elementwise the worse of two planes; what one has not observed the other decides."""
    pair = np.concatenate((a.reshape(1, -1), b.reshape(1, -1)))
    return _reduce(pair, np.zeros(1, np.int64), worst).reshape(a.shape)


def pool_steps(plane: Plane, cells: npt.NDArray[np.int64], worst: str) -> tuple[npt.NDArray[np.int64], Plane]:
    """``plane`` [steps, layers], whose steps lie in ascending ``cells``, by cell: the distinct ones, [cells, layers].

    Only steps that exist take room, however many a cell spans.
    """
    starts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    return cells[starts], plane if len(starts) == len(cells) else _reduce(plane, starts, worst)


def _reduce(plane: Plane, starts: npt.NDArray[np.int64], worst: str) -> Plane:
    """Rows from each of ``starts`` to the next: an observed NaN stays when the worst is the largest, and loses when it
    is the smallest."""
    pooled: Plane = (np.fmin if worst == "min" else np.fmax).reduceat(plane, starts, axis=0)
    nans = np.isnan(plane)
    if not nans.any():
        return pooled
    missing = is_missing(plane) & nans
    pooled = np.where(np.logical_and.reduceat(missing, starts, axis=0), MISSING, pooled)
    observed = nans & ~missing
    if observed.any():
        sticky = np.logical_or.reduceat(observed, starts, axis=0)
        if worst == "min":
            sticky &= np.logical_and.reduceat(nans, starts, axis=0)
        pooled = np.where(sticky, np.float32(np.nan), pooled)
    return pooled.astype(np.float32)
