"""What waits for the writer thread, and what becomes of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from floatscope import wire
from floatscope_server.database import StoreError
from floatscope_server.store.batch import Reply

__all__ = ["Counters", "Inbox", "Incoming", "Job", "guarded", "later"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RETRY_AFTER_S = 5.0


@dataclass(slots=True, kw_only=True)
class Incoming:
    """A message of a writer."""

    writer: str
    message: wire.AgentMessage
    reply: Reply
    answered: bool = False

    def answer(self, message: wire.ServerMessage) -> None:
        """Reply, once; a connection that is gone must not stop the writer."""
        self.answered = True
        guarded(self.reply, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to be done with the connection; ``future`` gets what it returns or raises."""

    run: Callable[[Connection], object]
    future: Future[object]


class Inbox:
    """The queue of the writer thread; anybody may put something in, the writer alone takes out."""

    def __init__(self) -> None:
        self._queue: deque[Incoming | Job] = deque()
        self._waiting: Counter[str] = Counter()
        self._full = False
        """Whether a writer has as many messages in the queue as it may have in flight."""
        self._wake = threading.Condition()
        self._closed = False

    def open(self) -> None:
        """Take what comes."""
        self._closed = False

    def close(self) -> None:
        """Take nothing any more."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._closed

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, item: Incoming | Job) -> None:
        """``StoreError`` once it is closed."""
        with self._wake:
            if self._closed:
                raise StoreError("the store takes nothing any more: the server is stopping, or its log says why")
            self._queue.append(item)
            if isinstance(item, Incoming):
                self._waiting[item.writer] += 1
                self._full |= self._waiting[item.writer] >= wire.MAX_IN_FLIGHT
            self._wake.notify()

    def first(self, until: float) -> Incoming | Job | None:
        """What waits longest; None if nothing came ``until`` then, by ``time.monotonic``, or before it was closed."""
        with self._wake:
            while not self._queue and not self._closed:
                left = until - time.monotonic()
                if left <= 0 or not self._wake.wait(left):
                    break
            return self._queue[0] if self._queue else None

    def gather(self, until: float) -> None:
        """Wait for more to commit, but not where a writer has sent all that it may before it is answered."""
        with self._wake:
            while not (self._closed or self._full) and (left := until - time.monotonic()) > 0:
                self._wake.wait(left)

    def job(self, wait_s: float = 0.0) -> Job | None:
        """The first job, wherever it stands; None if there is none when something has come or ``wait_s`` are over."""
        with self._wake:
            job = next((item for item in self._queue if isinstance(item, Job)), None)
            if job is None:
                self._wake.wait(wait_s)
            else:
                self._queue.remove(job)
            return job

    def take(self) -> list[Incoming]:
        """The messages up to the next job."""
        taken: list[Incoming] = []
        with self._wake:
            self._waiting, self._full = Counter(), False
            while self._queue and isinstance(item := self._queue[0], Incoming):
                self._queue.popleft()
                taken.append(item)
        return taken

    def rest(self) -> list[Incoming | Job]:
        """All that is left; nothing comes any more."""
        with self._wake:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
        return left


@dataclass(slots=True, kw_only=True)
class Counters:
    """What the writer thread has done since the start."""

    commits: int = 0
    blocks: int = 0
    frames: int = 0
    failed_commits: int = 0


def later(message: wire.AgentMessage, code: str, text: str, expected: int) -> wire.ServerMessage:
    """The answer by which the agent keeps ``message`` and sends it again, with all from ``expected`` on."""
    if isinstance(message, wire.Hello):
        hint = "see to the server's disk and its log; the agent tries again by itself"
        return wire.Refused(code=code, message=text, hint=hint, retryable=True)
    if isinstance(message, wire.Beat):
        return wire.Beat()
    return wire.Nack(
        seq=message.seq, code=code, message=text, expected=expected, retryable=True, retry_after_s=_RETRY_AFTER_S
    )


def guarded(observe: Callable[[_T], None], item: _T) -> None:
    """An observer's mistake must not stop the writer."""
    try:
        observe(item)
    except Exception:  # noqa: BLE001 - logged
        _log.exception("an observer failed")
