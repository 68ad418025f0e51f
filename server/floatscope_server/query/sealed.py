"""Reading tiles: which levels answer for which steps, the rows to fetch, and their columns in cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Table, literal, select, union_all
from sqlmodel import Session

from floatscope_server.models import Tile, TileRaw
from floatscope_server.query.cells import Cells, Plane, Wanted, empty_plane
from floatscope_server.query.tilecache import TileCache, TileKey, TileValues
from floatscope_server.tiles.codec import Flag, is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import log2_amax, without_inf
from floatscope_server.tiles.statistics import RAW, Agg, Stat

__all__ = ["Sealed", "Segment", "segments"]

_RAW: Table = TileRaw.__table__  # type: ignore[attr-defined]
_TILE: Table = Tile.__table__  # type: ignore[attr-defined]

_MADE_OF: dict[Stat, tuple[Stat, ...]] = {
    Stat.LOG2_AMAX: (Stat.ABSMAX, Stat.SCALE),
    Stat.NONFINITE: (Stat.NANS, Stat.INFS),
    Stat.ZERO_SHARE: (Stat.ZEROS, Stat.COUNT),
    Stat.STEPS: (Stat.COUNT,),
}
"""Statistics that level 0 does not hold, and what they are computed of."""

_APART = {Agg.MIN: Flag.MIN_APART, Agg.MEAN: Flag.MEAN_APART, Agg.WEIGHT: Flag.WEIGHT_APART}


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps ``first`` to ``end - 1``, whole columns of ``level``."""

    level: int
    first: int
    end: int


def segments(geometry: Geometry, *, level: int, first: int, end: int, sealed: int) -> list[Segment]:
    """The steps from ``first`` (a multiple of a column of ``level``) up to ``end`` that are sealed, from the coarsest
    columns that are there: ``level``, and below it what is not yet pooled so far or would reach beyond ``end``."""
    found: list[Segment] = []
    end = min(end, sealed)
    for at in range(level, -1, -1):
        # A tile of the level below is one part of this one.
        whole = geometry.span(at - 1) if at else 1
        pooled = sealed // whole * whole
        cell = geometry.cell(at)
        until = min(pooled, end // cell * cell)
        if until > first:
            found.append(Segment(at, first, until))
            first = until
    return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tile that lies in a segment: ``first`` is its first step."""

    first: int
    key: TileKey
    flags: Flag


@dataclass(slots=True)
class Sealed:
    """Reads one attempt of one stream into ``cells``.

    ``wanted`` are those of ``cells``; ``layers`` [rows of the cells] are the numbers of the layers. ``coarsest``: steps
    of the widest column that went in, ``damaged``: tiles that could not be read.
    """

    session: Session
    cache: TileCache
    cells: Cells
    wanted: Sequence[Wanted]
    layers: npt.NDArray[np.intp]
    stream: int
    attempt: int
    epoch: int
    sealed: int
    geometry: Geometry
    coarsest: int = 1
    damaged: set[tuple[str, int]] = field(default_factory=set)

    def read(self, level: int, first: int, end: int) -> None:
        """Take in what is sealed of the steps ``first`` to ``end - 1``, from ``level`` downwards."""
        for segment in segments(self.geometry, level=level, first=first, end=end, sealed=self.sealed):
            self._read(segment)

    def _read(self, segment: Segment) -> None:
        pieces = self._pieces(segment)
        for gap in self._gaps(segment, pieces):
            # Nothing was observed, or the detail has been dropped: then the next level has it.
            if self.geometry.span(segment.level) <= self.sealed:
                self._read(gap)
        if not pieces:
            return
        self.coarsest = max(self.coarsest, self.geometry.cell(segment.level))
        tiles = self._tiles(segment.level, pieces.values())
        for block, rows, of_block in self._blocks():
            strips = _Strips(self, segment, block, of_block, pieces, tiles)
            for what in self.wanted:
                strips.add_to_cells(what, rows)

    def _gaps(self, segment: Segment, pieces: dict[tuple[Wanted, int], list[_Piece]]) -> Iterator[Segment]:
        """Stretches of whole tiles of which there is nothing, as segments of the next level."""
        span, part = self._spans(segment.level)
        level = segment.level + 1
        at = segment.first
        for first in sorted({piece.first for of_key in pieces.values() for piece in of_key}):
            start = first // span * span if first >= self.sealed // span * span and not segment.level else first
            if start > at:
                yield from self._gap(level, at, start)
            at = max(at, first + (span if first < self.sealed // span * span else part))
        if segment.end > at:
            yield from self._gap(level, at, segment.end)

    def _gap(self, level: int, first: int, end: int) -> Iterator[Segment]:
        cell = self.geometry.cell(level)
        until = min(-(-end // cell) * cell, self.sealed // self.geometry.span(level - 1) * self.geometry.span(level - 1))
        if until > first // cell * cell:
            yield Segment(level, first // cell * cell, until)
