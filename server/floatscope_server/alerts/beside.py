"""What the engine asks the store for besides blocks: what is not judged yet, runs that are silent, lost records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from floatscope_server.alerts.models import Evaluated
from floatscope_server.models import Gap, Meta, Run, Writer
from floatscope_server.observation import Observation
from floatscope_server.rules.stalled import Stalled, patience
from floatscope_server.store.lifecycle import GONE
from floatscope_server.store.replay import WARM_UP_STEPS

__all__ = [
    "GAP_MARK",
    "Lost",
    "Silent",
    "gap_mark",
    "is_past",
    "lost_since",
    "nbytes",
    "reach",
    "set_gap_mark",
    "silent_runs",
    "unjudged",
]

GAP_MARK = "alerts_gap"
"""Key of the mark up to which gaps have been judged."""

_AT_ONCE = 1000
_ALL_STEPS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A run that is not over: its attempt, when its last new step came (seconds since 1970), seconds a step."""

    run_id: int
    attempt: int
    progress_at: float
    step_time_s: float

    def quiet_for(self, now: float, since: float) -> float:
        """Seconds without a step, of those after ``since`` only: a server that was down has not listened."""
        return now - max(self.progress_at, since)

    def may_be_stalled(self, rule: Stalled, now: float, since: float) -> bool:
        """Whether it is worth asking its window."""
        return self.quiet_for(now, since) > patience(rule, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A gap of a run, with the run's present attempt."""

    id: int
    run_id: int
    attempt: int
    rank: int
    first: int
    last: int
    count: int
    reason: str


def silent_runs(session: Session) -> list[Silent]:
    """The runs that nobody has said goodbye of and that have taken a step."""
    rows = session.exec(
        select(Run.id, Run.attempt, Run.progress_at, Run.seconds_per_step).where(
            col(Run.state).not_in(GONE), Run.steps > 0
        )
    ).all()
    return [
        Silent(run_id=run_id, attempt=attempt, progress_at=at.timestamp(), step_time_s=seconds)
        for run_id, attempt, at, seconds in rows
        if run_id is not None
    ]


def lost_since(session: Session, mark: int) -> list[Lost]:
    """Gaps after ``mark`` in the order in which they became known, a thousand at most."""
    rows = session.exec(
        select(Gap, Run.attempt)
        .join(Run, col(Run.id) == col(Gap.run_id))
        .where(col(Gap.id) > mark)
        .order_by(col(Gap.id))
        .limit(_AT_ONCE)
    ).all()
    return [
        Lost(
            id=gap.id,
            run_id=gap.run_id,
            attempt=attempt,
            rank=gap.rank,
            first=gap.first,
            last=gap.last,
            count=gap.count,
            reason=gap.reason,
        )
        for gap, attempt in rows
        if gap.id is not None
    ]


def gap_mark(session: Session) -> int:
    """Up to which gap there is an alert, or none was needed."""
    row = session.get(Meta, GAP_MARK)
    return 0 if row is None else int(row.value)


def set_gap_mark(session: Session, mark: int) -> None:
    """Move it, in the transaction that stores what came of the gaps."""
    session.merge(Meta(key=GAP_MARK, value=str(mark)))


def unjudged(session: Session) -> list[tuple[int, int]]:
    """(run, attempt) of what was committed and not judged."""
    rows = session.exec(
        select(Writer.run_id, Writer.attempt, Writer.last_seq, Evaluated.seq).join(
            Evaluated, col(Evaluated.writer) == col(Writer.id), isouter=True
        )
    ).all()
    return sorted({(run_id, attempt) for run_id, attempt, last, seq in rows if last > (seq or 0)})


def reach(marks: Any, written: Any) -> int:  # noqa: ANN401 - rows of two queries
    """How many steps back a replay must go: to the oldest mark, and before it what warms up the rules."""
    marked = {mark.writer: mark.step for mark in marks}
    if any(writer not in marked for writer, _, _ in written):
        return _ALL_STEPS
    newest = max((step for _, _, step in written), default=-1)
    return newest - min(marked.values(), default=-1) + WARM_UP_STEPS


def is_past(observation: Observation) -> bool:
    """Whether the block tells what a log already held when somebody began to read it."""
    return any(event.kind == "read" and event.detail.get("past") is True for event in observation.body.events)


def nbytes(observation: Observation) -> int:
    """About how much memory a block takes while it waits."""
    body = observation.body
    return sum(len(f.data) for s in body.summaries for f in s.fields) + sum(len(h.counts) for h in body.histograms)
