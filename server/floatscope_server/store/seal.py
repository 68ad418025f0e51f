"""One tile of a stream: from the tail into tiles of all levels, or what came late into the tiles that are there.

Whatever is written of a tile is valid only with the watermark that the last transaction moves. Until then readers do
not see it, a crash leaves nothing that counts, and the next attempt discards what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
from sqlalchemy import delete, insert
from sqlmodel import Session, col

from floatscope_server.models import Gap, RankEvent, StreamState, WalFrame
from floatscope_server.store.climb import Climb, completed, repaired
from floatscope_server.store.due import Due, layers_of
from floatscope_server.store.summary_tail import FrameKey, Tail, frames_between
from floatscope_server.store.tilestore import (
    Place,
    StreamKey,
    advance,
    change,
    close_frames,
    delete_parts,
    discard_unsealed,
    has_raw,
    hold,
    insert_tiles,
    read_planes,
    replace_tiles,
    settle_geometry,
)
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.departures import MOST, Departure
from floatscope_server.tiles.patch import overlaid, patched
from floatscope_server.tiles.planes import Planes
from floatscope_server.tiles.rows import TileRow, grown
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["MOST_LATE_TILES", "Seal", "Store"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

MOST_LATE_TILES = 64
"""What comes later than this is refused: it would be patched into ever more of what is settled."""

_ROWS = 200
"""Rows that one transaction adds, about 2 MB: acknowledgements wait for as long."""

_REQUIRED = {(stat, Agg.VALUE) for stat in (Stat.COUNT, Stat.ZEROS, Stat.NANS, Stat.INFS, Stat.ABSMAX)}


class Store(Protocol):
    """What sealing needs of the store."""

    def write(self, fn: Callable[[Session], _T]) -> _T: ...
    def read(self) -> AbstractContextManager[Session]: ...
    def settle(self) -> None: ...


class Seal:
    """Seals for one process. Nothing is kept but what this process last made of each stream."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._own: dict[tuple[int, int], tuple[int, int]] = {}
        """Sealed and epoch of each stream and attempt as this process left them: then nothing lies beyond."""

    def run(self, due: Due) -> bool:
        """Whether anything could be done: what the rules have yet to judge stays, and what is behind late frames waits
        for them. ``OvertakenError`` if another one was faster; ``DamagedFrameError``."""
        return self._late(due) if due.late else self._tile(due)

    def drop(self, due: Due, frame: FrameKey) -> None:
        """Take a frame that cannot be read out of the way, and say so."""

        def dropped(session: Session) -> None:
            hold(session.connection(), due.key)
            session.connection().execute(delete(WalFrame).where(col(WalFrame.id) == frame.id))
            session.add(_gap(due, [frame], "a stored frame was damaged"))

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
            tail = Tail(session, keys, geometry, first=first, layers=due.layers, ranks=due.world)
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
                if due.world > 1 and len(events) < MOST:
                    events.extend(tail.departures(block))

        def finish(session: Session, key: StreamKey) -> None:
            connection = session.connection()
            advance(connection, key, end)
            settle_geometry(connection, key.stream_id, geometry)
            for level, full in enumerate(levels, start=1):
                for tile in full:
                    delete_parts(connection, key, level, blocks, tile * geometry.fan, (tile + 1) * geometry.fan)
            close_frames(connection, ((frame.id, frame.first, frame.n) for frame in keys), end)
            _store_events(session, due, events[:MOST])

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
            some = list(islice(rows, _ROWS))
            last = len(some) < _ROWS

            def job(
                session: Session,
                key: StreamKey = key,
                some: Sequence[tuple[Place, TileRow]] = some,
                discard: bool = not clean,
                last: bool = last,
                begun: bool = begun,
            ) -> None:
                connection = session.connection()
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
        geometry, key = due.geometry, due.key
        first = due.idx * geometry.columns
        end = min(first + geometry.columns, key.sealed)
        with self._store.read() as session:
            keys = [
                frame
                for frame in frames_between(session, key, first, end)
                if frame.seq <= due.marks.get(frame.writer, 0)
            ]
            if not keys:
                return False
            due = replace(due, layers=layers_of(session, key.run_id))
            refused = _refusal(session, due)
            kinds = (None,) if due.world == 1 else (False, True)
            tails = [
                Tail(session, keys, geometry, first=first, layers=due.layers, ranks=due.world, same=same)
                for same in kinds
                if refused is None
            ]
        if refused is not None:
            self._refuse(due, keys, first + geometry.columns, refused)
            return True
        places: list[tuple[Place, list[TileRow]]] = []
        for block in range(max(tail.blocks for tail in tails)):
            late = [tail.planes(block) if block < tail.blocks else {} for tail in tails]
            if any(late):
                with self._store.read() as session:
                    places += self._patched(session, due, block, late)

        def patch(session: Session) -> None:
            connection = session.connection()
            change(connection, key)
            settle_geometry(connection, key.stream_id, geometry)
            replace_tiles(connection, key, places)
            close_frames(connection, ((frame.id, frame.first, frame.n) for frame in keys), end)
            if due.world > 1:
                _store_events(session, due, _late_ranks(keys))

        self._store.write(patch)
        of_stream = key.stream_id, key.attempt
        if self._own.get(of_stream) == (key.sealed, key.epoch):
            self._own[of_stream] = key.sealed, key.epoch + 1
        return True

    def _patched(
        self, session: Session, due: Due, block: int, late: Sequence[Planes]
    ) -> Iterator[tuple[Place, list[TileRow]]]:
        held = read_planes(session, due.key, Place(0, 0, block, due.idx), due.idx + 1).get(due.idx, {})
        if not held.keys() >= _REQUIRED:
            held = {}
        layers = max(len(plane) for planes in (held, *late) for plane in planes.values())
        raw, *came = [{key: grown(plane, layers) for key, plane in planes.items()} for planes in (held, *late)]
        changed = np.zeros(due.geometry.columns, np.bool_)
        for planes in came:
            if planes:
                changed |= (~is_missing(planes[Stat.COUNT, Agg.VALUE])).any(axis=0)
        # What other ranks have as well may have been counted already: it fills gaps, and adds nothing.
        raw = overlaid(raw, came[0]) if due.world == 1 else overlaid(came[1], patched(raw, came[0]))
        climb = Climb(key=due.key, geometry=due.geometry, block=block, idx=due.idx)
        yield from repaired(session, climb, raw, changed)

    def _refuse(self, due: Due, keys: Sequence[FrameKey], upto: int, text: str) -> None:
        by_rank: dict[int, list[FrameKey]] = {}
        for frame in keys:
            by_rank.setdefault(frame.rank, []).append(frame)

        def refused(session: Session) -> None:
            hold(session.connection(), due.key)
            close_frames(session.connection(), ((frame.id, frame.first, frame.n) for frame in keys), upto)
            for frames in by_rank.values():
                session.add(_gap(due, frames, text))

        self._store.write(refused)


def _refusal(session: Session, due: Due) -> str | None:
    """Why what came late cannot be brought into its tile, or None."""
    end = (due.idx + 1) * due.geometry.columns
    if end <= due.key.sealed - MOST_LATE_TILES * due.geometry.columns:
        return f"more than {MOST_LATE_TILES * due.geometry.columns} steps late"
    state = session.get(StreamState, (due.key.stream_id, due.key.attempt))
    if state is not None and end <= state.raw_from and not has_raw(session, due.key, due.idx):
        # What is pooled of several steps cannot be mended with one of them.
        return "late for steps that are not kept one by one any more"
    return None


def _gap(due: Due, frames: Sequence[FrameKey], reason: str) -> Gap:
    return Gap(
        run_id=due.key.run_id,
        rank=frames[0].rank,
        first=min(frame.first for frame in frames),
        last=max(frame.first + frame.n - 1 for frame in frames),
        count=len(frames),
        reason=reason,
    )


def _missing(due: Due, keys: Iterable[FrameKey], first: int) -> Iterator[Departure]:
    """Ranks that have reported before and have nothing in this tile."""
    if due.world > 1:
        for rank in sorted(due.ranks - {frame.rank for frame in keys})[:MOST]:
            yield Departure(first, rank, -1, int(Stat.STEPS), float(due.geometry.columns), None, "missing")


def _late_ranks(keys: Iterable[FrameKey]) -> list[Departure]:
    """One of each rank: its first late step, and how many."""
    first: dict[int, int] = {}
    steps: dict[int, int] = {}
    for frame in keys:
        first[frame.rank] = min(first.get(frame.rank, frame.first), frame.first)
        steps[frame.rank] = steps.get(frame.rank, 0) + frame.n
    return [Departure(first[rank], rank, -1, int(Stat.STEPS), float(steps[rank]), None, "late") for rank in first][
        :MOST
    ]


def _store_events(session: Session, due: Due, events: Sequence[Departure]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "run_id": due.key.run_id,
            "attempt": due.key.attempt,
            "stream_id": due.key.stream_id,
            **event._asdict(),
        }
        for event in events
    ]
    if rows:
        session.connection().execute(insert(RankEvent), rows)
