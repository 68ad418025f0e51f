"""Pooling steps to columns so that the worst step of each stays visible."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    """Rows from each of ``starts`` to the next; what was not observed gives way to what was."""
    pooled: Plane = (np.fmin if worst == "min" else np.fmax).reduceat(plane, starts, axis=0)
    # fmin and fmax may give either of two NaNs: there is one, and it means "not observed".
    pooled[np.isnan(pooled)] = MISSING
    return pooled
