"""Histograms of the open tail, decoded and merged once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from sqlalchemy import bindparam, select
from sqlmodel import Session, SQLModel

from floatscope import wire
from floatscope_server.store.framed import histograms_of
from floatscope_server.store.hist_merge import merge_histograms
from floatscope_server.tiles.hist import HistRows

__all__ = ["HistTails"]

_MAX_BYTES = 48 << 20
"""A tail of 300 layers takes some ten MB, half of them in the merged rows."""

_STATE = SQLModel.metadata.tables["stream_state"].c
_FRAME = SQLModel.metadata.tables["wal_frame"].c
_EPOCH = select(_STATE.epoch).where(_STATE.stream_id == bindparam("stream"), _STATE.attempt == bindparam("attempt"))
_NEW = (
    select(_FRAME.id, _FRAME.rank, _FRAME.data)
    .where(
        _FRAME.stream_id == bindparam("stream"),
        _FRAME.attempt == bindparam("attempt"),
        _FRAME.id > bindparam("newest"),
    )
    .order_by(_FRAME.id)
)


@dataclass(slots=True)
class _Tail:
    """``parts`` of the frames up to ``newest`` as of ``epoch``; ``merged`` of all of them if it is known; ``end``: no
    part has a step from there on; ``rank`` of all of them, -1 if there are several."""

    epoch: int
    newest: int = 0
    size: int = 0
    parts: list[tuple[int, wire.Histograms]] = field(default_factory=list)
    rank: int | None = None
    end: int = 0
    merged: HistRows | None = None
    complete_to: int | None = None

    @property
    def nbytes(self) -> int:
        """Of the parts, and about as much of what they merge to."""
        return 2 * self.size

    def take(self, parts: list[tuple[int, wire.Histograms]]) -> None:
        """Take in what came after the rest."""
        if not parts:
            return
        ranks = {rank for rank, _ in parts}
        first = min(part.first_step for _, part in parts)
        alone = len(ranks) == 1 and self.rank in (None, *ranks)
        if self.merged is not None and alone and first >= self.end:
            # Steps of their own, of the only rank: they change nothing of the others.
            fresh = merge_histograms(parts, self.complete_to)
            self.merged = HistRows.concatenated([self.merged, fresh])
        else:
            self.merged = None
        self.rank = ranks.pop() if alone else -1
        self.parts += parts
        self.end = max(self.end, *(part.first_step + part.steps for _, part in parts))

    def rows(self, complete_to: int | None) -> HistRows:
        """All of them, merged over the ranks."""
        if self.merged is None or (self.complete_to != complete_to and self.rank == -1):
            self.merged = merge_histograms(self.parts, complete_to)
        elif self.complete_to != complete_to:
            last = self.merged.steps + self.merged.ahead + self.merged.span - 1
            self.merged = replace(self.merged, complete=last <= (-1 if complete_to is None else complete_to))
        self.complete_to = complete_to
        return self.merged


class HistTails:
    """What is not sealed of streams of histograms. Frames are only added until some are sealed; then the rest is read
    anew."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max = max_bytes
        self._tails: OrderedDict[tuple[int, int], _Tail] = OrderedDict()
        self._lock = threading.Lock()
        self.decoded = 0
        """Frames decoded so far."""

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        with self._lock:
            return sum(tail.nbytes for tail in self._tails.values())

    def rows(self, session: Session, stream: int, attempt: int, complete_to: int | None) -> HistRows:
        """As ``session`` sees them, or newer, merged over the ranks; ``complete_to`` as of ``merge_histograms``."""
        state = session.connection().execute(_EPOCH, {"stream": stream, "attempt": attempt}).scalar_one_or_none()
        epoch = 0 if state is None else state
        key = stream, attempt
        with self._lock:
            tail = self._tails.get(key)
            if tail is not None and tail.epoch > epoch:
                # The session is older than what is kept.
                old = _Tail(epoch)
                self._read(session, key, old)
                return old.rows(complete_to)
            if tail is None or tail.epoch < epoch:
                tail = self._tails[key] = _Tail(epoch)
            self._tails.move_to_end(key)
            self._read(session, key, tail)
            found = tail.rows(complete_to)
            held = sum(each.nbytes for each in self._tails.values())
            while held > self._max and self._tails:
                _, oldest = self._tails.popitem(last=False)
                held -= oldest.nbytes
        return found

    def _read(self, session: Session, key: tuple[int, int], tail: _Tail) -> None:
        asked = {"stream": key[0], "attempt": key[1], "newest": tail.newest}
        parts: list[tuple[int, wire.Histograms]] = []
        for number, rank, data in session.connection().execute(_NEW, asked):
            tail.newest = number
            tail.size += len(data)
            if (part := histograms_of(data)) is not None:
                parts.append((rank, part))
        self.decoded += len(parts)
        tail.take(parts)
