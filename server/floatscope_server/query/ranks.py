"""How far the ranks of a run have come: what is of all ranks is complete only where each has reported."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlmodel import Session, col

from floatscope_server.models import Run, Writer

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
        """Ranks that have reported nothing."""
        return [rank for rank in range(self.world) if rank not in self.last_step]

    def meta(self) -> dict[str, object]:
        """For an answer."""
        return {"world": self.world, "complete_to": self.complete_to, "missing_ranks": self.missing[:_SHOWN]}


_SHOWN = 64


def reach_of(session: Session, run: Run, attempt: int | None = None) -> Reach:
    """Of the present attempt, or of another one."""
    rows = session.execute(
        select(col(Writer.rank), func.max(Writer.last_step))
        .where(
            col(Writer.run_id) == run.id,
            col(Writer.attempt) == (run.attempt if attempt is None else attempt),
            col(Writer.last_step) >= 0,
        )
        .group_by(col(Writer.rank))
    )
    return Reach(world=run.world, last_step=dict(rows.all()))
