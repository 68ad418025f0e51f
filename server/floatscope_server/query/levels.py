"""Reading tiles: which levels answer for which steps, the rows to fetch, and their columns in cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sqlalchemy import Executable, Table, bindparam, func, select
from sqlmodel import Session

from floatscope_server.models import Tile, TileRaw
from floatscope_server.query.cells import Cells, Plane, Rows, Wanted, empty_plane
from floatscope_server.query.directory import Directory
from floatscope_server.query.stepwise import made_plane, needed_for
from floatscope_server.query.tilecache import TileCache, TileKey, TileValues
from floatscope_server.tiles.codec import Flag, is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import log2_amax
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Sealed", "Segment", "last_tile", "segments"]

_RAW: Table = TileRaw.__table__  # type: ignore[attr-defined]
_TILE: Table = Tile.__table__  # type: ignore[attr-defined]

_APART = {Agg.MIN: Flag.MIN_APART, Agg.MEAN: Flag.MEAN_APART, Agg.WEIGHT: Flag.WEIGHT_APART}
_STEPS = Stat.STEPS, Agg.MAX


_STATS = {int(stat): stat for stat in Stat}
_AGGS = {int(agg): agg for agg in Agg}


def _keys(table: Table) -> Executable:
    """Rows without their data. Built once: that takes longer than to run it."""
    query = select(table.c.id, table.c.stat, table.c.agg, table.c.block, table.c.idx, table.c.flags).where(
        table.c.stream_id == bindparam("stream"),
        table.c.attempt == bindparam("attempt"),
        table.c.stat.in_(bindparam("stats", expanding=True)),
        table.c.agg.in_(bindparam("aggs", expanding=True)),
        table.c.block.in_(bindparam("blocks", expanding=True)),
        table.c.idx >= bindparam("low"),
        table.c.idx <= bindparam("high"),
    )
    if table is _TILE:
        query = query.where(table.c.level == bindparam("level"), table.c.part == bindparam("part"))
    return query


_KEYS = {False: _keys(_RAW), True: _keys(_TILE)}


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps ``first`` to ``end - 1``, whole columns of ``level``."""

    level: int
    first: int
    end: int


def segments(geometry: Geometry, *, level: int, first: int, end: int, sealed: int) -> list[Segment]:
    """The steps from ``first`` (a multiple of a column of ``level``) up to ``end`` that are sealed, from the coarsest
    columns that are there: ``level``, and below it what is not pooled so far yet or would reach beyond ``end``."""
    found: list[Segment] = []
    end = min(end, sealed)
    for at in range(level, -1, -1):
        # A tile of the level below is one part of this one.
        pooled = sealed // geometry.span(at - 1) * geometry.span(at - 1) if at else sealed
        cell = geometry.cell(at)
        until = min(pooled, end // cell * cell)
        if until > first:
            found.append(Segment(at, first, until))
            first = until
    return found


def last_tile(session: Session, stream: int, attempt: int) -> int | None:
    """The number of the last tile of level 0 that is there."""
    return session.execute(
        select(func.max(_RAW.c.idx)).where(
            _RAW.c.stream_id == stream,
            _RAW.c.attempt == attempt,
            _RAW.c.stat == Stat.COUNT,
            _RAW.c.agg == Agg.VALUE,
        )
    ).scalar()


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tile or a part, of the steps ``first`` to ``end - 1``."""

    first: int
    end: int
    key: TileKey
    flags: int


_PieceOf = tuple[Stat, Agg, int]
"""Statistic, what of it, and block."""

_Pieces = dict[_PieceOf, dict[int, _Piece]]
"""By first step."""


@dataclass(slots=True, kw_only=True)
class Sealed:
    """Reads one attempt of one stream into ``cells``.

    ``wanted`` are among those of ``cells``; ``layers`` [rows of the cells] are the numbers of the layers. ``coarsest``:
    steps of the widest column that went in; ``damaged``: tiles that could not be read.
    """

    session: Session
    cache: TileCache
    directory: Directory
    cells: Cells
    wanted: Sequence[Wanted]
    layers: npt.NDArray[np.intp]
    stream: int
    attempt: int
    version: int
    sealed: int
    geometry: Geometry
    coarsest: int = 1
    damaged: set[TileKey] = field(default_factory=set)
    _blocks: dict[int, tuple[Rows, Rows]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = self.layers // self.geometry.block
        for block in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == block)
            self._blocks[block] = _as_slice(rows), _as_slice(self.layers[rows] - block * self.geometry.block)

    def read(self, level: int, first: int, end: int) -> None:
        """Take in what is sealed of the steps ``first`` to ``end - 1``, from ``level`` downwards."""
        for segment in segments(self.geometry, level=level, first=first, end=end, sealed=self.sealed):
            self._read(segment)

    def _read(self, segment: Segment, *, instead: bool = False) -> None:
        """``instead`` of finer tiles, which are not there."""
        pieces = self._pieces(segment)
        for first, end in _gaps(segment, pieces):
            # Nothing was observed, or the detail has been dropped: then the next level has it.
            level = segment.level + 1
            cell, below = self.geometry.cell(level), self.geometry.span(segment.level)
            coarser = Segment(level, first // cell * cell, min(-(-end // cell) * cell, self.sealed // below * below))
            if coarser.end > coarser.first:
                self._read(coarser, instead=True)
        if not pieces:
            return
        sources = {
            (what, block): self._sources(segment.level, what, block, pieces)
            for what in self._needed(segment.level)
            for block in self._blocks
        }
        keys = dict.fromkeys(piece.key for found in sources.values() for piece in found)
        tiles = self.cache.get(self.session, _TILE if segment.level else _RAW, list(keys))
        self.damaged |= {key for key in keys if key.id not in tiles or tiles[key.id].values is None}
        seen = not instead
        for block, (rows, of_block) in self._blocks.items():
            strips = {
                what: _strip(segment, self.geometry, sources[what, block], tiles, of_block)
                for what in self._needed(segment.level)
                if sources[what, block]
            }
            # Where nothing was observed, nothing has been dropped.
            seen = seen or not all(is_missing(strip.values).all() for strip in strips.values())
            for what in self.wanted:
                self._add(segment, what, rows, strips)
        if seen:
            self.coarsest = max(self.coarsest, self.geometry.cell(segment.level))

    def _needed(self, level: int) -> list[Wanted]:
        """The planes of ``level`` that ``wanted`` are made of."""
        found: dict[Wanted, None] = {}
        for stat, agg in self.wanted:
            if level:
                found[stat, agg] = None
                if agg == Agg.MEAN:
                    found[stat, Agg.WEIGHT] = None
            else:
                found |= dict.fromkeys(needed_for((stat, agg)))
        return list(found)

    def _add(self, segment: Segment, what: Wanted, rows: Rows, strips: Mapping[Wanted, _Strip]) -> None:
        stat, agg = what
        width = self.geometry.cell(segment.level)
        if segment.level:
            strip = strips.get(what)
            if strip is None:
                return
            if agg == Agg.MEAN:
                weights = strips.get((stat, Agg.WEIGHT))
                if weights is not None:
                    self.cells.add_mean(what, rows, strip.values, weights.values, first=segment.first, width=width)
                return
            nan, values = strip.nan, strip.values
        else:
            if agg in (Agg.MAX, Agg.MIN) and stat == Stat.LOG2_AMAX and self._add_log2(segment, what, rows, strips):
                return
            made = _made(what, strips)
            if made is None:
                return
            values, nan = made, any(strip.nan for strip in strips.values())
            if agg == Agg.MEAN:
                weight = np.ones((1, 1), np.float32)
                self.cells.add_mean(
                    what, rows, values, np.broadcast_to(weight, values.shape), first=segment.first, width=1
                )
                return
        self.cells.add(what, rows, values, first=segment.first, width=width, nan=nan)

    def _add_log2(self, segment: Segment, what: Wanted, rows: Rows, strips: Mapping[Wanted, _Strip]) -> bool:
        """Add the logarithm of what is largest or smallest instead of the logarithms of all, where one scale holds for
        all; whether it did."""
        absmax, scale = strips.get((Stat.ABSMAX, Agg.VALUE)), strips.get((Stat.SCALE, Agg.VALUE))
        if absmax is None or what in strips or (scale is not None and any(scale.values.strides)):
            return False
        if segment.first % self.cells.cell or (segment.end - segment.first) % self.cells.cell:
            return False
        at, folded = self.cells.fold(what[1], absmax.values, first=segment.first, width=1)
        factor = None if scale is None else np.broadcast_to(scale.values[:1, :1], folded.shape)
        made = log2_amax(folded, factor, is_missing(folded))
        self.cells.add(what, rows, made, first=self.cells.origin + at * self.cells.cell, width=self.cells.cell)
        return True

    def _sources(self, level: int, what: Wanted, block: int, pieces: _Pieces) -> list[_Piece]:
        """The tiles that hold ``what`` of ``block``: its own, or those that it gives way to (see ``Agg``)."""
        stat, agg = what
        own = pieces.get((stat, agg, block), {})
        if not level or agg == Agg.MAX:
            return list(own.values())
        instead = pieces.get((*_STEPS, block), {}) if agg == Agg.WEIGHT else None
        found = []
        for first, top in pieces.get((stat, Agg.MAX, block), {}).items():
            piece = own.get(first) if top.flags & _APART[agg] else top if instead is None else instead.get(first)
            if piece is not None:
                found.append(piece)
        return found

    def _pieces(self, segment: Segment) -> _Pieces:
        """The rows of ``segment``, without their data."""
        level, needed = segment.level, self._needed(segment.level)
        stats = sorted({stat for stat, _ in needed})
        aggs = sorted({agg for _, agg in needed} | ({Agg.MAX} if level else set()))
        if level and Agg.WEIGHT in aggs:
            stats = sorted({*stats, Stat.STEPS})
        span = self.geometry.span(level)
        part = self.geometry.part_columns * self.geometry.cell(level)
        # Beyond these there may be rows of what is being sealed.
        full, parts = self.sealed // span, self.sealed // part if level else 0
        # Whether it is a part, its steps, and the numbers of the first and the last.
        ranges = [(0, span, segment.first // span, min((segment.end - 1) // span, full - 1))]
        if level:
            per_tile = span // part
            ranges.append(
                (1, part, max(segment.first // part, full * per_tile), min((segment.end - 1) // part, parts - 1))
            )
        found: _Pieces = {}
        for number, steps, low, high in ranges:
            of = (self.stream, self.attempt, self.version, level, number, *stats, -1, *aggs, -1, *self._blocks)

            asked: dict[str, object] = {
                "stream": self.stream,
                "attempt": self.attempt,
                "level": level,
                "part": number,
                "stats": stats,
                "aggs": aggs,
                "blocks": list(self._blocks),
            }
            for row_id, stat, agg, block, idx, flags in self._rows(of, level, asked, low, high):
                place = (self.stream, self.attempt, level, number, stat, agg, block, idx)
                piece = _Piece(idx * steps, (idx + 1) * steps, TileKey(row_id, place, self.version), flags)
                found.setdefault((_STATS[stat], _AGGS[agg], block), {})[piece.first] = piece
        return found

    def _rows(
        self, of: tuple[int, ...], level: int, asked: dict[str, object], low: int, high: int
    ) -> Iterator[tuple[int, ...]]:
        """Of the tiles ``low`` to ``high``."""

        def read(low: int, high: int) -> Iterator[tuple[int, tuple[int, ...]]]:
            rows = self.session.connection().execute(_KEYS[level > 0], {**asked, "low": low, "high": high})
            return ((row.idx, tuple(row)) for row in rows)

        return self.directory.listed(of, low, high, read) if low <= high else iter(())


def _made(what: Wanted, strips: Mapping[Wanted, _Strip]) -> Plane | None:
    planes = {key: strip.values for key, strip in strips.items() if key in needed_for(what)}
    if planes and not any(any(plane.strides) for plane in planes.values()):
        shape = next(iter(planes.values())).shape
        made = made_plane(what, {key: plane[:1, :1] for key, plane in planes.items()})
        return None if made is None else np.broadcast_to(made, shape)
    return made_plane(what, planes)


@dataclass(slots=True)
class _Strip:
    """A block over a segment: ``values`` [rows that are wanted, columns], of no strides where one value stands for all;
    ``nan``: observed ones are among them."""

    values: Plane
    nan: bool


def _strip(
    segment: Segment, geometry: Geometry, sources: Sequence[_Piece], tiles: Mapping[int, TileValues], rows: Rows
) -> _Strip:
    width = geometry.cell(segment.level)
    columns = (segment.end - segment.first) // width
    found = [(piece, tile) for piece in sources if (tile := tiles.get(piece.key.id)) is not None]
    size = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    last = rows.stop - 1 if isinstance(rows, slice) else int(rows[-1])
    covered = sum(
        min(piece.end, segment.end) - max(piece.first, segment.first)
        for piece, tile in found
        if tile.values is not None and tile.rows > last
    )
    whole = covered == segment.end - segment.first
    if whole and all(tile.values is not None and not tile.values.ndim for _, tile in found):
        value = found[0][1].values
        assert value is not None
        if all(tile.values == value for _, tile in found):
            return _Strip(np.broadcast_to(value, (size, columns)), nan=False)
    dtype = np.float64 if any(t.values is not None and t.values.dtype == np.float64 for _, t in found) else np.float32
    values = np.empty((size, columns), dtype) if whole else empty_plane((size, columns), dtype)
    for piece, tile in found:
        if tile.values is None:
            continue
        at = (piece.first - segment.first) // width
        low, high = max(at, 0), min((piece.end - segment.first) // width, columns)
        there, of_tile = size, rows
        if tile.rows <= last:
            # A block that grew later has fewer rows in its earlier tiles.
            if isinstance(rows, slice):
                there = max(0, tile.rows - rows.start)
                of_tile = slice(rows.start, rows.start + there)
            else:
                there = int(np.searchsorted(rows, tile.rows))
                of_tile = rows[:there]
        values[:there, low:high] = tile.values if not tile.values.ndim else tile.values[of_tile, low - at : high - at]
    return _Strip(values, any(tile.nan for _, tile in found))


def _gaps(segment: Segment, pieces: _Pieces) -> Iterator[tuple[int, int]]:
    """Stretches of ``segment`` of which there is no tile."""
    at = segment.first
    for first, end in sorted({(piece.first, piece.end) for of_key in pieces.values() for piece in of_key.values()}):
        if first > at:
            yield at, first
        at = max(at, end)
    if segment.end > at:
        yield at, segment.end


def _as_slice(numbers: npt.NDArray[np.intp]) -> Rows:
    """``numbers``, ascending, as a slice if they follow one another: that needs no copy."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers
