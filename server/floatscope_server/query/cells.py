"""Cells of a window and how columns of any width go into them, by the rules of ``tiles.pool``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.pool import pool_max, pool_min
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Cells", "Wanted", "empty_plane"]

Plane = npt.NDArray[Any]
Wanted = tuple[Stat, Agg]
Rows = slice | npt.NDArray[np.intp]


_SLICED = 32
"""Up to this factor strided slices are several times faster than any other way,"""
_PAIRED = 16
"""but from this one on pairs of neighbours are faster by a quarter."""
_FEW = 4096
"""With so few columns of layers a call takes longer than what it computes."""


def empty_plane(shape: tuple[int, int], dtype: npt.DTypeLike = np.float32) -> Plane:
    """Missing throughout."""
    wide = np.dtype(dtype) == np.float64
    return np.full(shape, MISSING64 if wide else MISSING, np.float64 if wide else np.float32)


@dataclass(slots=True)
class Cells:
    """``count`` cells of ``cell`` steps each from step ``origin`` on, a multiple of ``cell``, of ``layers`` layers.

    ``MAX``, ``MIN``, ``VALUE`` and ``RANK`` keep one plane [layers, cells]; ``MEAN`` keeps sums and weights.
    """

    origin: int
    cell: int
    count: int
    layers: int
    planes: dict[Wanted, Plane] = field(default_factory=dict)
    _weights: dict[Wanted, npt.NDArray[np.float64]] = field(default_factory=dict)
    _nan: bool = False

    @classmethod
    def of(cls, wanted: Iterable[Wanted], *, origin: int, cell: int, count: int, layers: int) -> Cells:
        """All missing."""
        cells = cls(origin=origin, cell=cell, count=count, layers=layers)
        for stat, agg in wanted:
            if agg == Agg.MEAN:
                cells.planes[stat, agg] = np.zeros((layers, count))
                cells._weights[stat, agg] = np.zeros((layers, count))
            else:
                cells.planes[stat, agg] = empty_plane((layers, count))
        return cells

    def add(self, what: Wanted, rows: Rows, columns: Plane, *, first: int, width: int, nan: bool = False) -> None:
        """Take in ``columns`` [those rows, n] of ``width`` steps each, the first of which begins at step ``first``.

        ``nan``: there may be observed NaNs in it. Of ``VALUE`` and ``RANK`` the later column of a cell stands.
        """
        at, folded = self.fold(what[1], columns, first=first, width=width, nan=nan)
        if not folded.shape[1]:
            return
        plane = self.planes[what]
        if folded.dtype == np.float64 and plane.dtype == np.float32:
            # A count that float32 cannot hold.
            plane = self.planes[what] = np.where(is_missing(plane), MISSING64, plane.astype(np.float64))
        place = rows, slice(at, at + folded.shape[1])
        held = plane[place]
        self._nan = self._nan or nan
        if what[1] in (Agg.MAX, Agg.MIN):
            how = np.fmax if what[1] == Agg.MAX else np.fmin
            if self._nan:
                both = np.stack((held, folded), axis=-1).reshape(len(held), -1)
                plane[place] = _reduced(what[1], both, 2, nan=True)
            elif isinstance(rows, slice):
                how(held, folded, out=held)
            else:
                plane[place] = how(held, folded)
        else:
            plane[place] = np.where(is_missing(folded), held, folded)

    def add_mean(self, what: Wanted, rows: Rows, means: Plane, weights: Plane, *, first: int, width: int) -> None:
        """Take in ``means`` of so many steps as ``weights`` say, both [those rows, n]; what is not finite in either
        weighs nothing."""
        counted = np.isfinite(means) & np.isfinite(weights)
        weight = np.where(counted, weights, 0).astype(np.float64)
        total = np.where(counted, means, 0) * weight
        at, folded = self.fold(Agg.SUM, total, first=first, width=width)
        _, of = self.fold(Agg.SUM, weight, first=first, width=width)
        place = rows, slice(at, at + folded.shape[1])
        self.planes[what][place] += folded
        self._weights[what][place] += of

    def finish(self) -> dict[Wanted, Plane]:
        """The planes, with the one NaN for missing and the one for an observed NaN."""
        for what, plane in self.planes.items():
            if what[1] == Agg.MEAN:
                weights = self._weights[what]
                with np.errstate(invalid="ignore", divide="ignore"):
                    mean = (plane / weights).astype(np.float32)
                mean[weights == 0] = MISSING
                self.planes[what] = mean
            elif plane.dtype == np.float32:
                gone = np.isnan(plane)
                if gone.any():
                    # fmax and fmin give either of two NaNs, and may change the bits of one.
                    bits = plane.view(np.uint32)
                    plane[gone & (bits << np.uint32(10) != 0)] = MISSING
        return self.planes

    def fold(self, agg: Agg, columns: Plane, *, first: int, width: int, nan: bool = False) -> tuple[int, Plane]:
        """``columns``, as of ``add``, in cells: the number of the first one, and [rows, cells from it on]."""
        if width >= self.cell:
            repeats = width // self.cell
            at = (first - self.origin) // self.cell
            spread = columns if repeats == 1 else np.repeat(columns, repeats, axis=1)
            low, high = max(0, -at), min(spread.shape[1], self.count - at)
            return at + low, spread[:, low : max(low, high)]
        factor = self.cell // width
        offset = (first - self.origin) // width
        at, lead = divmod(offset, factor)
        if agg in (Agg.MAX, Agg.MIN) and columns.size and not any(columns.strides):
            return at, np.broadcast_to(columns[:1, :1], (len(columns), -(-(lead + columns.shape[1]) // factor)))
        pieces = []
        # A cell may be far wider than what there is of it: it is not filled up.
        head = min(factor - lead, columns.shape[1]) if lead else 0
        tail = head + (columns.shape[1] - head) // factor * factor
        for low, high in ((0, head), (tail, columns.shape[1])):
            if high > low:
                pieces.append((low, _reduced(agg, columns[:, low:high], high - low, nan=nan)))
        if tail > head:
            pieces.append((head, _reduced(agg, columns[:, head:tail], factor, nan=nan)))
        if len(pieces) == 1:
            return at, pieces[0][1]
        return at, np.concatenate([piece for _, piece in sorted(pieces, key=lambda piece: piece[0])], axis=1)


def _reduced(agg: Agg, columns: Plane, factor: int, *, nan: bool) -> Plane:
    """Every ``factor`` columns as one."""
    if nan and agg in (Agg.MAX, Agg.MIN):
        return (pool_max if agg == Agg.MAX else pool_min)(columns, factor)
    if agg in (Agg.MAX, Agg.MIN, Agg.SUM):
        how = {Agg.MAX: np.fmax, Agg.MIN: np.fmin, Agg.SUM: np.add}[agg]
        if columns.size <= _FEW:
            # What counts is how many calls are made.
            if columns.shape[1] == factor:
                return _one_cell(how, columns)
            while factor % 2 == 0:
                columns, factor = how(columns[:, ::2], columns[:, 1::2]), factor // 2
        while factor > _SLICED and factor % 2 == 0:
            # Halves lie next to each other; a reduction along the last axis would look for NaNs one by one.
            halves = columns.reshape(len(columns), -1, 2, factor // 2)
            columns, factor = how(halves[:, :, 0], halves[:, :, 1]).reshape(len(columns), -1), factor // 2
        while factor >= _PAIRED and factor % 2 == 0:
            columns, factor = how(columns[:, ::2], columns[:, 1::2]), factor // 2
        if factor > _SLICED:
            return np.asarray(how.reduce(columns.reshape(len(columns), -1, factor), axis=2))
        pooled = columns[:, ::factor].copy()
        for place in range(1, factor):
            how(pooled, columns[:, place::factor], out=pooled)
        return pooled
    pooled = columns[:, ::factor].copy()
    for place in range(1, factor):
        later = columns[:, place::factor]
        pooled = np.where(is_missing(later), pooled, later)
    return pooled


def _one_cell(how: np.ufunc, columns: Plane) -> Plane:
    """All columns as one."""
    while (size := columns.shape[1]) > 1:
        half = size // 2
        folded = how(columns[:, :half], columns[:, half : 2 * half])
        if size % 2:
            how(folded[:, :1], columns[:, -1:], out=folded[:, :1])
        columns = folded
    return columns
