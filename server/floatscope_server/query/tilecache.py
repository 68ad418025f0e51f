"""Decoded tiles, bounded in bytes: the least recently used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, Table, bindparam, select
from sqlmodel import Session

from floatscope_server.tiles.codec import Flag, TileError, decode

__all__ = ["TileCache", "TileKey", "TileValues"]

_OVERHEAD = 400
"""Bytes that a decoded tile takes beside its values."""

_AT_ONCE = 500
"""Rows fetched by one statement."""

_SUM = slice(24, 28)
"""Where the bytes of a tile have their checksum."""


class TileKey(NamedTuple):
    """Row ``id`` of a table of tiles, what it holds (``place``: stream, attempt, level, if it is a part, statistic,
    what of it, block, number), and the ``version`` of what is sealed. A number of a row that was deleted may come again
    for another place."""

    id: int
    place: tuple[int, int, int, int, int, int, int, int]
    version: int

    @property
    def table(self) -> str:
        """The name of that table."""
        return "tile" if self.place[2] else "tile_raw"


@dataclass(slots=True)
class TileValues:
    """``values`` [rows, columns], or without axes where one value stands for all ``rows``; None: it is damaged."""

    values: npt.NDArray[Any] | None
    rows: int
    nan: bool
    checksum: bytes
    id: int
    version: int

    @property
    def small(self) -> bool:
        """Whether it is no more than one value."""
        return self.values is None or not self.values.ndim

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return _OVERHEAD + (0 if self.values is None else self.values.nbytes)


class TileCache:
    """Tiles by place. One of an earlier version is fetched again, and decoded again only if it has changed."""

    def __init__(self, max_bytes: int) -> None:
        # One value takes little room: it should not go because others take much.
        self._shelves = {True: _Shelf(max_bytes // 8), False: _Shelf(max_bytes - max_bytes // 8)}
        self._lock = threading.Lock()
        self.fetched = 0
        """Rows read from the database so far."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(shelf.nbytes for shelf in self._shelves.values())

    def get(self, session: Session, table: Table, keys: Sequence[TileKey]) -> dict[int, TileValues]:
        """The tiles of ``keys``, all rows of ``table``, by row."""
        found: dict[int, TileValues] = {}
        older: dict[int, TileValues] = {}
        wanted: list[TileKey] = []
        with self._lock:
            for key in keys:
                held = self._held(key.place)
                if held is not None and held.version == key.version and held.id == key.id:
                    found[key.id] = held
                else:
                    wanted.append(key)
                    if held is not None:
                        older[key.id] = held
        by_id = {key.id: key for key in wanted}
        for start in range(0, len(wanted), _AT_ONCE):
            ids = [key.id for key in wanted[start : start + _AT_ONCE]]
            for row_id, data in session.connection().execute(_data(table), {"ids": ids}):
                key = by_id[row_id]
                tile = older.get(row_id)
                if tile is None or tile.checksum != data[_SUM]:
                    tile = _decoded(data, key)
                else:
                    tile = replace(tile, id=key.id, version=key.version)
                found[row_id] = tile
                self._keep(key, tile)
        self.fetched += len(wanted)
        return found

    def _keep(self, key: TileKey, tile: TileValues) -> None:
        with self._lock:
            for small, shelf in self._shelves.items():
                shelf.put(key.place, tile if small == tile.small else None)

    def _held(self, place: tuple[int, ...]) -> TileValues | None:
        for shelf in self._shelves.values():
            if (held := shelf.tiles.get(place)) is not None:
                shelf.tiles.move_to_end(place)
                return held
        return None


class _Shelf:
    def __init__(self, max_bytes: int) -> None:
        self.tiles: OrderedDict[tuple[int, ...], TileValues] = OrderedDict()
        self.nbytes = 0
        self._max = max_bytes

    def put(self, place: tuple[int, ...], tile: TileValues | None) -> None:
        """In place of what is there."""
        before = self.tiles.pop(place, None)
        self.nbytes -= 0 if before is None else before.nbytes
        if tile is None:
            return
        self.tiles[place] = tile
        self.nbytes += tile.nbytes
        while self.nbytes > self._max and self.tiles:
            _, oldest = self.tiles.popitem(last=False)
            self.nbytes -= oldest.nbytes


@cache
def _data(table: Table) -> Select[Any]:
    return select(table.c.id, table.c.data).where(table.c.id.in_(bindparam("ids", expanding=True)))


def _decoded(data: bytes, key: TileKey) -> TileValues:
    try:
        tile = decode(data)
    except TileError:
        return TileValues(None, 0, nan=False, checksum=b"", id=key.id, version=key.version)
    values = tile.values
    rows = len(values)
    if Flag.CONSTANT in tile.flags and Flag.SPARSE not in tile.flags:
        values = np.array(values[0, 0])
    return TileValues(values, rows, nan=Flag.NAN in tile.flags, checksum=data[_SUM], id=key.id, version=key.version)
