"""Pooling steps to columns so that the worst step of each stays visible."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from floatscope_server.query.fields import MISSING

__all__ = ["cell_size", "merge_worst", "pool_columns"]

Plane = npt.NDArray[np.float32]


def cell_size(first: int, last: int, columns: int) -> int:
    """The smallest power of two of steps per cell with which ``first`` to ``last`` fit ``columns`` aligned cells."""
    cell = 1
    while last // cell - first // cell + 1 > columns:
        cell *= 2
    return cell


def merge_worst(a: Plane, b: Plane, worst: str) -> Plane:
    """Elementwise the worse of two planes; what one has not observed the other decides."""
    return _reduce(np.stack((a, b)), worst)


def pool_columns(plane: Plane, cell: int, worst: str) -> Plane:
    """``plane`` [steps, layers], its first step aligned to ``cell``, as [columns, layers]."""
    if cell == 1:
        return plane
    steps, layers = plane.shape
    columns = -(-steps // cell)
    if columns * cell != steps:
        plane = np.concatenate((plane, np.full((columns * cell - steps, layers), MISSING, np.float32)))
    return _reduce(plane.reshape(columns, cell, layers).swapaxes(0, 1), worst)


def _reduce(stack: Plane, worst: str) -> Plane:
    """Over the first axis; what was not observed gives way to what was."""
    pooled: Plane = (np.fmin if worst == "min" else np.fmax).reduce(stack, axis=0)
    # fmin and fmax may give either of two NaNs: there is one, and it means "not observed".
    pooled[np.isnan(pooled)] = MISSING
    return pooled
