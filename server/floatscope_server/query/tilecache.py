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
    """Row ``id`` of a table of tiles, what it holds (``place``: stream, attempt, level, whether it is a part, statistic,
    what of it, block, number), and the ``version`` of what is sealed. A number of a row that was deleted may come again
    for another place."""

    id: int
    place: tuple[int, int, int, int, int, int, int, int]
    version: int


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
    def nbytes(self) -> int:
        """What it takes in memory."""
        return _OVERHEAD + (0 if self.values is None else self.values.nbytes)


class TileCache:
    """Tiles by place. One that was kept of an earlier version is fetched again, and decoded again only if it changed."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._tiles: OrderedDict[tuple[int, ...], TileValues] = OrderedDict()
        self._lock = threading.Lock()
        self.fetched = 0
        """Rows read from the database so far."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def get(self, session: Session, table: Table, keys: Sequence[TileKey]) -> dict[int, TileValues]:
        """The tiles of ``keys``, all rows of ``table``, by row."""
        found: dict[int, TileValues] = {}
        older: dict[int, TileValues] = {}
        wanted: list[TileKey] = []
        with self._lock:
            for key in keys:
                held = self._tiles.get(key.place)
                if held is not None and held.version == key.version and held.id == key.id:
                    self._tiles.move_to_end(key.place)
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
            before = self._tiles.pop(key.place, None)
            self._tiles[key.place] = tile
            self._bytes += tile.nbytes - (0 if before is None else before.nbytes)
            while self._bytes > self._max and self._tiles:
                _, oldest = self._tiles.popitem(last=False)
                self._bytes -= oldest.nbytes


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
    return TileValues(
        values, rows, nan=Flag.NAN in tile.flags, checksum=data[_SUM], id=key.id, version=key.version
    )
