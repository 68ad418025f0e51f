"""How far the ranks of a run have come: what is of all ranks is complete only where each has reported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import bindparam, func, select
from sqlmodel import Session, col

from floatscope_server.models import Run, Writer
from floatscope_server.query.line import attempts_of
from floatscope_server.query.memory import now_of
from floatscope_server.query.once import once

__all__ = ["Reach", "reach_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """``last_step`` by rank, of those that have reported any; ``world`` is how many there should be."""

    world: int
    last_step: dict[int, int]

    @property
    def complete_to(self) -> int | None:
        """The last step that every rank has reported; None while one has reported nothing."""
        return min(self.last_step.values()) if len(self.last_step) >= self.world else None

    def complete(self, step: int) -> bool:
        """Whether every rank has reported ``step`` or a later one."""
        to = self.complete_to
        return to is not None and step <= to

    @property
    def missing(self) -> list[int]:
        """The first ranks that have reported nothing, at most 64."""
        return self.missing_from(self.last_step)

    def missing_from(self, ranks: Collection[int]) -> list[int]:
        """The first ranks that are not among ``ranks``, at most 64."""
        return list(islice((rank for rank in range(self.world) if rank not in ranks), _SHOWN))

    def meta(self) -> dict[str, object]:
        """For an answer."""
        return {"world": self.world, "complete_to": self.complete_to, "missing_ranks": self.missing}


_SHOWN = 64

# Built once: that takes longer than to run it.
_LAST_STEPS = (
    select(col(Writer.rank), func.max(Writer.last_step))
    .where(
        col(Writer.run_id) == bindparam("run"),
        col(Writer.attempt) == bindparam("attempt"),
        col(Writer.last_step) >= 0,
    )
    .group_by(col(Writer.rank))
)


def reach_of(session: Session, run: Run, attempt: int | None = None) -> Reach:
    """Of the present attempt, or of another one."""
    number = run.attempt if attempt is None else attempt
    assert run.id is not None
    worlds = {each.n: each.world for each in attempts_of(session, run.id)}
    return Reach(world=worlds.get(number, run.world), last_step=_last_steps(session, run.id, number))


def _last_steps(session: Session, run_id: int, attempt: int) -> dict[int, int]:
    now = now_of(session)
    if now is not None:
        return dict(now.last_steps.get(attempt, {}))
    asked = {"run": run_id, "attempt": attempt}

    def read() -> dict[int, int]:
        return dict(session.connection().execute(_LAST_STEPS, asked).all())

    return once(session, ("last steps", run_id, attempt), read)
