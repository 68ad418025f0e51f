"""Statements on tiles, tails and watermarks: what the sealer asks of the database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, literal, select, update
from sqlmodel import Session, SQLModel, col

from floatscope_server.models import Stream, StreamState, Tile, TileRaw, WalFrame
from floatscope_server.tiles.codec import TileError
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Planes
from floatscope_server.tiles.rank_sets import RankSets
from floatscope_server.tiles.rows import TileRow, decoded
from floatscope_server.tiles.statistics import POOLED, RAW, Agg, Stat

__all__ = [
    "OvertakenError",
    "Place",
    "StoredSets",
    "StreamKey",
    "advance",
    "change",
    "close_frames",
    "delete_parts",
    "delete_place",
    "discard_unsealed",
    "geometry_of",
    "has_raw",
    "hold",
    "insert_tiles",
    "outdate",
    "rank_row",
    "read_planes",
    "read_rank_sets",
    "replace_tiles",
    "settle_geometry",
]

_log = logging.getLogger(__name__)

_AT_ONCE = 500
"""Values in one IN."""

_STATS = tuple(int(stat) for stat in Stat)
_AGGS = tuple(int(agg) for agg in Agg)
_RAW_KEYS = tuple(int(stat) for stat in (*RAW, *POOLED, Stat.RANKS))
_POOLED_KEYS = tuple(int(stat) for stat in POOLED)


# Made once, of tables and not of models: to make one takes longer than to run it.
_INSERT_RAW, _INSERT_POOLED = (insert(SQLModel.metadata.tables[model.__tablename__]) for model in (TileRaw, Tile))
_FRAMES, _STATES = (SQLModel.metadata.tables[str(model.__tablename__)] for model in (WalFrame, StreamState))
_CLOSE = delete(_FRAMES).where(_FRAMES.c.id.in_(bindparam("ids", expanding=True)))
_SHORTEN = update(_FRAMES).where(_FRAMES.c.id == bindparam("of_id"))
_MOVE = (
    update(_STATES)
    .where(
        _STATES.c.stream_id == bindparam("of_stream"),
        _STATES.c.attempt == bindparam("of_attempt"),
        _STATES.c.sealed == bindparam("was_sealed"),
        _STATES.c.epoch == bindparam("was_epoch"),
    )
    .values(sealed=bindparam("to_sealed"), epoch=bindparam("to_epoch"), appends=_STATES.c.appends + bindparam("more"))
)


class OvertakenError(Exception):
    """Another sealer was faster: what was read is out of date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKey:
    """A stream in one attempt, as of ``sealed`` and ``epoch``."""

    run_id: int
    stream_id: int
    attempt: int
    sealed: int
    epoch: int


class Place(NamedTuple):
    """Where a tile is: ``level`` 0 is ``tile_raw``; ``part`` 1 for a part of a higher level."""

    level: int
    part: int
    block: int
    idx: int


def geometry_of(stream: Stream) -> Geometry | None:
    """That of its tiles; None while there are none."""
    if stream.columns is None:
        return None
    assert stream.fan is not None and stream.block is not None  # noqa: PT018 - they are set together
    assert stream.keep_bits is not None and stream.keep_bits_pooled is not None  # noqa: PT018
    return Geometry(
        columns=stream.columns,
        fan=stream.fan,
        block=stream.block,
        keep_bits=stream.keep_bits,
        keep_bits_pooled=stream.keep_bits_pooled,
    )


def settle_geometry(connection: Connection, stream_id: int, geometry: Geometry) -> None:
    """Fix it for the stream; ``OvertakenError`` if it has another one by now."""
    values = {name: getattr(geometry, name) for name in ("columns", "fan", "block", "keep_bits", "keep_bits_pooled")}
    connection.execute(
        update(Stream).where(col(Stream.id) == stream_id, col(Stream.columns).is_(None)).values(**values)
    )
    row = connection.execute(select(*(getattr(Stream, name) for name in values)).where(col(Stream.id) == stream_id))
    if dict(row.mappings().one()) != values:
        raise OvertakenError


def hold(connection: Connection, key: StreamKey) -> None:
    """Keep others from sealing this stream until the transaction ends; ``OvertakenError`` if one has."""
    _moved(connection, key, sealed=key.sealed, epoch=key.epoch, appends=0)


def advance(connection: Connection, key: StreamKey, sealed: int) -> None:
    """Publish all columns before ``sealed``, none of which was changed; ``OvertakenError`` if another one has."""
    _moved(connection, key, sealed=sealed, epoch=key.epoch + 1, appends=1)


def change(connection: Connection, key: StreamKey) -> None:
    """Publish what was changed of columns that are sealed; ``OvertakenError`` as of ``advance``."""
    _moved(connection, key, sealed=key.sealed, epoch=key.epoch + 1, appends=0)


def outdate(connection: Connection, *where: ColumnElement[bool]) -> None:
    """Have answers about the streams and attempts of ``where`` made anew: something of what is sealed has gone."""
    connection.execute(update(StreamState).where(*where).values(epoch=StreamState.epoch + 1))


def _moved(connection: Connection, key: StreamKey, *, sealed: int, epoch: int, appends: int) -> None:
    changed = connection.execute(
        _MOVE,
        {
            "of_stream": key.stream_id,
            "of_attempt": key.attempt,
            "was_sealed": key.sealed,
            "was_epoch": key.epoch,
            "to_sealed": sealed,
            "to_epoch": epoch,
            "more": appends,
        },
    )
    if changed.rowcount != 1:
        raise OvertakenError


def insert_tiles(connection: Connection, key: StreamKey, tiles: Iterable[tuple[Place, TileRow]]) -> None:
    """Add rows; readers do not see them before ``advance``."""
    raw: list[dict[str, Any]] = []
    pooled: list[dict[str, Any]] = []
    for place, row in tiles:
        values = {
            "run_id": key.run_id,
            "stream_id": key.stream_id,
            "attempt": key.attempt,
            "block": place.block,
            "idx": place.idx,
            **row._asdict(),
        }
        if place.level:
            pooled.append({**values, "level": place.level, "part": place.part})
        else:
            raw.append(values)
    if raw:
        connection.execute(_INSERT_RAW, raw)
    if pooled:
        connection.execute(_INSERT_POOLED, pooled)


def replace_tiles(connection: Connection, key: StreamKey, tiles: Sequence[tuple[Place, list[TileRow]]]) -> None:
    """All rows of these places by others."""
    for place, _ in tiles:
        where = *_at(key, place.level, place.part, [place.block]), _idx(place.level, place.idx, place.idx + 1)
        connection.execute(delete(_table(place.level)).where(*where))
    insert_tiles(connection, key, ((place, row) for place, rows in tiles for row in rows))


def delete_parts(
    connection: Connection, key: StreamKey, level: int, blocks: Sequence[int], first: int, end: int
) -> None:
    """The parts from ``first`` to before ``end`` of ``level``: they have become a full tile."""
    connection.execute(delete(Tile).where(*_at(key, level, 1, blocks), _idx(level, first, end)))


def delete_place(connection: Connection, stream: int, attempt: int, level: int, blocks: Sequence[int], idx: int) -> int:
    """The full tile ``idx`` of ``level`` of all ``blocks``; how many rows that were."""
    key = StreamKey(run_id=0, stream_id=stream, attempt=attempt, sealed=0, epoch=0)
    where = *_at(key, level, 0, blocks), _idx(level, idx, idx + 1)
    return connection.execute(delete(_table(level)).where(*where)).rowcount


def discard_unsealed(connection: Connection, key: StreamKey, geometry: Geometry, blocks: int) -> None:
    """Delete what a sealer left that did not come to its end, and is not valid therefore."""
    numbers = range(blocks)
    raw = *_at(key, 0, 0, numbers), col(TileRaw.idx) >= geometry.full_tiles(0, key.sealed)
    connection.execute(delete(TileRaw).where(*raw))
    # Wherever anything was observed there are its steps.
    steps = *_of(Tile, key), col(Tile.stat) == int(Stat.STEPS), col(Tile.agg) == int(Agg.MAX)
    levels = connection.execute(select(col(Tile.level)).where(*steps).distinct()).scalars()
    for level in list(levels):
        for part, first in ((0, geometry.full_tiles(level, key.sealed)), (1, geometry.parts_end(level, key.sealed))):
            connection.execute(delete(Tile).where(*_at(key, level, part, numbers), col(Tile.idx) >= first))


def read_planes(
    session: Session,
    key: StreamKey,
    place: Place,
    end: int,
) -> dict[int, Planes]:
    """The tiles from ``place`` to before number ``end``, by their number; nothing where there is
    none."""
    level, part, block, first = place
    table = _table(level)
    where = *_at(key, level, part, [block]), _idx(level, first, end)
    rows = session.execute(select(table.idx, table.stat, table.agg, table.flags, table.data).where(*where))
    by_idx: dict[int, list[TileRow]] = {}
    for idx, *row in rows:
        if row[0] != Stat.RANKS:
            by_idx.setdefault(idx, []).append(TileRow(*row))
    return {idx: decoded(found, level=level) for idx, found in by_idx.items()}


def read_rank_sets(session: Session, key: StreamKey, idx: int) -> dict[int, StoredSets]:
    """Of tile ``idx`` of level 0, by block, as far as there are any."""
    where = *_of(TileRaw, key), col(TileRaw.stat) == int(Stat.RANKS), col(TileRaw.idx) == idx
    rows = session.execute(select(col(TileRaw.block), col(TileRaw.data)).where(*where))
    return {block: StoredSets(data) for block, data in rows}


class StoredSets(NamedTuple):
    """Sets of ranks as they are stored: decoded they may take some MB."""

    data: bytes

    def sets(self) -> RankSets | None:
        """None if they are damaged."""
        try:
            return RankSets.decoded(self.data)
        except TileError as error:
            _log.error("it is not known any more whose rows a tile has: %s", error)
            return None


def rank_row(sets: RankSets) -> TileRow:
    """The row of ``sets``."""
    return TileRow(int(Stat.RANKS), int(Agg.VALUE), 0, sets.encoded())


def has_raw(session: Session, key: StreamKey, idx: int) -> bool:
    """Whether there is anything of tile ``idx`` of level 0."""
    where = *_of(TileRaw, key), col(TileRaw.stat).in_(_RAW_KEYS), col(TileRaw.idx) == idx
    return session.execute(select(col(TileRaw.id)).where(*where).limit(1)).first() is not None


def close_frames(connection: Connection, frames: Iterable[tuple[int, int, int]], upto: int) -> None:
    """Take the columns before ``upto`` out of the tail: ``frames`` are (id, first, n) of those that had any."""
    gone: list[int] = []
    shorter: list[dict[str, int]] = []
    for number, first, n in frames:
        if first + n <= upto:
            gone.append(number)
        else:
            shorter.append({"of_id": number, "first": upto, "n": first + n - upto})
    if shorter:
        connection.execute(_SHORTEN, shorter)
    for start in range(0, len(gone), _AT_ONCE):
        connection.execute(_CLOSE, {"ids": gone[start : start + _AT_ONCE]})


def _table(level: int) -> Any:  # noqa: ANN401 - either of two models
    return Tile if level else TileRaw


def _of(table: Any, key: StreamKey) -> tuple[Any, ...]:  # noqa: ANN401
    return table.stream_id == key.stream_id, table.attempt == key.attempt


def _at(key: StreamKey, level: int, part: int, blocks: Sequence[int]) -> tuple[Any, ...]:
    """All that the index of the table has before ``idx``."""
    table = _table(level)
    where = (*_of(table, key), table.agg.in_(_AGGS), table.block.in_(list(blocks)))
    if not level:
        return *where, table.stat.in_(_RAW_KEYS)
    return *where, table.stat.in_(_POOLED_KEYS), table.level == level, table.part == part


def _idx(level: int, first: int, end: int) -> Any:  # noqa: ANN401
    table = _table(level)
    return table.idx == first if end == first + 1 else table.idx.between(literal(first), literal(end - 1))
