"""Housekeeping in small pieces: runs that are deleted, tiles that are damaged, what is old."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Protocol, TypeVar

from sqlalchemy import select
from sqlmodel import Session, SQLModel, col

from floatscope_server.database import StoreError, reason, trouble, utc
from floatscope_server.models import HistTile, Run, ScalarChunk
from floatscope_server.store.delivered import drop_deliveries
from floatscope_server.store.dropping import (
    ROWS,
    ages_of,
    delete_rows,
    drop_tiles,
    keeping_of,
    old_histograms,
    old_readings,
    plan,
    progress,
)
from floatscope_server.store.lifecycle import DELETED, ENDED
from floatscope_server.store.removal import condemned, remove_some
from floatscope_server.store.repair import Suspect, mend
from floatscope_server.store.retention import Held, SteadyClock

__all__ = ["Keeper", "Store"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_EVERY_S = 3600.0
_ENDED_EVERY_S = 86_400.0
"""What is over goes on ageing, but slowly."""
_RETRY_S = 60.0
_PAGES = 128
"""Given back in one go, 1 MiB: some 8 ms."""
_SPARE_PAGES = 2048
"""Left free for what comes next; to give them back and take them again would be in vain."""
_MOST_TILES = 32
_MOST_SUSPECTS = 10_000


class Store(Protocol):
    """What housekeeping needs of the store."""

    def write(self, fn: Callable[[Session], _T]) -> _T: ...
    def read(self) -> AbstractContextManager[Session]: ...
    def shrink(self, pages: int) -> int: ...
    def now(self) -> datetime: ...


class Keeper:
    """``step`` does one piece of what is due, a transaction of at most some hundred rows, and is called by one thread,
    between seals: the two must not change a stream at the same time. Everything else may be called by any thread.
    """

    def __init__(self, store: Store, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._clock = SteadyClock()
        self._lock = threading.Lock()
        self._suspects: dict[Suspect, None] = {}
        self._told: set[Suspect] = set()
        self._removing = True
        self._changed = True
        self._passed = -math.inf
        self._looked: dict[int, float] = {}
        self._paused = -math.inf
        self._work: Iterator[None] | None = None

    def retention_changed(self) -> None:
        """What is kept how long is another matter now."""
        with self._lock:
            self._changed = True

    def run_deleted(self) -> None:
        """There is a run whose rows are to go."""
        with self._lock:
            self._removing = True

    def damaged(self, suspects: Iterable[Suspect]) -> None:
        """Somebody could not read these; the log says so once."""
        with self._lock:
            fresh = [suspect for suspect in suspects if suspect not in self._told]
            for suspect in fresh[: _MOST_SUSPECTS - len(self._suspects)]:
                self._suspects[suspect] = None
                if len(self._told) < _MOST_SUSPECTS:
                    self._told.add(suspect)
                _log.error("row %d of %s is damaged; it is going to be mended", suspect.id, suspect.table)

    def step(self) -> bool:
        """Do a piece of what is due; whether there was any."""
        if self._monotonic() < self._paused:
            return False
        if self._work is None:
            self._work = self._due()
        if self._work is None:
            return False
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            known = isinstance(error, StoreError) or trouble(error) is not None
            _log.warning("housekeeping failed; trying again in %g s: %s", _RETRY_S, reason(error), exc_info=not known)
            self._work = None
            self._paused = self._monotonic() + _RETRY_S
            with self._lock:
                self._removing = self._changed = True
            return False
        return True

    def _due(self) -> Iterator[None] | None:
        now = self._monotonic()
        with self._lock:
            if self._suspects:
                return self._mend(list(self._suspects))
            if self._removing:
                self._removing = False
                return self._remove()
            if self._changed or now - self._passed >= _EVERY_S:
                everything, self._changed = self._changed, False
                self._passed = now
                return self._retain(everything)
        return None

    def _mend(self, suspects: Sequence[Suspect]) -> Iterator[None]:
        for suspect in suspects:
            with self._store.read() as session:
                mending = mend(session, suspect)
            if mending is not None:
                self._store.write(mending.apply)
                _log.warning("%s", mending.text)
            with self._lock:
                self._suspects.pop(suspect, None)
            yield

    def _remove(self) -> Iterator[None]:
        with self._store.read() as session:
            runs = condemned(session)
        for run_id in runs:
            while self._store.write(partial(remove_some, run_id=run_id, rows=ROWS)):
                yield
        if runs:
            yield from self._shrink()

    def _retain(self, everything: bool) -> Iterator[None]:
        with self._store.read() as session:
            runs = session.execute(select(col(Run.id), col(Run.state)).where(col(Run.state) != DELETED)).all()
        gone = False
        while self._store.write(lambda session: drop_deliveries(session, self._now(), ROWS)):
            gone = True
            yield
        for run_id, state in runs:
            now = self._monotonic()
            if not everything and state in ENDED and now - self._looked.get(run_id, -math.inf) < _ENDED_EVERY_S:
                continue
            self._looked[run_id] = now
            for piece in self._retain_run(run_id):
                gone = gone or piece
                yield
        if gone:
            yield from self._shrink()

    def _now(self) -> datetime:
        return utc(self._clock.now(self._store.now().timestamp(), self._monotonic()))

    def _retain_run(self, run_id: int) -> Iterator[bool]:
        """Whether the piece deleted anything."""
        now = self._now()
        with self._store.read() as session:
            noted = progress(session, run_id, now)
        if noted:
            self._store.write(lambda session: session.add_all(noted))
            yield False
        with self._store.read() as session:
            keeping = keeping_of(session, run_id)
            session.expunge_all()
            tiles = plan(session, run_id, keeping, now)
        for _, group in groupby(tiles, key=lambda tile: (tile.level, tile.attempt, tile.stream)):
            yield from self._drop(run_id, list(group))
        while self._rows(HistTile, lambda s: old_histograms(s, run_id, keeping, ages_of(s, run_id, now))):
            yield True
        while self._rows(ScalarChunk, lambda session: old_readings(session, run_id, keeping, now)):
            yield True

    def _drop(self, run_id: int, tiles: Sequence[Held]) -> Iterator[bool]:
        at, number = 0, 1
        while at < len(tiles):
            some = tiles[at : at + number]
            rows = self._store.write(partial(drop_tiles, run_id=run_id, tiles=some))
            at += len(some)
            number = max(1, min(_MOST_TILES, ROWS * len(some) // max(rows, 1)))
            yield True

    def _rows(self, table: type[SQLModel], find: Callable[[Session], list[int]]) -> bool:
        with self._store.read() as session:
            ids = find(session)
        if ids:
            self._store.write(lambda session: delete_rows(session, table, ids))
        return bool(ids)

    def _shrink(self) -> Iterator[None]:
        left = before = self._store.shrink(1)
        while left > _SPARE_PAGES:
            left = self._store.shrink(min(_PAGES, left - _SPARE_PAGES))
            yield
            if left >= before:
                return
            before = left
