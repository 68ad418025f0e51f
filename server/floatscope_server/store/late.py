"""What came late, brought into the tiles that are there.

Of one rank the later one stands. Of several, each counts once: what a rank sends for cells that have its rows already
is not added to them, since what these gave together cannot be taken apart. It waits in the tail for the other ranks of
the cell; once all of them have sent it again, that stands in place of what was there. To bring the same frames in twice
changes nothing, so that it need not be done in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope_server.store.climb import Climb, repaired
from floatscope_server.store.due import Due, layers_of
from floatscope_server.store.lateness import gap_of, late_ranks, let_wait, refusal, store_events
from floatscope_server.store.present import concerns
from floatscope_server.store.summary_tail import FrameKey, Tail, frames_between
from floatscope_server.store.tilestore import (
    Place,
    change,
    close_frames,
    hold,
    rank_row,
    read_planes,
    read_rank_sets,
    replace_tiles,
    settle_geometry,
)
from floatscope_server.tiles.codec import MISSING, MISSING64, is_missing
from floatscope_server.tiles.patch import overlaid, patched
from floatscope_server.tiles.planes import Planes
from floatscope_server.tiles.rank_sets import RankSets
from floatscope_server.tiles.rows import TileRow, grown
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["ROWS", "Late", "Store"]

_T = TypeVar("_T")

ROWS = 200
"""Rows that one transaction adds, about 2 MB: acknowledgements wait for as long."""

_MOST_WAITING = 512
"""Frames of a rank that wait for others to send a tile again; the oldest go."""

_COUNT = Stat.COUNT, Agg.VALUE
_REQUIRED = {(stat, Agg.VALUE) for stat in (Stat.COUNT, Stat.ZEROS, Stat.NANS, Stat.INFS, Stat.ABSMAX)}

_ALONE = "came again after it was sealed, and not from all ranks"
_UNKNOWN = "came late for steps of which it is not known any more what ranks are in them"

Bools = npt.NDArray[np.bool_]


class Store(Protocol):
    """What sealing needs of the store."""

    def write(self, fn: Callable[[Session], _T]) -> _T: ...
    def read(self) -> AbstractContextManager[Session]: ...
    def settle(self) -> None: ...


class Late:
    """The frames that came late for the tile of ``due``; ``rest`` is called after each block. ``OvertakenError`` if
    somebody else was faster."""

    def __init__(self, store: Store, due: Due, rest: Callable[[], object] = bool) -> None:
        self._store = store
        self._rest = rest
        self._due = due
        self._key = due.key
        self._first = due.idx * due.geometry.columns
        self._end = min(self._first + due.geometry.columns, due.key.sealed)
        self._waits: dict[int, Bools] = {}
        """By rank: the columns of which something is not brought in yet."""
        self._lost: dict[int, Bools] = {}
        """The same of what never will be."""

    def run(self) -> int | None:
        """How often that changed what is sealed; None if there was nothing to be done."""
        due = self._due
        with self._store.read() as session:
            keys = [
                frame
                for frame in frames_between(session, due.key, self._first, self._end)
                if frame.seq <= due.marks.get(frame.writer, 0)
            ]
            if not keys:
                return None
            # What waited may have a new number: of a writer the order is that of its blocks.
            keys.sort(key=lambda frame: (frame.rank, frame.writer, frame.seq, frame.id))
            due = self._due = replace(due, layers=layers_of(session, due.key.run_id))
            refused = refusal(session, due)
            tails = None if refused is not None else _Tails(session, due, keys)
        if tails is None:
            self._refuse(keys, refused or "")
            return 0
        rows: list[tuple[Place, list[TileRow]]] = []
        moves = 0
        for block in range(tails.every.blocks):
            with self._store.read() as session:
                rows += self._block(session, tails, block)
            self._rest()
            if sum(len(of_place) for _, of_place in rows) >= ROWS:
                self._write(rows)
                rows, moves = [], moves + 1
        self._write(rows, keys)
        return moves + bool(rows)

    def _write(self, rows: Sequence[tuple[Place, list[TileRow]]], keys: Sequence[FrameKey] | None = None) -> None:
        """Replace ``rows``; with ``keys``, all frames, the last of them."""
        key, due = self._key, self._due

        def write(session: Session) -> None:
            connection = session.connection()
            concerns(session, key.run_id, key.stream_id)
            if rows:
                change(connection, key)
                settle_geometry(connection, key.stream_id, due.geometry)
                replace_tiles(connection, key, rows)
            else:
                hold(connection, key)
            if keys is not None:
                self._close(session, keys)

        self._store.write(write)
        if rows:
            self._key = replace(key, epoch=key.epoch + 1)

    def _block(self, session: Session, tails: _Tails, block: int) -> list[tuple[Place, list[TileRow]]]:
        """The rows of a block that change."""
        due, geometry = self._due, self._due.geometry
        late = tails.every.planes(block)
        if not late:
            return []
        held = read_planes(session, self._key, Place(0, 0, block, due.idx), due.idx + 1).get(due.idx, {})
        if not held.keys() >= _REQUIRED:
            held = {}
        sets: RankSets | None = None
        if due.several:
            sets = tails.sets(block) if held else RankSets.none(0, geometry.columns)
            raw, came, sets = self._of_ranks(tails, block, held, late, sets)
        else:
            layers = _layers(held, late)
            raw, came = overlaid(_grown(held, layers), _grown(late, layers)), _observed(late, layers)
        if not came.any():
            return []
        climb = Climb(key=self._key, geometry=geometry, block=block, idx=due.idx)
        (place, of_raw), *above = repaired(session, climb, raw, np.asarray(came.any(axis=0)))
        return [(place, of_raw if sets is None else [*of_raw, rank_row(sets)]), *above]

    def _of_ranks(
        self, tails: _Tails, block: int, held: Planes, late: Planes, sets: RankSets | None
    ) -> tuple[Planes, Bools, RankSets | None]:
        """What the tile is then, where it is something else, and whose rows it has; ``sets``: whose it had, if that is
        known."""
        sent = tails.every.rank_sets(block)
        fresh, replicas = tails.fresh.planes(block), tails.replicas.planes(block)
        layers = max(_layers(held, late), len(sent.bits), 0 if sets is None else len(sets.bits))
        held, late, fresh, replicas = (_grown(planes, layers) for planes in (held, late, fresh, replicas))
        sent = sent.grown(layers)
        free = ~_observed(held, layers)
        if sets is None:
            for rank in sent.ranks.tolist():
                _note(self._lost, rank, sent.has(rank) & ~free)
            return overlaid(late, held), _observed(late, layers) & free, None
        sets = sets.grown(layers)
        again = sets.within(sent) & sent.any()
        for rank in sent.ranks.tolist():
            _note(self._waits, rank, sent.has(rank) & sets.has(rank) & ~again)
        came = _observed(fresh, layers) | (_observed(replicas, layers) & free) | again
        # A replica is what another rank has as well: it fills gaps, and adds nothing.
        raw = overlaid(replicas, patched(held, fresh))
        return overlaid(raw, _only(late, again)), came, sets.united(sent)

    def _close(self, session: Session, keys: Sequence[FrameKey]) -> None:
        """Take out of the tail what is in the tile, and let the rest wait if it may."""
        pending = [frame for frame in keys if self._among(frame, self._waits)]
        kept: list[FrameKey] = []
        if not self._due.over:
            for of_rank in _by_rank(pending):
                # With what it has sent since: or else the older one would be brought in over it.
                since = keys.index(of_rank[0])
                kept += [frame for frame in keys[since:] if frame.rank == of_rank[0].rank][-_MOST_WAITING:]
        waiting = {frame.id for frame in kept}
        let_wait(session, kept, self._end)
        done = (frame for frame in keys if frame.id not in waiting or frame.first + frame.n > self._end)
        close_frames(session.connection(), ((frame.id, frame.first, frame.n) for frame in done), self._end)
        alone = [frame for frame in pending if frame.id not in waiting]
        lost = [frame for frame in keys if self._among(frame, self._lost)]
        for left_out, reason in ((alone, _ALONE), (lost, _UNKNOWN)):
            session.add_all(gap_of(self._due, frames, reason) for frames in _by_rank(left_out))
        if self._due.several:
            store_events(session, self._due, late_ranks(frame for frame in keys if not frame.again))

    def _among(self, frame: FrameKey, columns: Mapping[int, Bools]) -> bool:
        low, high = max(frame.first - self._first, 0), min(frame.first + frame.n, self._end) - self._first
        return frame.rank in columns and bool(columns[frame.rank][low:high].any())

    def _refuse(self, keys: Sequence[FrameKey], text: str) -> None:
        upto = self._first + self._due.geometry.columns

        def refused(session: Session) -> None:
            concerns(session, self._key.run_id, self._key.stream_id)
            hold(session.connection(), self._key)
            close_frames(session.connection(), ((frame.id, frame.first, frame.n) for frame in keys), upto)
            session.add_all(gap_of(self._due, frames, text) for frames in _by_rank(keys))

        self._store.write(refused)


class _Tails:
    """What came late: all of it, what of it is of ranks that the tile does not have, and the replicas. ``session`` is
    needed to make it only."""

    def __init__(self, session: Session, due: Due, keys: Sequence[FrameKey]) -> None:
        self._sets = read_rank_sets(session, due.key, due.idx) if due.several else {}

        def tail(*, replicas: bool | None = None, but: Callable[[int], RankSets | None] | None = None) -> Tail:
            return Tail(
                session,
                keys,
                due.geometry,
                first=due.idx * due.geometry.columns,
                layers=due.layers,
                ranks=max(due.world, 2) if due.several else 1,
                replicas=replicas,
                but=but,
            )

        self.every = tail()
        self.fresh = tail(replicas=False, but=self.sets) if due.several else self.every
        self.replicas = tail(replicas=True) if due.several else self.every

    def sets(self, block: int) -> RankSets | None:
        """Whose rows the tile has of a block; None if that is not known."""
        return self._sets[block].sets() if block in self._sets else None


def _note(columns: dict[int, Bools], rank: int, cells: Bools) -> None:
    found = np.asarray(cells.any(axis=0))
    if found.any():
        columns[rank] = columns[rank] | found if rank in columns else found


def _only(planes: Planes, where: Bools) -> Planes:
    """``planes`` as if nothing else had been observed."""
    count = planes[_COUNT]
    gone = np.float64(MISSING64) if count.dtype == np.float64 else np.float32(MISSING)
    return {**planes, _COUNT: np.where(where, count, gone)}


def _observed(planes: Planes, layers: int) -> Bools:
    """[layers, columns]; one column where there are no planes."""
    count = planes.get(_COUNT)
    return np.zeros((layers, 1), np.bool_) if count is None else ~is_missing(count)


def _layers(*parts: Planes) -> int:
    return max((len(plane) for planes in parts for plane in planes.values()), default=0)


def _grown(planes: Planes, layers: int) -> Planes:
    return {key: grown(plane, layers) for key, plane in planes.items()}


def _by_rank(frames: Iterable[FrameKey]) -> list[list[FrameKey]]:
    found: dict[int, list[FrameKey]] = {}
    for frame in frames:
        found.setdefault(frame.rank, []).append(frame)
    return list(found.values())
