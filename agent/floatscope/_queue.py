"""The first of two queues: records that wait for their numbers to arrive from the device."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from floatscope import wire
from floatscope._record import PendingRecord

__all__ = ["Dropped", "PendingQueue"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """``count`` records of steps ``first`` to ``last`` that a limit pushed out."""

    first: int
    last: int
    count: int
    layers: tuple[wire.Layer, ...] = ()
    """Entries that those records would have announced; later rows refer to them."""


class PendingQueue:
    """First in, first out, bounded in records and in bytes of host memory.

    A full queue drops its oldest record: the latest state matters more than history. ``put`` is for one thread at a
    time, the training's, and takes the lock only to drop: after a step's computation everything that it touches has to
    come from memory, and the lock doubles its time. The other methods are for one consumer.
    """

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: deque[PendingRecord] = deque()
        # Each is written by one side only: by ``put``, and under the lock.
        self._bytes_put = 0
        self._bytes_gone = 0
        self._dropped: Dropped | None = None
        # Re-entrant: a signal handler may end the training in the middle of a put, on the same thread.
        self._lock = threading.RLock()

    def put(self, record: PendingRecord) -> int:
        """Take ``record`` and return the bytes that now wait."""
        nbytes = record.nbytes
        # Before it can be taken, so that what waits is never negative. Nothing interrupts an addition and its store.
        self._bytes_put += nbytes
        self._records.append(record)
        waiting = self._bytes_put - self._bytes_gone
        if waiting > self._max_bytes or len(self._records) > self._max_records:
            self._drop()
            return self.nbytes
        return waiting

    def _drop(self) -> None:
        with self._lock:
            while len(self._records) > 1 and (len(self._records) > self._max_records or self.nbytes > self._max_bytes):
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._records.popleft()
        self._bytes_gone += oldest.nbytes
        before = self._dropped
        if before is None:
            self._dropped = Dropped(oldest.step, oldest.step, 1, oldest.layers)
        else:
            self._dropped = Dropped(
                min(before.first, oldest.step),
                max(before.last, oldest.step),
                before.count + 1,
                before.layers + oldest.layers,
            )

    def take_dropped(self) -> Dropped | None:
        """What was dropped since the last call; all of it is older than what ``take`` returns next."""
        with self._lock:
            dropped, self._dropped = self._dropped, None
            return dropped

    def take(self) -> PendingRecord | None:
        """The oldest record, once its numbers have arrived; None while there is none or it is not ready."""
        with self._lock:
            oldest = self._records[0] if self._records else None
        # Asking the device may take a driver's lock; ``put`` must not wait for that.
        if oldest is None or not oldest.ready():
            return None
        with self._lock:
            if not self._records or self._records[0] is not oldest:
                return None
            self._bytes_gone += oldest.nbytes
            return self._records.popleft()

    def clear(self) -> int:
        """Throw everything away and return how many records that were, those dropped before included."""
        with self._lock:
            count = self._dropped.count if self._dropped else 0
            self._dropped = None
            while self._records:
                self._bytes_gone += self._records.popleft().nbytes
                count += 1
            return count

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that wait."""
        return self._bytes_put - self._bytes_gone

    def __len__(self) -> int:
        return len(self._records)
