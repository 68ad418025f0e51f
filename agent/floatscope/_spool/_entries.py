"""Numbered batches and losses on their way through the outbox that spools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from floatscope._packing import Batch, Loss
from floatscope._spool._format import encoded
from floatscope._spool._segments import Stored

__all__ = [
    "Entry",
    "Storage",
    "buffers_of",
    "covering",
    "entry_of",
    "joined",
    "lost_batch",
    "widened",
    "without_body",
]


class Storage(Protocol):
    """Where batches can be read back from."""

    def read(self, seq: int) -> Stored | None:
        """What covers ``seq``, else the next one behind it."""

    def nbytes(self, after: int = 0) -> int:
        """Bytes that hold what is numbered above ``after``."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """``item`` under number ``seq``; a loss may stand for ``span`` numbers.

    ``total`` counts records up to its end, ``counted`` those of them that are its own: what was lost before it had a
    number is not among them.
    """

    seq: int
    item: Batch | Loss
    counted: int
    total: int
    span: int = 1
    size: int = 0
    settled: bool = False
    named: bool = False
    """Layer entries are gone with it: the names go out again."""

    @property
    def end(self) -> int:
        """The number that follows."""
        return self.seq + self.span

    @property
    def records(self) -> int:
        """Step records in it that can arrive."""
        return self.item.records if isinstance(self.item, Batch) else 0

    @property
    def before(self) -> int:
        """Records that came before it."""
        return self.total - self.counted


def lost_batch(batch: Batch, reason: str) -> Loss:
    """``batch`` as a loss."""
    return Loss(first=batch.first, last=batch.last, records=batch.records, reason=reason)


def without_body(entry: Entry) -> Entry:
    """``entry`` with a loss for its batch: its numbers, without the bytes."""
    item = entry.item
    return entry if isinstance(item, Loss) else replace(entry, item=lost_batch(item, ""))


def widened(item: Batch | Loss, other: Loss | None) -> Loss:
    """``item`` with its steps widened to those of ``other``; its records stay."""
    loss = lost_batch(item, "") if isinstance(item, Batch) else item
    if other is None:
        return loss
    return replace(loss, first=min(loss.first, other.first), last=max(loss.last, other.last))


def joined(first: Entry, second: Entry) -> Entry:
    """Two losses that follow each other as one; the reason is that of the first."""
    assert isinstance(first.item, Loss)
    assert isinstance(second.item, Loss)
    return Entry(
        seq=first.seq,
        item=first.item.merged(second.item),
        counted=first.counted + second.counted,
        total=second.total,
        span=first.span + second.span,
        named=first.named or second.named,
    )


def entry_of(stored: Stored) -> Entry:
    """What came back from the disk."""
    return Entry(
        seq=stored.seq,
        item=stored.item,
        counted=stored.counted,
        total=stored.total,
        span=stored.span,
        named=stored.named,
    )


def buffers_of(entry: Entry) -> list[bytes]:
    """The bytes of its record."""
    return encoded(
        entry.item, seq=entry.seq, span=entry.span, counted=entry.counted, total=entry.total, named=entry.named
    )


def covering(seq: int, groups: Iterable[Iterable[Entry]], end: int) -> tuple[Entry | None, int]:
    """What covers ``seq`` in ``groups``, which are in order, and the first number from there on, else ``end``."""
    for entry in chain.from_iterable(groups):
        if entry.seq <= seq < entry.end:
            return entry, seq
        if entry.seq > seq:
            return None, entry.seq
    return None, end
