"""A damaged tile: found by what its bytes and its row say, made again from the level below, or dropped and declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, and_, delete, select
from sqlmodel import Session, col

from floatscope_server.models import (
    Attempt,
    Gap,
    HistTile,
    ScalarChunk,
    ScalarSeries,
    Stream,
    StreamState,
    Tile,
    TileRaw,
    WalFrame,
)
from floatscope_server.observation import ALL_RANKS
from floatscope_server.store.climb import Climb
from floatscope_server.store.framed import is_whole
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.store.tilestore import Place, StreamKey, change, geometry_of, outdate, read_planes, replace_tiles
from floatscope_server.tiles.codec import TileError, decode
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.planes import Planes, pooled_planes
from floatscope_server.tiles.points import Points, Records
from floatscope_server.tiles.pool import pool
from floatscope_server.tiles.rank_sets import RankSets
from floatscope_server.tiles.rows import beside, spliced
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Mending", "Suspect", "chunk_fault", "chunk_title", "fault", "mend", "title"]


class Suspect(NamedTuple):
    """A row of ``tile_raw``, ``tile``, ``hist_tile``, ``scalar_chunk`` or ``wal_frame`` that may be damaged."""

    table: str
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending:
    """What is to be done, in a transaction of its own, and what to say of it."""

    text: str
    apply: Callable[[Session], None]


def fault(geometry: Geometry, row: Any, level: int, part: int) -> str | None:  # noqa: ANN401 - of two tables
    """Why ``row`` is not the tile that it says it is, or None."""
    try:
        if not level and row.stat == Stat.RANKS:
            rows, columns, _ = RankSets.decoded(row.data).bits.shape
            return None if columns == geometry.columns and rows <= geometry.block else f"it is of {columns} columns"
        tile = decode(row.data)
    except (TileError, ValueError, RuntimeError) as error:
        return str(error)
    width = geometry.part_columns if part else geometry.columns
    if (tile.first_layer, tile.first_column) != (row.block * geometry.block, row.idx * width):
        return f"it is of layer {tile.first_layer} and column {tile.first_column}"
    rows, columns = tile.values.shape
    if columns != width or not 0 < rows <= geometry.block:
        return f"it has {rows} layers and {columns} columns"
    if row.stat not in _STATS or row.agg not in _AGGS:
        return "its statistic is unknown"
    return None


def title(stream: Stream, geometry: Geometry, row: Any, level: int, part: int) -> str:  # noqa: ANN401
    """What ``row`` holds, in words."""
    first, end = _steps(geometry, row.idx, level, part)
    stat, agg = _STATS.get(row.stat, f"statistic {row.stat}"), _AGGS.get(row.agg, f"plane {row.agg}")
    layers = f"layers {row.block * geometry.block} to {(row.block + 1) * geometry.block - 1}"
    return (
        f"{stat} ({agg}) of {layers}, steps {first} to {end - 1}, level {level} of {stream.name}, run {stream.run_id}"
    )


def mend(session: Session, suspect: Suspect) -> Mending | None:
    """What to do about ``suspect``; None if it is sound, or not there any more."""
    if suspect.table in _CHUNKS:
        return _mend_chunk(session, suspect)
    if suspect.table == WalFrame.__tablename__:
        return _mend_frame(session, suspect)
    raw = suspect.table == TileRaw.__tablename__
    table: Any = TileRaw if raw else Tile
    row = session.get(table, suspect.id)
    stream = None if row is None else session.get(Stream, row.stream_id)
    geometry = None if stream is None else geometry_of(stream)
    if row is None or stream is None or geometry is None:
        return None
    level, part = (0, 0) if raw else (row.level, row.part)
    found = fault(geometry, row, level, part)
    state = session.get(StreamState, (row.stream_id, row.attempt))
    if found is None or state is None:
        return None
    key = StreamKey(
        run_id=stream.run_id,
        stream_id=row.stream_id,
        attempt=row.attempt,
        sealed=state.sealed,
        epoch=state.epoch,
    )
    what = title(stream, geometry, row, level, part)
    place = Place(level, part, row.block, row.idx)
    made, whole = (None, False) if raw else _from_below(session, key, geometry, place)
    gap = None if whole else _gap(session, stream, geometry, row, level, part)

    def apply(session: Session) -> None:
        connection = session.connection()
        change(connection, key)
        if made is not None:
            climb = Climb(key=key, geometry=geometry, block=place.block, idx=place.idx)
            replace_tiles(connection, key, [(place, climb.encoded(place, made))])
        else:
            connection.execute(delete(table).where(table.id == suspect.id))
        if gap is not None:
            session.add(gap)

    how = "made again from the level below" if whole else "dropped, and declared as a gap"
    return Mending(text=f"{what} is damaged ({found}): {how}", apply=apply)


def chunk_fault(table: type[HistTile] | type[ScalarChunk], row: Any) -> str | None:  # noqa: ANN401 - of two tables
    """Why ``row`` is not the piece of histograms or of a series that it says it is, or None."""
    try:
        entries: HistRows | Points | Records
        if table is HistTile:
            entries = HistRows.decoded(row.data)
        else:
            entries = Records.decoded(row.data) if row.level else Points.decoded(row.data)
    except (TileError, ValueError, RuntimeError) as error:
        return str(error)
    steps = entries.steps
    if len(steps) != row.n or (row.n and (int(steps[0]) < row.first_step or int(steps[-1]) > row.last_step)):
        return f"it has {len(steps)} entries, or other steps than its row says"
    return None


def chunk_title(session: Session, table: type[HistTile] | type[ScalarChunk], row: Any) -> str:  # noqa: ANN401
    """What ``row`` holds, in words."""
    what, run_id, _ = _chunk_of(session, table, row)
    return f"{what}, {row.first_step} to {row.last_step}, level {row.level}, run {run_id}"


def _mend_chunk(session: Session, suspect: Suspect) -> Mending | None:
    table = _CHUNKS[suspect.table]
    row: Any = session.get(table, suspect.id)
    found = None if row is None else chunk_fault(table, row)
    if row is None or found is None:
        return None
    what, run_id, rank = _chunk_of(session, table, row)
    gap = None
    if run_id is not None:
        reason = f"a stored piece of {what} was damaged, level {row.level}"
        gap = Gap(run_id=run_id, rank=rank, first=row.first_step, last=row.last_step, count=row.n, reason=reason)

    def apply(session: Session) -> None:
        # A coarse one is read from the level below from now on.
        outdate(session.connection(), *_state_of(table, suspect.id))
        session.connection().execute(delete(table).where(col(table.id) == suspect.id))
        if gap is not None:
            session.add(gap)

    text = f"{chunk_title(session, table, row)} is damaged ({found}): dropped, and declared as a gap"
    return Mending(text=text, apply=apply)


def _state_of(table: type[HistTile] | type[ScalarChunk], number: int) -> tuple[ColumnElement[bool], ...]:
    """Where the state of its stream and attempt is."""
    if table is HistTile:
        of_tile = col(HistTile.id) == number
        return (
            col(StreamState.stream_id).in_(select(col(HistTile.stream_id)).where(of_tile)),
            col(StreamState.attempt).in_(select(col(HistTile.attempt)).where(of_tile)),
        )
    of_series = select(col(ScalarChunk.series_id)).where(col(ScalarChunk.id) == number).scalar_subquery()
    of_name = col(ScalarSeries.run_id) == col(Stream.run_id), col(ScalarSeries.stream) == col(Stream.name)
    streams = select(col(Stream.id)).join(ScalarSeries, and_(*of_name)).where(col(ScalarSeries.id) == of_series)
    attempts = select(col(ScalarSeries.attempt)).where(col(ScalarSeries.id) == of_series)
    return col(StreamState.stream_id).in_(streams), col(StreamState.attempt).in_(attempts)


def _mend_frame(session: Session, suspect: Suspect) -> Mending | None:
    frame = session.get(WalFrame, suspect.id)
    stream = None if frame is None else session.get(Stream, frame.stream_id)
    if frame is None or stream is None or is_whole(frame.data):
        return None
    # Readings of cards go by seconds, and have no steps to name.
    first, last = (0, 0) if stream.name == "gpu" else (frame.first, frame.first + frame.n - 1)
    reason = f"a stored frame of {stream.name} was damaged"
    gap = Gap(run_id=stream.run_id, rank=frame.rank, first=first, last=last, count=1, reason=reason)

    def apply(session: Session) -> None:
        session.connection().execute(delete(WalFrame).where(col(WalFrame.id) == suspect.id))
        session.add(gap)

    text = f"a frame of {stream.name}, {frame.first} to {frame.first + frame.n - 1}, run {stream.run_id} is damaged"
    return Mending(text=f"{text}: dropped, and declared as a gap", apply=apply)


def _chunk_of(
    session: Session,
    table: type[HistTile] | type[ScalarChunk],
    row: Any,  # noqa: ANN401
) -> tuple[str, int | None, int]:
    """What it is of, whose, and of which rank."""
    if table is HistTile:
        stream = session.get(Stream, row.stream_id)
        layers = f"layers {row.block * HISTOGRAM_BLOCK} to {(row.block + 1) * HISTOGRAM_BLOCK - 1}"
        return f"{stream.name if stream else 'no stream'}, {layers}", stream.run_id if stream else None, ALL_RANKS
    series = session.get(ScalarSeries, row.series_id)
    if series is None:
        return "no series", None, ALL_RANKS
    return f"{series.stream} {series.name!r}", series.run_id, series.rank


def _from_below(session: Session, key: StreamKey, geometry: Geometry, place: Place) -> tuple[Planes | None, bool]:
    """All planes at ``place`` as the level below gives them, as far as it is still there; and whether nothing is
    missing therefore."""
    level, part, block, idx = place
    first, end = (idx, idx + 1) if part else (idx * geometry.fan, (idx + 1) * geometry.fan)
    below = read_planes(session, key, Place(level - 1, 0, block, first), end)
    pieces = {n: pool(planes if level > 1 else pooled_planes(planes), geometry.fan) for n, planes in below.items()}
    pieces = {n: piece for n, piece in pieces.items() if piece}
    if not pieces:
        return None, False
    held = read_planes(session, key, place, idx + 1).get(idx, {})
    layers = max(len(plane) for planes in (held, *pieces.values()) for plane in planes.values())
    widths = [geometry.part_columns] * (end - first)
    piece = beside([pieces.get(n, {}) for n in range(first, end)], widths, layers)
    there = np.repeat([n in pieces for n in range(first, end)], geometry.part_columns)
    steps = held.get((Stat.STEPS, Agg.MAX))
    whole = bool(there.all()) or (steps is not None and bool(np.isnan(steps[:, ~there]).all()))
    return spliced(held, piece, 0, there, layers=layers, width=sum(widths)), whole


def _gap(session: Session, stream: Stream, geometry: Geometry, row: Any, level: int, part: int) -> Gap:  # noqa: ANN401
    first, end = _steps(geometry, row.idx, level, part)
    attempt = session.get(Attempt, (stream.run_id, row.attempt))
    last = end - 1 if attempt is None or attempt.last_step is None else min(end - 1, attempt.last_step)
    stat, agg = _STATS.get(row.stat, "?"), _AGGS.get(row.agg, "?")
    where = f"{stream.name}, layers {row.block * geometry.block} to {(row.block + 1) * geometry.block - 1}"
    reason = f"a stored tile was damaged: {stat} ({agg}) of {where}, level {level}"
    return Gap(run_id=stream.run_id, rank=ALL_RANKS, first=first, last=max(first, last), count=1, reason=reason)


def _steps(geometry: Geometry, idx: int, level: int, part: int) -> tuple[int, int]:
    span = geometry.span(level - 1) if part else geometry.span(level)
    return idx * span, (idx + 1) * span


_CHUNKS: dict[str, type[HistTile] | type[ScalarChunk]] = {"hist_tile": HistTile, "scalar_chunk": ScalarChunk}

_STATS = {int(stat): stat.name.lower() for stat in Stat}
_AGGS = {int(agg): agg.name.lower() for agg in Agg}
