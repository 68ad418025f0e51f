"""Stored frames, decoded once: the newest stay in memory, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, select
from sqlmodel import Session, col

from floatscope_server.frame import Frame
from floatscope_server.models import WalFrame
from floatscope_server.query.line import Stretch
from floatscope_server.query.memory import now_of
from floatscope_server.store.framed import frame_of
from floatscope_server.store.parts import MAX_STEPS
from floatscope_server.store.present import FrameNow, RunNow

__all__ = ["FrameCache", "StoredFrame", "stored_frames", "summary_frames", "summary_frames_at"]

_T = TypeVar("_T")
_BATCH = 256
_OVERHEAD = 1000
"""Bytes that a decoded frame takes beside its data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrame(Generic[_T]):
    """A row of ``wal_frame`` with its decoded content."""

    id: int
    first: int
    n: int
    rank: int
    attempt: int
    content: _T


class _Key(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def attempt(self) -> int: ...


class FrameCache:
    """Least recently used decoded frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._frames: OrderedDict[int, tuple[Frame, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: int) -> Frame | None:
        """The frame of the row ``key``, if it is still there."""
        with self._lock:
            found = self._frames.get(key)
            if found is None:
                return None
            self._frames.move_to_end(key)
            return found[0]

    def put(self, key: int, frame: Frame, size: int) -> None:
        """Keep ``frame``, whose data takes ``size`` bytes."""
        size += _OVERHEAD
        with self._lock:
            if key in self._frames:
                return
            self._frames[key] = (frame, size)
            self._bytes += size
            while self._bytes > self._max and self._frames:
                _, (_, freed) = self._frames.popitem(last=False)
                self._bytes -= freed

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._bytes


def stored_frames(
    session: Session,
    stream: int,
    stretch: Stretch,
    decode: Callable[[bytes], _T | None],
    *,
    longest: int | None = None,
    rank: int | None = None,
) -> Iterator[StoredFrame[_T]]:
    """Frames of ``stream`` that touch ``stretch``, of ``rank`` or of all, in the order they were written, but for those
    that ``decode`` makes nothing of.

    ``longest``: the most steps that a frame of this stream can have, if there is such a limit.
    """
    condition = _touching(stream, stretch, longest=longest)
    if rank is not None:
        condition = (*condition, col(WalFrame.rank) == rank)
    statement = (
        select(*_KEY, col(WalFrame.data))
        .where(*condition)
        .order_by(col(WalFrame.id))
        .execution_options(yield_per=_BATCH)
    )
    # Whoever asked may stop early; a cursor of PostgreSQL must not stay open.
    with session.execute(statement) as rows:
        for row in rows:
            content = decode(row.data)
            if content is not None:
                yield _stored(row, content)


def summary_frames(session: Session, cache: FrameCache, stream: int, stretch: Stretch) -> Iterator[StoredFrame[Frame]]:
    """Like ``stored_frames`` for summaries, through ``cache``, and rank by rank."""
    now = now_of(session)
    keys: Sequence[_Key]
    if now is not None:
        keys = _held(now, stream, stretch)
    else:
        condition = _touching(stream, stretch, longest=MAX_STEPS)
        keys = session.execute(select(*_KEY).where(*condition).order_by(col(WalFrame.rank), col(WalFrame.id))).all()
    yield from _decoded(session, cache, keys)


def _held(now: RunNow, stream: int, stretch: Stretch) -> list[FrameNow]:
    """What ``_touching`` finds, rank by rank."""
    found = [
        frame
        for of in now.streams.values()
        if of.id == stream
        for frame in of.frames
        if frame.attempt == stretch.attempt
        and frame.first <= stretch.last
        and frame.first + frame.n > stretch.first
        and frame.first > stretch.first - MAX_STEPS
    ]
    return sorted(found, key=lambda frame: (frame.rank, frame.id))


def summary_frames_at(
    session: Session, cache: FrameCache, stream: int, attempt: int, steps: npt.NDArray[np.int64]
) -> Iterator[StoredFrame[Frame]]:
    """Like ``summary_frames``, but only those that touch one of ``steps`` (in order, at least one)."""
    stretch = Stretch(attempt=attempt, first=int(steps[0]), last=int(steps[-1]))
    condition = _touching(stream, stretch, longest=MAX_STEPS)
    keys = session.execute(select(*_KEY).where(*condition)).all()
    firsts = np.array([key.first for key in keys], np.int64)
    ends = firsts + np.array([key.n for key in keys], np.int64)
    touched = np.searchsorted(steps, firsts) < np.searchsorted(steps, ends)
    wanted = sorted((key for key, hit in zip(keys, touched.tolist(), strict=True) if hit), key=lambda key: key.id)
    yield from _decoded(session, cache, wanted)


def _decoded(session: Session, cache: FrameCache, keys: Sequence[_Key]) -> Iterator[StoredFrame[Frame]]:
    for start in range(0, len(keys), _BATCH):
        part = keys[start : start + _BATCH]
        frames = {row.id: cache.get(row.id) for row in part}
        missing = [key for key, frame in frames.items() if frame is None]
        if missing:
            fetched = session.execute(select(col(WalFrame.id), col(WalFrame.data)).where(col(WalFrame.id).in_(missing)))
            for number, data in fetched:
                frame = frames[number] = frame_of(data)
                if frame is not None:
                    cache.put(number, frame, sum(field.nbytes for field in frame.fields.values()))
        for row in part:
            # One that is damaged is missing.
            if (content := frames[row.id]) is not None:
                yield _stored(row, content)


def _stored(row: _Key, content: _T) -> StoredFrame[_T]:
    return StoredFrame(id=row.id, first=row.first, n=row.n, rank=row.rank, attempt=row.attempt, content=content)


_KEY = (col(WalFrame.id), col(WalFrame.attempt), col(WalFrame.first), col(WalFrame.n), col(WalFrame.rank))


def _touching(stream: int, stretch: Stretch, *, longest: int | None) -> tuple[ColumnElement[bool], ...]:
    """``longest``: no frame of the stream has more steps, so that the index bounds the search from below too."""
    condition = (
        col(WalFrame.stream_id) == stream,
        col(WalFrame.attempt) == stretch.attempt,
        col(WalFrame.first) <= stretch.last,
        col(WalFrame.first) + col(WalFrame.n) > stretch.first,
    )
    return condition if longest is None else (*condition, col(WalFrame.first) > stretch.first - longest)
