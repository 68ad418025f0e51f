"""Scalars of the open tail, decoded once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import bindparam, select
from sqlmodel import Session, SQLModel

from floatscope_server.store.framed import scalars_of
from floatscope_server.tiles.points import Points

__all__ = ["Tails"]

_MAX_POINTS = 4 << 20
"""64 MiB. A tail has some thousand steps."""

_STATE = SQLModel.metadata.tables["stream_state"].c
_FRAME = SQLModel.metadata.tables["wal_frame"].c
_EPOCH = select(_STATE.epoch).where(_STATE.stream_id == bindparam("stream"), _STATE.attempt == bindparam("attempt"))
_NEW = (
    select(_FRAME.id, _FRAME.data)
    .where(
        _FRAME.stream_id == bindparam("stream"),
        _FRAME.attempt == bindparam("attempt"),
        _FRAME.rank == bindparam("rank"),
        _FRAME.id > bindparam("newest"),
    )
    .order_by(_FRAME.id)
)

_Key = tuple[int, int, int]
"""Stream, attempt, rank."""


@dataclass(slots=True)
class _Tail:
    """The points by name as of ``epoch``; ``newest`` is the last frame."""

    epoch: int
    newest: int = 0
    n: int = 0
    joined: dict[str, Points] = field(default_factory=dict)


class Tails:
    """The points of a rank that are not sealed. Frames are only added until some are sealed; then the rest is read
    anew."""

    def __init__(self) -> None:
        self._tails: OrderedDict[_Key, _Tail] = OrderedDict()
        self._n = 0
        self._lock = threading.Lock()

    def points(self, session: Session, stream: int, attempt: int, rank: int) -> Mapping[str, Points]:
        """By name, as ``session`` sees them, or newer."""
        key = stream, attempt, rank
        state = session.connection().execute(_EPOCH, {"stream": stream, "attempt": attempt}).scalar_one_or_none()
        epoch = 0 if state is None else state
        with self._lock:
            tail = self._tails.get(key)
            if tail is not None and tail.epoch > epoch:
                # The session is older than what is kept.
                old = _Tail(epoch)
                _read(session, key, old)
                return dict(old.joined)
            if tail is None or tail.epoch < epoch:
                self._n -= 0 if tail is None else tail.n
                tail = self._tails[key] = _Tail(epoch)
            self._tails.move_to_end(key)
            self._n += _read(session, key, tail)
            found = dict(tail.joined)
            while self._n > _MAX_POINTS and self._tails:
                _, oldest = self._tails.popitem(last=False)
                self._n -= oldest.n
            return found


def _read(session: Session, key: _Key, tail: _Tail) -> int:
    """Take in the frames that came since; how many points they hold."""
    stream, attempt, rank = key
    rows = session.connection().execute(
        _NEW, {"stream": stream, "attempt": attempt, "rank": rank, "newest": tail.newest}
    )
    before = tail.n
    pieces: dict[str, list[Points]] = {}
    for number, data in rows:
        tail.newest = number
        for series in scalars_of(data) or ():
            steps = np.frombuffer(series.steps, "<i8")
            pieces.setdefault(series.name, []).append(Points(steps, np.frombuffer(series.values, "<f8")))
            tail.n += len(steps)
    for name, parts in pieces.items():
        known = [tail.joined[name]] if name in tail.joined else []
        tail.joined[name] = Points.joined([*known, *parts])
    return tail.n - before
