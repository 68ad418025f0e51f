"""One tile of a stream: from the tail into tiles of all levels, or what came late into the tiles that are there.

Whatever is written of a tile is valid only with the watermark that the last transaction moves. Until then readers do
not see it, a crash leaves nothing that counts, and the next attempt discards what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from sqlalchemy import delete
from sqlmodel import Session, col

from floatscope_server.models import WalFrame
from floatscope_server.store.climb import Climb, completed
from floatscope_server.store.due import Due, layers_of
from floatscope_server.store.late import ROWS, Late, Store
from floatscope_server.store.lateness import gap_of, store_events
from floatscope_server.store.present import concerns
from floatscope_server.store.summary_tail import FrameKey, Tail, frames_between
from floatscope_server.store.tilestore import (
    Place,
    StreamKey,
    advance,
    close_frames,
    delete_parts,
    discard_unsealed,
    hold,
    insert_tiles,
    rank_row,
    settle_geometry,
)
from floatscope_server.tiles.departures import MOST, Departure
from floatscope_server.tiles.rows import TileRow
from floatscope_server.tiles.statistics import Stat

__all__ = ["Seal"]


class Seal:
    """Seals for one process. Nothing is kept but what this process last made of each stream. ``rest`` is called after
    each piece of work, outside of transactions that write."""

    def __init__(self, store: Store, rest: Callable[[], object] = bool) -> None:
        self._store = store
        self._rest = rest
        self._own: dict[tuple[int, int], tuple[int, int]] = {}
        """Sealed and epoch of each stream and attempt as this process left them: then nothing lies beyond."""

    def run(self, due: Due) -> bool:
        """Whether anything could be done: what the rules have yet to judge stays, and what is behind late frames waits
        for them. ``OvertakenError`` if another one was faster; ``DamagedFrameError``."""
        return self._late(due) if due.late else self._tile(due)

    def drop(self, due: Due, frame: FrameKey) -> None:
        """Take a frame that cannot be read out of the way, and say so."""

        def dropped(session: Session) -> None:
            concerns(session, due.key.run_id, due.key.stream_id)
            hold(session.connection(), due.key)
            session.connection().execute(delete(WalFrame).where(col(WalFrame.id) == frame.id))
            session.add(gap_of(due, [frame], "a stored frame was damaged"))

        self._store.write(dropped)

    def _tile(self, due: Due) -> bool:
        geometry, key = due.geometry, due.key
        first, end = due.idx * geometry.columns, (due.idx + 1) * geometry.columns
        with self._store.read() as session:
            keys = frames_between(session, key, first, end)
            if not keys or any(
                frame.first < key.sealed or frame.seq > due.marks.get(frame.writer, 0) for frame in keys
            ):
                return False
            due = replace(due, layers=layers_of(session, key.run_id))
            tail = Tail(session, keys, geometry, first=first, layers=due.layers, ranks=due.world, rest=self._rest)
        blocks = range(-(-due.layers // geometry.block))
        events: list[Departure] = list(_missing(due, keys, first))
        levels = completed(geometry, due.idx, key.sealed)

        def rows() -> Iterator[tuple[Place, TileRow]]:
            for block in blocks:
                raw = tail.planes(block) if block < tail.blocks else {}
                climb = Climb(key=key, geometry=geometry, block=block, idx=due.idx)
                if raw or any(levels):
                    with self._store.read() as session:
                        yield from climb.rows(session, raw)
                if raw and due.several:
                    yield Place(0, 0, block, due.idx), rank_row(tail.rank_sets(block))
                if due.world > 1 and raw and len(events) < MOST:
                    events.extend(tail.departures(block))
                self._rest()

        def finish(session: Session, key: StreamKey) -> None:
            connection = session.connection()
            advance(connection, key, end)
            if not due.settled:
                settle_geometry(connection, key.stream_id, geometry)
            for level, full in enumerate(levels, start=1):
                for tile in full:
                    delete_parts(connection, key, level, blocks, tile * geometry.fan, (tile + 1) * geometry.fan)
            close_frames(connection, ((frame.id, frame.first, frame.n) for frame in keys), end)
            store_events(session, due, events[:MOST])

        self._publish(due, rows(), finish, end)
        return True

    def _publish(
        self,
        due: Due,
        rows: Iterator[tuple[Place, TileRow]],
        finish: Callable[[Session, StreamKey], None],
        end: int,
    ) -> None:
        key = due.key
        of_stream = key.stream_id, key.attempt
        # Rows beyond the watermark may be there unless this process put the watermark where it is.
        clean = self._own.pop(of_stream, None) == (key.sealed, key.epoch)
        blocks = -(-due.layers // due.geometry.block)
        begun = False
        while True:
            some = list(islice(rows, ROWS))
            last = len(some) < ROWS

            def job(
                session: Session,
                key: StreamKey = key,
                some: Sequence[tuple[Place, TileRow]] = some,
                discard: bool = not clean,
                last: bool = last,
                begun: bool = begun,
            ) -> None:
                connection = session.connection()
                concerns(session, key.run_id, key.stream_id)
                if last:
                    finish(session, key)
                elif begun:
                    hold(connection, key)
                else:
                    # From here on another one that has read the same state cannot add to it.
                    advance(connection, key, key.sealed)
                if discard:
                    discard_unsealed(connection, key, due.geometry, blocks)
                insert_tiles(connection, key, some)

            self._store.write(job)
            if last:
                self._own[of_stream] = end, key.epoch + 1
                self._store.settle()
                return
            if not begun:
                key = replace(key, epoch=key.epoch + 1)
            begun, clean = True, True

    def _late(self, due: Due) -> bool:
        moves = Late(self._store, due, self._rest).run()
        of_stream, state = (due.key.stream_id, due.key.attempt), (due.key.sealed, due.key.epoch)
        if moves and self._own.get(of_stream) == state:
            self._own[of_stream] = due.key.sealed, due.key.epoch + moves
        return moves is not None


def _missing(due: Due, keys: Iterable[FrameKey], first: int) -> Iterator[Departure]:
    """Ranks that have reported before and have nothing in this tile."""
    if due.world > 1:
        for rank in sorted(due.ranks - {frame.rank for frame in keys})[:MOST]:
            yield Departure(first, rank, -1, int(Stat.STEPS), float(due.geometry.columns), None, "missing")
