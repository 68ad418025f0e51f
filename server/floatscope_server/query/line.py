"""The canonical line of a run: a later attempt wins from its first step on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from floatscope_server.models import Attempt, Run, Stream
from floatscope_server.query.memory import now_of
from floatscope_server.store.lifecycle import DELETED

__all__ = [
    "BadQueryError",
    "Stretch",
    "UnknownRunError",
    "canonical_line",
    "line_of",
    "run_named",
    "span_of",
    "stream_id",
    "total_span",
]


class UnknownRunError(LookupError):
    """No run has this name."""


class BadQueryError(ValueError):
    """The question makes no sense; the text says what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps ``first`` to ``last`` (inclusive) belong to ``attempt``; ``cut``: it has later ones, which do not."""

    attempt: int
    first: int
    last: int
    cut: bool = False


# Built once: that takes longer than to run them.
_NAMED = select(Run).where(col(Run.name) == bindparam("name"), col(Run.state) != DELETED)
_ATTEMPTS = (
    select_columns(col(Attempt.n), col(Attempt.first_step), col(Attempt.last_step))
    .where(col(Attempt.run_id) == bindparam("run"), col(Attempt.first_step).is_not(None))
    .order_by(col(Attempt.n).desc())
)
_STREAM = select_columns(col(Stream.id)).where(
    col(Stream.run_id) == bindparam("run"), col(Stream.name) == bindparam("name")
)


def run_named(session: Session, name: str) -> Run:
    """The run called ``name``; ``UnknownRunError`` if there is none."""
    now = now_of(session)
    if now is not None and now.row.name == name:
        return now.row
    run = session.exec(_NAMED, params={"name": name}).one_or_none()
    if run is None:
        raise UnknownRunError(name)
    return run


def canonical_line(session: Session, run_id: int) -> list[Stretch]:
    """Stretches in order of steps; they do not overlap."""
    line: list[Stretch] = []
    end: int | None = None
    for n, first, newest in _attempts(session, run_id):
        assert first is not None
        assert newest is not None
        last = newest if end is None else min(newest, end)
        if last >= first:
            line.append(Stretch(attempt=n, first=first, last=last, cut=last < newest))
        end = first - 1 if end is None else min(end, first - 1)
    return sorted(line, key=lambda stretch: stretch.first)


def _attempts(session: Session, run_id: int) -> Iterable[tuple[int, int, int]]:
    """Those that have steps, the newest first: number, first and last step."""
    now = now_of(session)
    if now is None:
        rows: Any = session.connection().execute(_ATTEMPTS, {"run": run_id})
        return rows  # type: ignore[no-any-return]
    known = [(each.n, each.first_step, each.last_step) for each in reversed(now.attempts)]
    return [(n, first, last) for n, first, last in known if first is not None and last is not None]


def line_of(session: Session, run_id: int, attempt: int | None) -> list[Stretch]:
    """The canonical line, or ``attempt`` alone as far as it went; ``BadQueryError`` if there is no such."""
    if attempt is None:
        return canonical_line(session, run_id)
    row = session.get(Attempt, (run_id, attempt))
    if row is None:
        raise BadQueryError(f"the run has no attempt {attempt}")
    if row.first_step is None or row.last_step is None:
        return []
    return [Stretch(attempt=attempt, first=row.first_step, last=row.last_step)]


def span_of(line: list[Stretch], first: int | None, last: int | None) -> tuple[int, int] | None:
    """What of the steps ``first`` to ``last`` is on ``line``."""
    whole = total_span(line)
    if whole is None:
        return None
    start = whole[0] if first is None else max(first, whole[0])
    end = whole[1] if last is None else min(last, whole[1])
    return (start, end) if start <= end else None


def total_span(line: list[Stretch]) -> tuple[int, int] | None:
    """First and last step of ``line``."""
    return (line[0].first, line[-1].last) if line else None


def stream_id(session: Session, run_id: int, name: str) -> int | None:
    """The stream ``name`` of a run, or None if nothing of it has arrived."""
    now = now_of(session)
    if now is not None:
        return now.streams[name].id if name in now.streams else None
    found: int | None = session.connection().execute(_STREAM, {"run": run_id, "name": name}).scalar_one_or_none()
    return found
