"""The flight recorder: the newest steps at full detail, kept in memory until something breaks.

Everything here runs on the packing thread. A record without histograms is kept as it is; one with them is encoded,
since most of the 512 counts of a row (4 KiB) are zero.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from floatscope import wire
from floatscope._log import logger
from floatscope._packing import BLOCK_OVERHEAD, Batch, pack
from floatscope._record import StepRecord
from floatscope._trouble import nonfinite

__all__ = ["FlightRecorder"]

_PIECE_OVERHEAD = 512
"""Most bytes of a piece around the bodies in it."""
_FREEZE_EVERY_S = 600.0
_SMALL_RECORD = 1024
"""Bytes of a record, roughly, without its arrays."""


@dataclass(frozen=True, slots=True)
class _Kept:
    step: int
    content: StepRecord | tuple[bytes, ...]
    nbytes: int


class FlightRecorder:
    """The newest ``max_steps`` records, in at most ``max_bytes`` of host memory; with 0 steps it keeps nothing.

    ``freeze`` gives what it holds as messages that wait in ``pieces`` until there is room for them. For a kind of
    alert that is done once in ten minutes, and for an ``id`` once. ``rank`` and ``clock`` (seconds) are the writer's.
    """

    def __init__(
        self, *, max_steps: int, max_bytes: int, rank: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pieces: deque[Batch] = deque()
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._rank = rank
        self._clock = clock
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._frozen: dict[str, float] = {}
        self._ids: deque[str] = deque(maxlen=64)
        self._broken = False

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the kept records hold."""
        return self._bytes

    def see(self, records: Sequence[StepRecord], max_block_bytes: int) -> list[StepRecord]:
        """Keep ``records``; what of them is to be sent."""
        for record in records:
            try:
                self.add(record, max_block_bytes)
            except Exception:  # what cannot be kept is sent all the same
                logger.debug("step %d could not be kept", record.step, exc_info=True)
        return [record.thinned() for record in records]

    def obey(self, orders: deque[wire.Freeze], max_block_bytes: int) -> None:
        """Freeze for each of ``orders``, and empty them."""
        while orders:
            order = orders.popleft()
            try:
                self.freeze(order.id, order.kind, order.step, order.alert, max_block_bytes)
            except Exception:  # the run's own data go on
                logger.debug("the dump %s could not be made", order.id, exc_info=True)

    def add(self, record: StepRecord, max_block_bytes: int) -> None:
        """Keep ``record``. At the first of a run of steps that are not finite, freeze."""
        if not self._max_steps:
            return
        record = replace(record, layers=(), devices=())
        kept = _kept(record, max_block_bytes - _PIECE_OVERHEAD)
        self._kept.append(kept)
        self._bytes += kept.nbytes
        while len(self._kept) > self._max_steps or (self._bytes > self._max_bytes and self._kept):
            self._bytes -= self._kept.popleft().nbytes
        before, self._broken = self._broken, nonfinite(record)
        if self._broken and not before:
            self.freeze(f"rank{self._rank}-step{record.step}", "nonfinite", record.step, None, max_block_bytes)

    def freeze(self, name: str, kind: str, step: int, alert: int | None, max_block_bytes: int) -> bool:
        """Queue what is held as the dump ``name``; whether it is, or was before. Not if ``step`` is gone already."""
        if name in self._ids:
            return True
        now = self._clock()
        if now - self._frozen.get(kind, -math.inf) < _FREEZE_EVERY_S:
            return False
        if not self._kept or self._kept[0].step > step:
            return False
        self._frozen[kind] = now
        self._ids.append(name)
        first, last = self._kept[0].step, self._kept[-1].step
        # Its names take what is left of the room.
        limit = max_block_bytes - BLOCK_OVERHEAD - _PIECE_OVERHEAD
        groups = list(_groups(self._bodies(max_block_bytes - _PIECE_OVERHEAD), limit))
        for part, bodies in enumerate(groups):
            dump = wire.Dump(
                id=name,
                kind=kind,
                alert=alert,
                step=step,
                first_step=first,
                last_step=last,
                part=part,
                parts=len(groups),
                bodies=bodies,
            )
            body = wire.encode(wire.Body(dump=dump))
            self.pieces.append(Batch(first=first, last=last, records=0, body=body, crc=zlib.crc32(body)))
        return True

    def _bodies(self, max_block_bytes: int) -> Iterator[bytes]:
        plain: list[StepRecord] = []
        for kept in self._kept:
            if isinstance(kept.content, StepRecord):
                plain.append(kept.content)
                continue
            yield from _packed(plain, max_block_bytes)
            plain = []
            yield from kept.content
        yield from _packed(plain, max_block_bytes)


def _kept(record: StepRecord, max_block_bytes: int) -> _Kept:
    if any(rows.hist is not None for rows in record.summaries):
        bodies = tuple(_packed([record], max_block_bytes))
        return _Kept(record.step, bodies, _SMALL_RECORD + sum(len(body) for body in bodies))
    return _Kept(record.step, record, _SMALL_RECORD + _nbytes(record))


def _packed(records: Sequence[StepRecord], max_block_bytes: int) -> Iterator[bytes]:
    yield from (item.body for item in pack(records, max_block_bytes) if isinstance(item, Batch))


def _groups(bodies: Iterator[bytes], limit: int) -> Iterator[tuple[bytes, ...]]:
    """``bodies`` in order, as many together as fit ``limit`` bytes."""
    group: list[bytes] = []
    size = 0
    for body in bodies:
        if group and size + len(body) + 8 > limit:
            yield tuple(group)
            group, size = [], 0
        group.append(body)
        size += len(body) + 8
    if group:
        yield tuple(group)


def _nbytes(record: StepRecord) -> int:
    return sum(field.nbytes for rows in record.summaries for field in rows.fields.values())
