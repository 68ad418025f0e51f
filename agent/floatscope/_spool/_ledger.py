"""What became of each record, also when a server forgets what it had acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from floatscope._packing import Loss
from floatscope._spool._entries import Entry, lost_batch, widened, without_body

__all__ = ["Ledger"]

_HISTORY = 1024
"""Acknowledged batches that are remembered one by one, for a server that comes back knowing less than it said."""


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    entry: Entry
    records: int

    @property
    def seq(self) -> int:
        return self.entry.seq


@dataclass(slots=True)
class Ledger:
    """Every record is acknowledged, waiting, or lost for a named reason. For callers that hold a lock."""

    acknowledged: int = 0
    waiting: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    forgotten: Loss | None = None
    """Spans the steps that a server had and forgot."""
    _history: deque[_Acknowledged] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _owed: dict[int, int] = field(default_factory=dict)

    def hole(self, entry: Entry, reason: str) -> Entry:
        """``entry`` is given up: its records are lost, and this stands in its place. One that is a loss stays."""
        batch = entry.item
        if isinstance(batch, Loss):
            return entry
        self.lose(reason, batch.records)
        return replace(entry, item=lost_batch(batch, reason), named=bool(batch.layers))

    def count(self, reason: str, records: int) -> None:
        """``records`` that never waited here are lost."""
        self.lost[reason] = self.lost.get(reason, 0) + records

    def lose(self, reason: str, records: int) -> None:
        """``records`` that waited are lost."""
        self.waiting -= records
        self.count(reason, records)

    def arrive(self, entry: Entry) -> None:
        """The server has ``entry``."""
        self.skip(entry.records)
        self._history.append(_Acknowledged(without_body(entry), entry.records))

    def skip(self, records: int) -> None:
        """The server has ``records`` without our doing."""
        self.acknowledged += records
        self.waiting -= records

    def forget_from(self, expected: int) -> int:
        """The server has nothing from number ``expected`` on any more; returns the records that wait again."""
        forgotten = [known for known in self._history if known.seq >= expected]
        back = sum(known.records for known in forgotten)
        self._owed.update((known.seq, known.records) for known in forgotten if known.records)
        for known in forgotten:
            self.forgotten = widened(known.entry.item, self.forgotten)
        self._history = deque((known for known in self._history if known.seq < expected), maxlen=_HISTORY)
        self.skip(-back)
        return back

    def take_owed(self, seq: int, end: int) -> int:
        """Records under these numbers that had been acknowledged once, and wait again."""
        return sum(self._owed.pop(number) for number in [n for n in self._owed if seq <= n < end])

    def total_at(self, seq: int) -> int | None:
        """Records up to number ``seq``, if that is one of the last that were acknowledged."""
        return next((known.entry.total for known in self._history if known.seq == seq), None)
