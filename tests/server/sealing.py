"""Turns what a store holds of its layers' streams into tiles, in one go and as simply as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlmodel import Session, col, delete, insert, select

from floatscope_server.models import Attempt, Stream, StreamState, Tile, TileRaw, WalFrame
from floatscope_server.query.frames import FrameCache, summary_frames
from floatscope_server.query.line import Stretch
from floatscope_server.store import Store
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Planes, pooled_planes, raw_planes
from floatscope_server.tiles.pool import pool
from floatscope_server.tiles.rows import TileRow, beside, encoded

__all__ = ["EXACT", "FULL_PRECISION", "Placed", "seal", "tile_rows", "write_tiles"]

EXACT = Geometry(keep_bits=23, keep_bits_pooled=23)
FULL_PRECISION = (EXACT, Geometry(fan=4, keep_bits=23, keep_bits_pooled=23))

Placed = tuple[int, int, int, TileRow]
"""Level, 1 for a part, number of it, row."""


def tile_rows(
    raw: Iterator[tuple[int, Planes]], geometry: Geometry, *, layers: int, first_layer: int = 0
) -> Iterator[Placed]:
    """The rows of one block: ``raw`` are numbers of tiles, ascending, and their planes of level 0."""
    waiting: dict[int, list[tuple[int, Planes]]] = {}
    columns = geometry.part_columns

    def climb(level: int, number: int, part: Planes) -> Iterator[Placed]:
        """``part`` is of the tile ``number`` of the level below."""
        held = waiting.setdefault(level, [])
        if held and held[0][0] // geometry.fan != number // geometry.fan:
            yield from close(level)
        held.append((number, part))
        if number % geometry.fan == geometry.fan - 1:
            yield from close(level)

    def close(level: int) -> Iterator[Placed]:
        held = waiting.pop(level, [])
        if not held:
            return
        of = dict(held)
        tile = held[0][0] // geometry.fan
        parts = [of.get(number, {}) for number in range(tile * geometry.fan, (tile + 1) * geometry.fan)]
        whole = beside(parts, [columns] * geometry.fan, layers)
        for row in encoded(whole, geometry, level=level, first_layer=first_layer, first_column=tile * geometry.columns):
            yield level, 0, tile, row
        yield from climb(level + 1, tile, pool(whole, geometry.fan))

    for number, planes in raw:
        first = number * geometry.columns
        for row in encoded(planes, geometry, level=0, first_layer=first_layer, first_column=first):
            yield 0, 0, number, row
        yield from climb(1, number, pool(pooled_planes(planes), geometry.fan))
    for level in sorted(waiting):
        for number, part in waiting.get(level, ()):
            for row in encoded(part, geometry, level=level, first_layer=first_layer, first_column=number * columns):
                yield level, 1, number, row


def write_tiles(session: Session, stream: Stream, attempt: int, block: int, rows: Iterator[Placed]) -> None:
    """Store ``rows``."""
    for level, part, number, row in rows:
        values = {
            "run_id": stream.run_id,
            "stream_id": stream.id,
            "attempt": attempt,
            "block": block,
            "idx": number,
            **row._asdict(),
        }
        if level:
            session.execute(insert(Tile).values(level=level, part=part, **values))
        else:
            session.execute(insert(TileRaw).values(**values))


def seal(store: Store, geometry: Geometry = EXACT, *, until: int | None = None, kinds: Sequence[str] = ()) -> None:
    """Seal every attempt of every stream of layers (or of ``kinds``) up to the tile that step ``until`` lies in, which
    is not sealed itself; without it all of them as a whole."""

    def run(session: Session) -> None:
        streams = session.exec(select(Stream).where(col(Stream.name).startswith("layer/"))).all()
        for stream in streams:
            if kinds and stream.name.removeprefix("layer/") not in kinds:
                continue
            assert stream.id is not None
            for name in ("columns", "fan", "block", "keep_bits", "keep_bits_pooled"):
                setattr(stream, name, getattr(geometry, name))
            for attempt in session.exec(select(Attempt).where(Attempt.run_id == stream.run_id)).all():
                _seal(session, stream, attempt, geometry, until)

    store.write(run)


def _seal(session: Session, stream: Stream, attempt: Attempt, geometry: Geometry, until: int | None) -> None:
    assert stream.id is not None
    if attempt.last_step is None or attempt.first_step is None:
        return
    cache = FrameCache(0)
    state = session.get(StreamState, (stream.id, attempt.n)) or StreamState(stream_id=stream.id, attempt=attempt.n)
    assert state.sealed == 0, "sealed in one go"
    end = attempt.last_step // geometry.columns + 1 if until is None else until // geometry.columns
    everything = Stretch(attempt=attempt.n, first=0, last=end * geometry.columns - 1)
    spans = session.execute(
        select(WalFrame.first, WalFrame.n).where(WalFrame.stream_id == stream.id, WalFrame.attempt == attempt.n)
    ).all()
    numbers = sorted(
        {
            number
            for first, n in spans
            for number in range(first // geometry.columns, (first + n - 1) // geometry.columns + 1)
            if number < end
        }
    )
    layers = 1 + max(
        (
            int(stored.content.layers.max())
            for stored in summary_frames(session, cache, stream.id, everything)
            if len(stored.content.layers)
        ),
        default=-1,
    )
    for block in range(-(-layers // geometry.block)):
        first_layer = block * geometry.block
        size = min(geometry.block, layers - first_layer)

        def raw(first_layer: int = first_layer, size: int = size) -> Iterator[tuple[int, Planes]]:
            for number in numbers:
                first = number * geometry.columns
                stretch = Stretch(attempt=attempt.n, first=first, last=first + geometry.columns - 1)
                frames = [(s.rank, s.content) for s in summary_frames(session, cache, stream.id or 0, stretch)]
                yield (
                    number,
                    raw_planes(
                        frames,
                        first=first,
                        columns=geometry.columns,
                        layers=size,
                        ranks=attempt.world,
                        first_layer=first_layer,
                    ),
                )

        write_tiles(session, stream, attempt.n, block, tile_rows(raw(), geometry, layers=size, first_layer=first_layer))
    state.sealed = end * geometry.columns
    state.epoch += 1
    state.appends += 1
    session.merge(state)
    session.flush()
    session.execute(
        delete(WalFrame).where(
            col(WalFrame.stream_id) == stream.id,
            col(WalFrame.attempt) == attempt.n,
            col(WalFrame.first) + col(WalFrame.n) <= state.sealed,
        )
    )
    session.flush()
