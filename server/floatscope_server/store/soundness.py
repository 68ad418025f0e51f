"""Whether a store is sound: the file, every tile against its row, levels against each other and the watermarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, text
from sqlmodel import Session, col

from floatscope_server.database import Reader
from floatscope_server.models import (
    Attempt,
    DumpPart,
    HistTile,
    ScalarChunk,
    Stream,
    StreamState,
    Tile,
    TileRaw,
    WalFrame,
)
from floatscope_server.store.framed import UNLIKE, is_whole
from floatscope_server.store.repair import Suspect, chunk_fault, chunk_title, fault, title
from floatscope_server.store.tilestore import geometry_of
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Finding", "findings"]

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, in one line; ``suspect``: the tile that can be mended."""

    text: str
    suspect: Suspect | None = None


def findings(reader: Reader) -> Iterator[Finding]:
    """All that is wrong. Each stream is read in a snapshot of its own, so that a server can run beside it."""
    with reader.session() as session:
        if session.connection().dialect.name == "sqlite":
            for (line,) in session.connection().execute(text("PRAGMA quick_check")).all():
                if line != "ok":
                    yield Finding(f"the file: {' '.join(str(line).split())}")
        streams = session.scalars(select(col(Stream.id)).order_by(col(Stream.id))).all()
        for table in (TileRaw, Tile):
            known = select(col(Stream.id)).where(col(Stream.columns).is_not(None))
            number = session.execute(select(func.count()).where(col(table.stream_id).not_in(known))).scalar_one()
            if number:
                yield Finding(f"{number} rows of {table.__tablename__} belong to no stream that has tiles")
    for number in streams:
        with reader.session() as session:
            yield from _of_stream(session, number)
    for chunks in (HistTile, ScalarChunk):
        with reader.session() as session:
            yield from _chunks(session, chunks)
    with reader.session() as session:
        yield from _frames(session)
    with reader.session() as session:
        yield from _dumps(session)


def _frames(session: Session) -> Iterator[Finding]:
    columns = (col(WalFrame.id), col(WalFrame.first), col(WalFrame.n), col(WalFrame.data), col(Stream.name))
    rows = session.execute(
        select(*columns, col(Stream.run_id))
        .join(Stream, col(Stream.id) == col(WalFrame.stream_id))
        .order_by(col(WalFrame.id))
        .execution_options(yield_per=_AT_ONCE)
    )
    with rows:
        for number, first, n, data, stream, run in rows:
            if not is_whole(data):
                where = f"a frame of {stream}, {first} to {first + n - 1}, run {run}"
                yield Finding(f"{where}: {UNLIKE}", Suspect(str(WalFrame.__tablename__), number))


def _dumps(session: Session) -> Iterator[Finding]:
    columns = (col(DumpPart.run_id), col(DumpPart.dump), col(DumpPart.rank), col(DumpPart.part), col(DumpPart.data))
    with session.execute(select(*columns).execution_options(yield_per=1)) as rows:
        for run, dump, rank, part, data in rows:
            if not is_whole(data):
                yield Finding(f"piece {part} of the dump {dump}, rank {rank}, run {run}: {UNLIKE}")


def _chunks(session: Session, table: type[HistTile] | type[ScalarChunk]) -> Iterator[Finding]:
    of_table: Any = table
    rows = session.execute(select(of_table.__table__).order_by(of_table.id).execution_options(yield_per=_AT_ONCE))
    with rows:
        for row in rows:
            found = chunk_fault(table, row)
            if found is not None:
                yield Finding(
                    chunk_title(session, table, row) + f": {found}", Suspect(str(table.__tablename__), row.id)
                )


def _of_stream(session: Session, number: int | None) -> Iterator[Finding]:
    stream = session.get(Stream, number)
    geometry = None if stream is None else geometry_of(stream)
    if stream is None or geometry is None:
        return
    states = session.scalars(select(StreamState).where(col(StreamState.stream_id) == number)).all()
    for state in states:
        yield from _watermark(session, stream, state, geometry)
        yield from _bytes(session, stream, state, geometry)
        yield from _levels(session, stream, state, geometry)


def _watermark(session: Session, stream: Stream, state: StreamState, geometry: Geometry) -> Iterator[Finding]:
    where = f"{stream.name}, run {stream.run_id}, attempt {state.attempt}"
    if state.sealed % geometry.columns:
        yield Finding(f"{where}: the watermark {state.sealed} lies within a tile")
    attempt = session.get(Attempt, (stream.run_id, state.attempt))
    last = -1 if attempt is None or attempt.last_step is None else attempt.last_step
    if state.sealed > (last // geometry.columns + 1) * geometry.columns:
        yield Finding(f"{where}: the watermark {state.sealed} lies beyond the last step {last}")


def _bytes(session: Session, stream: Stream, state: StreamState, geometry: Geometry) -> Iterator[Finding]:
    for table in (TileRaw, Tile):
        of_table: Any = table
        rows = session.execute(
            select(of_table.__table__)
            .where(of_table.stream_id == state.stream_id, of_table.attempt == state.attempt)
            .execution_options(yield_per=_AT_ONCE)
        )
        with rows:
            for row in rows:
                level, part = (0, 0) if table is TileRaw else (row.level, row.part)
                found = fault(geometry, row, level, part)
                if found is not None:
                    suspect = Suspect(str(table.__tablename__), row.id)
                    yield Finding(f"{title(stream, geometry, row, level, part)}: {found}", suspect)


def _levels(session: Session, stream: Stream, state: StreamState, geometry: Geometry) -> Iterator[Finding]:
    where = f"{stream.name}, run {stream.run_id}, attempt {state.attempt}"
    there = _present(session, state, geometry)
    for (level, part, block), numbers in sorted(there.items()):
        full = geometry.full_tiles(level, state.sealed)
        if part:
            for idx in sorted(n for n in numbers if n < full * geometry.fan):
                yield Finding(f"{where}: part {idx} of level {level}, block {block} is left beside its full tile")
            continue
        above = geometry.full_tiles(level + 1, state.sealed)
        gone = state.level1_from // geometry.span(1) if level == 0 else 0
        for idx in sorted(numbers):
            tile = idx // geometry.fan
            merged = tile < above
            if merged and tile >= gone and tile not in there.get((level + 1, 0, block), ()):
                yield Finding(f"{where}: tile {tile} of level {level + 1}, block {block} is missing")
            elif not merged and idx not in there.get((level + 1, 1, block), ()):
                yield Finding(f"{where}: part {idx} of level {level + 1}, block {block} is missing")


def _present(session: Session, state: StreamState, geometry: Geometry) -> dict[tuple[int, int, int], set[int]]:
    """Numbers of what is valid, by level, part and block."""
    there: dict[tuple[int, int, int], set[int]] = {}
    raw = select(col(TileRaw.block), col(TileRaw.idx)).where(
        col(TileRaw.stream_id) == state.stream_id,
        col(TileRaw.attempt) == state.attempt,
        col(TileRaw.stat) == int(Stat.COUNT),
        col(TileRaw.agg) == int(Agg.VALUE),
        col(TileRaw.idx) < geometry.full_tiles(0, state.sealed),
    )
    for block, idx in session.execute(raw):
        there.setdefault((0, 0, block), set()).add(idx)
    pooled = select(col(Tile.level), col(Tile.part), col(Tile.block), col(Tile.idx)).where(
        col(Tile.stream_id) == state.stream_id,
        col(Tile.attempt) == state.attempt,
        col(Tile.stat) == int(Stat.STEPS),
        col(Tile.agg) == int(Agg.MAX),
    )
    for level, part, block, idx in session.execute(pooled):
        end = geometry.parts_end(level, state.sealed) if part else geometry.full_tiles(level, state.sealed)
        if idx < end:
            there.setdefault((level, part, block), set()).add(idx)
    return there
