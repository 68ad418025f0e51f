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
from typing import Protocol

from floatscope import wire
from floatscope._packing import BLOCK_OVERHEAD, Batch, Loss, pack
from floatscope._record import StepRecord

__all__ = ["Outbox", "OutboxCounts", "Outgoing", "message_of", "names_of"]

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
    settled: bool = False
    """The server refused it and went on: nothing is owed for it, whatever becomes of those before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Acknowledged batches ``low`` to ``high`` as one."""

    low: int
    high: int
    acknowledged: int
    loss: Loss
    """What is gone if the server forgets them: their records, and losses declared among them."""


class Outgoing(Protocol):
    """What a connection asks of an outbox, from one thread."""

    def next(self, *, max_in_flight: int, credit: int) -> bytes | None:
        """The message to send now."""

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is on the server's disk."""

    def rewind(self, expected: int) -> None:
        """The server has everything below ``expected``."""

    def send_again(self) -> None:
        """Send everything that is not acknowledged once more."""

    def quarantine(self, seq: int, reason: str) -> bool:
        """The server will never take the batch ``seq``."""

    def settle(self, seq: int, reason: str) -> None:
        """The server has noted the loss of the batch ``seq`` itself."""

    @property
    def layers(self) -> tuple[wire.Layer, ...]:
        """The layer table so far."""

    @property
    def last_seq(self) -> int:
        """The highest number given out so far."""

    @property
    def in_flight(self) -> int:
        """Messages sent on this connection that the server has not answered."""

    def empty(self) -> bool:
        """Whether the server has acknowledged everything."""

    def counts(self) -> OutboxCounts:
        """A consistent copy of the counters."""


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
        self._last_taken = 0
        self._step_open = False

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
            self._bytes -= item.nbytes
            self._send_names_again(item)
            if item.names_only:
                return
            self._records -= item.records
            item = _as_loss(item, "outbox_full")
            self._count_loss(item)
        self._declare_first(item)

    def _declare_first(self, loss: Loss) -> None:
        # It is older than all that waits, so one entry per reason is enough, however long it lasts.
        before = self._lost_first.get(loss.reason)
        self._lost_first[loss.reason] = before.merged(loss) if before else loss

    def _send_names_again(self, batch: Batch) -> None:
        # Numbers may be lost, names may not: later rows refer to these entries.
        self._layers_again.update((layer.index, self._layers[layer.index]) for layer in batch.layers)

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
        data = message_of(sent.seq, sent.item)
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
            item = self._waiting.popleft()
            self._last_taken = item.last
            self._step_open = isinstance(item, Batch) and item.continued

    def _queue_layers_again(self) -> None:
        # They must not make a step look complete, neither the one that follows nor one that is being sent in pieces.
        step, continued = (self._waiting[0].first, True) if self._waiting else (self._last_taken, self._step_open)
        names = names_of(step, tuple(self._layers_again.values()), continued=continued)
        self._layers_again = {}
        self._waiting.extendleft(reversed(names))
        self._bytes += sum(batch.nbytes for batch in names)

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is on the server's disk."""
        with self._lock:
            self._acknowledge(seq)

    def _acknowledge(self, seq: int) -> None:
        while self._in_flight and (self._in_flight[0].seq <= seq or self._in_flight[0].settled):
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
        """The server has everything below ``expected``: send again from there.

        For a welcome and for a hole, the two answers in which a server says what it holds. A server that expects less
        than it has acknowledged has lost data (an older backup, say). Those batches are gone here too: one loss with
        reason "server_lost" takes their place and what follows is numbered anew.
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
                sent.settled = False
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

    def send_again(self) -> None:
        """Send everything that is not acknowledged once more."""
        with self._lock:
            self._cursor = 0

    def quarantine(self, seq: int, reason: str) -> bool:
        """The server will never take ``seq``, and waits for something else under this number.

        That is the names in the batch, without which what follows means nothing, or else the declaration of its loss.
        False when ``seq`` is no batch.
        """
        with self._lock:
            sent, batch = self._batch_in_flight(seq)
            if sent is None or batch is None:
                return False
            loss = self._lose(sent, batch, reason)
            names = [] if batch.names_only else names_of(batch.first, batch.layers, continued=True)
            if len(names) == 1:
                sent.item = names[0]
                self._bytes += names[0].nbytes
                self._declare_first(loss)
            return True

    def settle(self, seq: int, reason: str) -> None:
        """The server has noted the loss of batch ``seq`` for ``reason`` itself, and went on to the next one.

        Says nothing of the batches before it. The names in it go out again with what was not sent yet.
        """
        with self._lock:
            sent, batch = self._batch_in_flight(seq)
            if sent is None:
                return
            if batch is not None:
                self._lose(sent, batch, reason)
                if not batch.names_only:
                    self._send_names_again(batch)
            sent.settled = True
            self._acknowledge(0)

    def _batch_in_flight(self, seq: int) -> tuple[_Sent | None, Batch | None]:
        sent = next((sent for sent in self._in_flight if sent.seq == seq), None)
        return sent, sent.item if sent is not None and isinstance(sent.item, Batch) else None

    def _lose(self, sent: _Sent, batch: Batch, reason: str) -> Loss:
        self._records -= batch.records
        self._bytes -= batch.nbytes
        sent.item = loss = _as_loss(batch, reason)
        self._count_loss(loss)
        return loss

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


def names_of(step: int, layers: tuple[wire.Layer, ...], *, continued: bool) -> list[Batch]:
    """Batches of nothing but ``layers``, said to be of ``step``."""
    if not layers:
        return []
    record = StepRecord(step=step, scalars={}, summaries=(), layers=layers)
    items = pack([record], wire.MAX_BLOCK_BYTES, continued=continued)
    return [replace(item, records=0, names_only=True) for item in items if isinstance(item, Batch)]


def _as_loss(batch: Batch, reason: str) -> Loss:
    return Loss(first=batch.first, last=batch.last, records=batch.records, reason=reason)


def message_of(seq: int, item: Batch | Loss) -> bytes:
    """``item`` under its number, encoded."""
    if isinstance(item, Batch):
        return wire.encode(wire.Block(seq=seq, crc=item.crc, body=item.body))
    # A piece of a step that was too large for one block stands for no whole record, but something is gone.
    count = max(1, item.records)
    return wire.encode(wire.Gap(seq=seq, first=item.first, last=item.last, count=count, reason=item.reason))
