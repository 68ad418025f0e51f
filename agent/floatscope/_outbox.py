"""The second of two queues: what the server has not acknowledged yet, and the numbering of it.

A batch gets its ``seq`` when it is first sent and keeps it over reconnects. Only what was never sent can be dropped,
so a sequence number always means the same, and ``seq`` stays gapless: a loss is a message of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice

from floatscope import wire
from floatscope._packing import BLOCK_OVERHEAD, Batch, Loss, pack
from floatscope._record import StepRecord

__all__ = ["Outbox", "OutboxCounts"]

_HISTORY = 1024
"""Acknowledged batches whose steps are remembered, for a server that comes back knowing less than it acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCounts:
    """What became of the records so far, and what still waits."""

    acknowledged: int
    lost: dict[str, int]
    waiting: int
    waiting_bytes: int


@dataclass(slots=True)
class _Sent:
    seq: int
    item: Batch | Loss
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Acknowledged batches ``low`` to ``high`` as one."""

    low: int
    high: int
    acknowledged: int
    loss: Loss
    """What is gone if the server forgets them: their records, and losses declared among them."""


class Outbox:
    """Batches in order, bounded in records and in bytes; the oldest unsent one goes first when a limit is hit.

    One thread appends, another one sends. Batches in flight (at most 8 MiB) count, but are never dropped.
    """

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._lost_first: dict[str, Loss] = {}
        self._waiting: deque[Batch | Loss] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._cursor = 0
        self._next_seq = 1
        self._history: deque[_Span] = deque()
        self._records = 0
        self._bytes = 0
        self._acknowledged = 0
        self._lost: dict[str, int] = {}
        self._abandoned: str | None = None
        self._layers: dict[int, wire.Layer] = {}
        self._layers_again: dict[int, wire.Layer] = {}

    # The packing side

    def append(self, item: Batch | Loss) -> None:
        """Queue ``item`` behind everything else; may drop older batches, which then are declared as lost."""
        with self._lock:
            if self._abandoned is not None:
                self._count_loss(item if isinstance(item, Loss) else _as_loss(item, self._abandoned))
                return
            if isinstance(item, Loss):
                self._count_loss(item)
                last = self._waiting[-1] if self._waiting else None
                if isinstance(last, Loss) and last.reason == item.reason:
                    self._waiting[-1] = last.merged(item)
                else:
                    self._waiting.append(item)
            else:
                self._waiting.append(item)
                self._records += item.records
                self._bytes += item.nbytes
                self._layers.update((layer.index, layer) for layer in item.layers)
            while self._over_a_limit() and len(self._waiting) > 1:
                self._drop_oldest()

    def announce(self, layers: Iterable[wire.Layer]) -> None:
        """Entries whose record is lost: they go out before whatever is sent next."""
        with self._lock:
            entries = {layer.index: layer for layer in layers}
            self._layers.update(entries)
            self._layers_again.update(entries)

    def _over_a_limit(self) -> bool:
        return (
            self._records > self._max_records or self._bytes > self._max_bytes or len(self._waiting) > self._max_records
        )

    def _drop_oldest(self) -> None:
        item = self._waiting.popleft()
        if isinstance(item, Batch):
            self._records -= item.records
            self._bytes -= item.nbytes
            # Numbers may be lost, names may not: later rows refer to these entries.
            self._layers_again.update((layer.index, self._layers[layer.index]) for layer in item.layers)
            item = _as_loss(item, "outbox_full")
            self._count_loss(item)
        # Everything dropped is older than all that waits, so one entry per reason is enough, however long it lasts.
        before = self._lost_first.get(item.reason)
        self._lost_first[item.reason] = before.merged(item) if before else item

    def _count_loss(self, loss: Loss) -> None:
        self._lost[loss.reason] = self._lost.get(loss.reason, 0) + loss.records

    # The sending side

    def next(self, *, max_in_flight: int, credit: int) -> bytes | None:
        """The message to send now; None when all is sent or the window or the credit (bytes) is used up."""
        with self._lock:
            if self._cursor >= max_in_flight:
                return None
            resend = self._cursor < len(self._in_flight)
            item = self._in_flight[self._cursor].item if resend else self._peek()
            if item is None:
                return None
            used = sum(sent.size for sent in islice(self._in_flight, self._cursor))
            if used + item.nbytes + BLOCK_OVERHEAD > credit:
                return None
            if not resend:
                self._take()
                self._in_flight.append(_Sent(self._next_seq, item, 0))
                self._next_seq += 1
            sent = self._in_flight[self._cursor]
            self._cursor += 1
        # Encoding copies up to 1 MiB; ``append`` need not wait for it. Only this thread changes what is in flight.
        data = _message(sent.seq, sent.item)
        sent.size = len(data)
        return data

    def _peek(self) -> Batch | Loss | None:
        if self._lost_first:
            return next(iter(self._lost_first.values()))
        if self._layers_again:
            self._queue_layers_again()
        return self._waiting[0] if self._waiting else None

    def _take(self) -> None:
        if self._lost_first:
            del self._lost_first[next(iter(self._lost_first))]
        else:
            self._waiting.popleft()

    def _queue_layers_again(self) -> None:
        step = self._waiting[0].first if self._waiting else 0
        record = StepRecord(step=step, scalars={}, summaries=(), layers=tuple(self._layers_again.values()))
        self._layers_again = {}
        for item in reversed(list(pack([record], wire.MAX_BLOCK_BYTES))):
            if isinstance(item, Batch):
                self._waiting.appendleft(replace(item, records=0))
                self._bytes += item.nbytes

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is on the server's disk."""
        with self._lock:
            self._acknowledge(seq)

    def _acknowledge(self, seq: int) -> None:
        while self._in_flight and self._in_flight[0].seq <= seq:
            sent = self._in_flight.popleft()
            self._cursor = max(0, self._cursor - 1)
            if isinstance(sent.item, Batch):
                self._acknowledged += sent.item.records
                self._records -= sent.item.records
                self._bytes -= sent.item.nbytes
            self._remember(sent)

    def _remember(self, sent: _Sent) -> None:
        if isinstance(sent.item, Batch):
            span = _Span(low=sent.seq, high=sent.seq, acknowledged=sent.item.records, loss=_as_loss(sent.item, ""))
        else:
            span = _Span(low=sent.seq, high=sent.seq, acknowledged=0, loss=sent.item)
        self._history.append(span)
        if len(self._history) > _HISTORY:
            oldest, second = self._history.popleft(), self._history.popleft()
            both = _Span(
                low=oldest.low,
                high=second.high,
                acknowledged=oldest.acknowledged + second.acknowledged,
                loss=oldest.loss.merged(second.loss),
            )
            self._history.appendleft(both)

    def rewind(self, expected: int) -> None:
        """The server can take ``expected`` next: send again from there.

        A server that expects less than it has acknowledged has lost data (an older backup, say). Those batches are
        gone here too: one loss with reason "server_lost" takes their place and what follows is numbered anew.
        """
        with self._lock:
            self._acknowledge(expected - 1)
            self._cursor = 0
            first = self._in_flight[0].seq if self._in_flight else self._next_seq
            if expected == first:
                return
            if expected < first:
                self._declare_forgotten(expected)
            for number, sent in enumerate(self._in_flight):
                sent.seq = expected + number
            self._next_seq = expected + len(self._in_flight)

    def _declare_forgotten(self, expected: int) -> None:
        gone = [span for span in self._history if span.high >= expected]
        if not gone:
            return
        self._history = deque(span for span in self._history if span.high < expected)
        loss = replace(gone[0].loss, reason="server_lost")
        for span in gone[1:]:
            loss = loss.merged(span.loss)
        acknowledged = sum(span.acknowledged for span in gone)
        self._acknowledged -= acknowledged
        self._lost["server_lost"] = self._lost.get("server_lost", 0) + acknowledged
        self._in_flight.appendleft(_Sent(expected, loss, 0))
        self._layers_again = dict(self._layers)

    def quarantine(self, seq: int, reason: str) -> bool:
        """The server will never take ``seq``: declare it lost under the same number. False when it is no batch."""
        with self._lock:
            for sent in self._in_flight:
                if sent.seq == seq and isinstance(sent.item, Batch):
                    self._records -= sent.item.records
                    self._bytes -= sent.item.nbytes
                    sent.item = _as_loss(sent.item, reason)
                    self._count_loss(sent.item)
                    return True
            return False

    def abandon(self, reason: str) -> None:
        """Count everything that waits and that comes as lost, and let it go: no server will take it."""
        with self._lock:
            self._abandoned = reason
            for item in chain((sent.item for sent in self._in_flight), self._waiting):
                if isinstance(item, Batch):
                    self._count_loss(_as_loss(item, reason))
            self._in_flight.clear()
            self._waiting.clear()
            self._lost_first.clear()
            self._cursor = self._records = self._bytes = 0

    # Both

    @property
    def layers(self) -> tuple[wire.Layer, ...]:
        """The layer table so far."""
        with self._lock:
            return tuple(self._layers.values())

    @property
    def last_seq(self) -> int:
        """The highest number given out so far."""
        return self._next_seq - 1

    @property
    def in_flight(self) -> int:
        """Messages sent on this connection that the server has not answered."""
        return self._cursor

    def empty(self) -> bool:
        """Whether the server has acknowledged everything."""
        with self._lock:
            return not (self._waiting or self._in_flight or self._lost_first)

    def counts(self) -> OutboxCounts:
        """A consistent copy of the counters."""
        with self._lock:
            return OutboxCounts(
                acknowledged=self._acknowledged,
                lost=dict(self._lost),
                waiting=self._records,
                waiting_bytes=self._bytes,
            )


def _as_loss(batch: Batch, reason: str) -> Loss:
    return Loss(first=batch.first, last=batch.last, records=batch.records, reason=reason)


def _message(seq: int, item: Batch | Loss) -> bytes:
    if isinstance(item, Batch):
        return wire.encode(wire.Block(seq=seq, crc=item.crc, body=item.body))
    # A piece of a step that was too large for one block stands for no whole record, but something is gone.
    count = max(1, item.records)
    return wire.encode(wire.Gap(seq=seq, first=item.first, last=item.last, count=count, reason=item.reason))
