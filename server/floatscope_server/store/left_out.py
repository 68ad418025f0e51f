"""What the server did not keep: declared by one row for each writer and reason, which grows."""

from __future__ import annotations

from sqlmodel import Session

from floatscope_server.models import Gap
from floatscope_server.store.ledger import KnownRun, KnownWriter
from floatscope_server.store.parts import MAX_STEP

__all__ = ["LeftOut"]

_MAX_REASONS = 64
"""Of one writer."""


class LeftOut:
    """What one transaction leaves out; ``write`` puts it into the database."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._writers: dict[str, KnownWriter] = {}
        self._pending: dict[str, dict[str, Gap]] = {}

    def note(self, run: KnownRun, writer: KnownWriter, first: int, last: int, reason: str, count: int) -> None:
        """``count`` records or parts of the steps ``first`` to ``last`` were not kept."""
        writer.left_out = min(writer.left_out + count, MAX_STEP)
        self._writers[writer.id] = writer
        pending = self._pending.setdefault(writer.id, {})
        fresh = reason not in pending and reason not in writer.reasons
        if fresh and len(writer.reasons.keys() | pending.keys()) >= _MAX_REASONS:
            reason = "left out for further reasons"
        known = pending.get(reason)
        if known is None:
            pending[reason] = Gap(run_id=run.id, rank=writer.rank, first=first, last=last, count=count, reason=reason)
            return
        known.first, known.last = min(known.first, first), max(known.last, last)
        known.count += count

    def write(self) -> None:
        """Add to the rows of reasons that a writer has had, and make the others."""
        fresh: list[tuple[KnownWriter, Gap]] = []
        for writer_id, pending in self._pending.items():
            writer = self._writers[writer_id]
            for reason, gap in pending.items():
                key = writer.reasons.get(reason)
                row = self._session.get(Gap, key) if key is not None else None
                if row is None:
                    fresh.append((writer, gap))
                    continue
                row.first, row.last = min(row.first, gap.first), max(row.last, gap.last)
                row.count += gap.count
        self._pending.clear()
        self._session.add_all(gap for _, gap in fresh)
        self._session.flush()
        for writer, gap in fresh:
            assert gap.id is not None
            writer.reasons[gap.reason] = gap.id
