"""The canonical line of a run: a later attempt wins from its first step on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam
from sqlalchemy import select as select_columns
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from floatscope_server.models import Attempt, Run, Stream
from floatscope_server.query.memory import now_of
from floatscope_server.query.once import once
from floatscope_server.store.lifecycle import DELETED
from floatscope_server.store.present import AttemptNow

__all__ = [
    "BadQueryError",
    "Stretch",
    "UnknownRunError",
    "attempts_of",
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
_NAMED = (
    select(Run)
    .where(col(Run.name) == bindparam("name"), col(Run.state) != DELETED)
    # Long, and hardly any question needs them: they are read when somebody looks.
    .options(defer(Run.config), defer(Run.glance))  # type: ignore[arg-type]
)
_ATTEMPTS = (
    select_columns(col(Attempt.n), col(Attempt.first_step), col(Attempt.last_step), col(Attempt.world))
    .where(col(Attempt.run_id) == bindparam("run"))
    .order_by(col(Attempt.n))
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
    for n, first, newest, _ in reversed(attempts_of(session, run_id)):
        if first is None or newest is None:
            continue
        last = newest if end is None else min(newest, end)
        if last >= first:
            line.append(Stretch(attempt=n, first=first, last=last, cut=last < newest))
        end = first - 1 if end is None else min(end, first - 1)
    return sorted(line, key=lambda stretch: stretch.first)


def attempts_of(session: Session, run_id: int) -> Sequence[AttemptNow]:
    """All of a run, in order."""
    now = now_of(session)
    if now is not None:
        return now.attempts

    def read() -> list[AttemptNow]:
        return [AttemptNow._make(row) for row in session.connection().execute(_ATTEMPTS, {"run": run_id})]

    return once(session, ("attempts", run_id), read)


def line_of(session: Session, run_id: int, attempt: int | None) -> list[Stretch]:
    """The canonical line, or ``attempt`` alone as far as it went; ``BadQueryError`` if there is no such."""
    if attempt is None:
        return canonical_line(session, run_id)
    row = next((each for each in attempts_of(session, run_id) if each.n == attempt), None)
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

    def read() -> int | None:
        return session.connection().execute(_STREAM, {"run": run_id, "name": name}).scalar_one_or_none()

    return once(session, ("stream number", run_id, name), read)
