"""Which frames may leave the open tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, col, func, select

from floatscope_server.alerts.models import Evaluated
from floatscope_server.models import Attempt, Run, ScalarSeries, WalFrame, Writer
from floatscope_server.query.ranks import reach_of
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.together import SHARE

__all__ = ["Tail", "aligned", "free_devices", "free_frames", "is_over", "kept_from", "tail_of"]

_REPLAYED = 300
"""Steps that warm up the rules after a restart."""

_LONGEST = 4096
"""Steps that the tail keeps at most, whatever waits for them; as ``store.together`` keeps them."""

_OVER_S = 3600.0
"""A run that ended so long ago, in seconds, does not go on."""

_RECENT_S = 900
"""Seconds before the newest reading of its rank for which device samples stay as they came."""

_MOST = 1 << 18
"""Frames of a stream: from here on half of them leave, whatever waits for them."""

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tail:
    """The frames of a stream and attempt in the order of commits: [n] each."""

    id: Int64
    first: Int64
    end: Int64
    rank: Int64

    def take(self, index: Any) -> Tail:  # noqa: ANN401 - whatever NumPy takes
        """Some of them."""
        return Tail(self.id[index], self.first[index], self.end[index], self.rank[index])


def tail_of(session: Session, stream: int, attempt: int) -> Tail:
    """From the index alone."""
    rows = session.execute(
        select(col(WalFrame.id), col(WalFrame.first), col(WalFrame.n), col(WalFrame.rank)).where(
            col(WalFrame.stream_id) == stream, col(WalFrame.attempt) == attempt
        )
    ).all()
    table = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 4)
    table = table[np.argsort(table[:, 0])]
    return Tail(table[:, 0], table[:, 1], table[:, 1] + table[:, 2], table[:, 3])


def is_over(run: Run, now: float) -> bool:
    """Whether nothing more is expected of ``run`` at ``now``, in seconds since 1970."""
    return run.state in ENDED and run.finished_at is not None and now - run.finished_at.timestamp() > _OVER_S


def kept_from(session: Session, run: Run, attempt: int, now: float, *, together: bool, replayed: bool = True) -> int:
    """The first step that must stay as it came.

    The rules are replayed from there after a restart, if they are ``replayed``; and of steps that not every rank has
    reported the shares wait for the rest (``together``: any figure of them does).
    """
    span = session.get(Attempt, (run.id, attempt))
    if span is None or span.last_step is None:
        return 0
    head = span.last_step + 1
    if is_over(run, now):
        return head
    keep = _replayed_from(session, run, attempt, head) if replayed and attempt == run.attempt else head
    if span.world > 1 and (together or _shares(session, run, attempt)):
        complete = reach_of(session, run, attempt).complete_to
        keep = min(keep, 0 if complete is None else complete + 1)
    return max(keep, head - _LONGEST)


def _replayed_from(session: Session, run: Run, attempt: int, head: int) -> int:
    marks = session.execute(
        select(func.min(Evaluated.step), func.count()).where(Evaluated.run_id == run.id, Evaluated.attempt == attempt)
    ).one()
    writers = session.execute(
        select(func.count())
        .select_from(Writer)
        .where(col(Writer.run_id) == run.id, col(Writer.attempt) == attempt, col(Writer.last_seq) > 0)
    ).scalar_one()
    if marks[1] < writers or marks[0] is None:
        return 0
    return min(head, int(marks[0])) - _REPLAYED


def _shares(session: Session, run: Run, attempt: int) -> bool:
    found = select(ScalarSeries.id).where(
        ScalarSeries.run_id == run.id, ScalarSeries.attempt == attempt, ScalarSeries.name == SHARE
    )
    return session.exec(found.limit(1)).first() is not None


def free_frames(tail: Tail, keep: int) -> Bools:
    """The frames that hold nothing from step ``keep`` on, and nothing that a frame which stays holds from earlier: of a
    step that came twice the later one must stay the later one."""
    return _without_overtaken(tail, tail.end <= keep)


def free_devices(tail: Tail) -> Bools:
    """The frames that are not of the last minutes of their rank, by what it read last."""
    free = np.zeros(len(tail.id), np.bool_)
    for rank in np.unique(tail.rank).tolist():
        mine = np.flatnonzero(tail.rank == rank)
        newest = tail.end[mine[-1]]
        free[mine] = (tail.end[mine] <= newest - _RECENT_S) | (tail.first[mine] >= newest)
    return _without_overtaken(tail, free)


def _without_overtaken(tail: Tail, free: Bools) -> Bools:
    if len(free) > _MOST:
        free = free | (np.arange(len(free)) < _MOST // 2)
    free = free.copy()
    for rank in np.unique(tail.rank).tolist():
        mine = np.flatnonzero(tail.rank == rank)
        stays = np.where(free[mine], np.iinfo(np.int64).max, tail.first[mine])
        free[mine] &= np.minimum.accumulate(stays) >= tail.end[mine]
    return free


def aligned(tail: Tail, keep: int, most: int) -> Bools:
    """Frames that end by ``keep`` and share no steps with others, about ``most`` of them: what ranks have cut
    differently is one stretch, and leaves together."""
    order = np.argsort(tail.first, kind="stable")
    first, end = tail.first[order], np.maximum.accumulate(tail.end[order])
    # After these frames nothing straddles.
    closes = np.append(first[1:] >= end[:-1], True) & (end <= keep)
    places = np.flatnonzero(closes)
    chosen = np.zeros(len(order), np.bool_)
    if len(places):
        upto = places[places < most]
        chosen[order[: int(upto[-1] if len(upto) else places[0]) + 1]] = True
    return chosen
