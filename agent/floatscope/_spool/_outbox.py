"""The outbox of a sender that spools: numbers are fixed on arrival, memory holds a window, the rest is on disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from floatscope import wire
from floatscope._outbox import OutboxCounts, message_of, names_of
from floatscope._packing import BLOCK_OVERHEAD, Batch, Loss, empty_batch
from floatscope._spool._entries import Entry, Storage, covering, entry_of, joined, lost_batch, widened
from floatscope._spool._format import content_of
from floatscope._spool._ledger import Ledger
from floatscope._spool._segments import Contents, Stored

__all__ = ["SpooledOutbox"]

_FULL = "outbox_full"
_FILLER = empty_batch()


class SpooledOutbox:
    """Like ``Outbox``, over a disk. One thread appends, one sends, one writes what ``unwritten`` hands it.

    Without storage, because it failed, what is not sent is bounded by the limits and drops its oldest.
    """

    def __init__(self, *, max_records: int, max_bytes: int, window_bytes: int, wake: Callable[[], None]) -> None:
        """``window_bytes`` of what is on disk stay in memory too; ``wake`` is called when there is more to write."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._window_bytes = window_bytes
        self._wake = wake
        self._lock = threading.Lock()
        self._storage: Storage | None = None
        self._storing, self._resumed = True, False
        # On disk or sent, being written, and neither: consecutive numbers from the first to the last.
        self._window: deque[Entry] = deque()
        self._writing: list[Entry] = []
        self._unwritten: deque[Entry] = deque()
        self._held_bytes = self._held_records = self._window_held = 0
        self._written_end = 0
        self._next_seq = 1
        self._total = 0
        self._tail_step, self._tail_open = 0, False
        # What is being sent.
        self._flight: deque[Entry] = deque()
        self._cursor = self._fill_until = 0
        self._peeked: Entry | None = None
        self._again: dict[int, Entry] = {}
        self._held_back = 0, 0, 0
        self._decided: dict[int, Entry] = {}
        self._fill_names: deque[Batch] = deque()
        self._sent_total = self._sent_step = 0
        self._acked = self._acked_total = self._most_acked = self._most_taken = 0
        self._ledger = Ledger()
        self._abandoned: str | None = None
        self._layers: dict[int, wire.Layer] = {}

    # Taking up what a former process has left

    def resume(self, storage: Storage, contents: Contents, acknowledged: int, layers: Iterable[wire.Layer]) -> None:
        """Begin with what is stored, of which the server has everything up to ``acknowledged``."""
        self._storage, self._resumed = storage, True
        self._next_seq, self._total = contents.last_seq + 1, contents.total
        self._acked = min(acknowledged, contents.last_seq)
        known = self._total_before(self._acked + 1)
        self._acked_total = self._sent_total = contents.before if known is None else known
        self._ledger.waiting = self._total - self._acked_total
        self._layers = {layer.index: layer for layer in layers}

    # The packing side

    def append(self, item: Batch | Loss) -> None:
        """Number ``item`` and queue it; may drop what is neither written nor sent, which then is declared as lost."""
        with self._lock:
            self._append(item)
        self._wake()

    def _append(self, item: Batch | Loss) -> None:
        if self._abandoned is not None:
            self._ledger.count(self._abandoned if isinstance(item, Batch) else item.reason, item.records)
            return
        last = self._unwritten[-1] if self._unwritten else None
        if isinstance(item, Loss):
            self._ledger.count(item.reason, item.records)
            if (
                last is not None
                and last.seq > self._most_taken
                and isinstance(last.item, Loss)
                and last.item.reason == item.reason
            ):
                last.item = last.item.merged(item)
                return
        else:
            self._total += item.records
            self._ledger.waiting += item.records
            self._layers.update((layer.index, layer) for layer in item.layers)
            self._tail_open = item.continued
        self._tail_step = item.last
        counted = item.records if isinstance(item, Batch) else 0
        self._hold(Entry(seq=self._next_seq, item=item, counted=counted, total=self._total))
        self._next_seq += 1
        self._shrink()

    def announce(self, layers: Iterable[wire.Layer]) -> None:
        """Entries whose record is lost: they go out behind what waits, and with every greeting."""
        with self._lock:
            entries = {layer.index: layer for layer in layers}
            self._layers.update(entries)
            for names in names_of(self._tail_step, tuple(entries.values()), continued=self._tail_open):
                self._append(names)
        self._wake()

    def _hold(self, entry: Entry) -> None:
        self._unwritten.append(entry)
        self._held_bytes += entry.item.nbytes
        self._held_records += entry.records

    def _release(self, entry: Entry) -> None:
        self._held_bytes -= entry.item.nbytes
        self._held_records -= entry.records

    def _shrink(self) -> None:
        while len(self._unwritten) > 1 and (
            self._held_bytes > self._max_bytes
            or self._held_records > self._max_records
            or len(self._unwritten) > self._max_records
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._unwritten.popleft()
        self._release(oldest)
        if oldest.seq <= self._most_taken:
            return  # It was sent; only the copy for the disk is gone.
        hole = self._ledger.hole(oldest, _FULL)
        if hole is oldest:
            following = self._unwritten.popleft()
            self._release(following)
            hole = joined(oldest, self._ledger.hole(following, _FULL))
        self._unwritten.appendleft(hole)
        self._held_records += hole.records

    # The writing side

    def attach(self, storage: Storage) -> None:
        """From now on what ``unwritten`` hands out is kept there."""
        with self._lock:
            self._storage = storage

    def unwritten(self, most_bytes: int) -> Sequence[Entry]:
        """What is to be written next, in order; ``written`` or ``detach`` says what became of it."""
        with self._lock:
            assert not self._writing
            size = 0
            while self._unwritten and (not self._writing or size < most_bytes):
                self._writing.append(self._unwritten.popleft())
                size += self._writing[-1].item.nbytes
            return tuple(self._writing)

    def written(self) -> None:
        """All of that is on disk."""
        with self._lock:
            for entry in self._writing:
                self._written_end = entry.end
                self._release(entry)
                self._window.append(entry)
                self._window_held += entry.item.nbytes
            self._writing = []
            self._trim()

    def detach(self) -> None:
        """Nothing will be written any more; what is on disk can be read back as long as the disk lets us."""
        with self._lock:
            self._storing = False
            self._held_back = 0, 0, 0
            self._unwritten.extendleft(reversed(self._writing))
            self._writing = []
            self._trim()

    def hold_back(self, first: int, end: int) -> int:
        """Take nothing from ``first`` to below ``end`` for now; returns the number up to which all was taken before."""
        with self._lock:
            self._held_back = first, max(first, self._send_seq), end
            self._again = {seq: entry for seq, entry in self._again.items() if not first <= seq < end}
            while self._window and self._window[0].seq < end:
                self._window_held -= self._window.popleft().item.nbytes
            return self._send_seq - 1

    def lose_stored(self, loss: Loss | None) -> None:
        """Room was needed: ``loss`` was below that end, on disk, and not taken. A gap there stands in its place."""
        with self._lock:
            if loss is not None:
                self._ledger.lose(loss.reason, loss.records)
                self._ledger.take_owed(*self._held_back[1:])  # among them: what the server had and forgot
            self._held_back = 0, 0, 0

    def _trim(self) -> None:
        while self._window and (
            self._window[0].end <= self._send_seq or (self._storing and self._window_held > self._window_bytes)
        ):
            self._window_held -= self._window.popleft().item.nbytes
        while not self._storing and self._unwritten and self._unwritten[0].end <= self._send_seq:
            self._release(self._unwritten.popleft())

    # The sending side

    def next(self, *, max_in_flight: int, credit: int) -> bytes | None:
        """The message to send now; None when all is sent or the window or the credit (bytes) is used up."""
        if self._cursor >= max_in_flight:
            return None
        resend = self._cursor < len(self._flight)
        if not resend and self._peeked is None:
            self._peeked = self._fetch()
        with self._lock:
            entry = self._flight[self._cursor] if resend else self._peeked
            if entry is None:
                return None
            used = sum(sent.size for sent in islice(self._flight, self._cursor))
            if used + entry.item.nbytes + BLOCK_OVERHEAD > credit:
                return None
            if not resend:
                self._flight.append(entry)
                self._peeked = None
            self._cursor += 1
        data = message_of(entry.seq, entry.item)
        entry.size = len(data)
        return data

    @property
    def _send_seq(self) -> int:
        """The first number that was never taken from what is held."""
        return self._acked + len(self._flight) + (self._peeked is not None) + 1

    def _fetch(self) -> Entry | None:
        """The entry that comes next, from memory or from the disk."""
        with self._lock:
            seq = self._send_seq
            if self._held_back[0] <= seq < self._held_back[2]:
                return None
            entry = self._again.pop(seq, None)
            if entry is None and seq < self._fill_until:
                names = self._fill_names.popleft() if self._fill_names else _FILLER
                entry = Entry(seq=seq, item=names, counted=0, total=self._sent_total)
            if entry is None:
                # What was once declared as lost stays lost, though a server forgets that it was.
                entry = next((known for known in self._decided.values() if known.seq <= seq < known.end), None)
            if entry is None:
                entry, held_from = self._held(seq)
        if entry is None and seq < self._next_seq:
            stored = self._stored(seq)
            with self._lock:
                entry = self._covering(seq, stored, held_from)
        if entry is None:
            return None
        with self._lock:
            if entry.named:
                self._wake()
            if entry.seq < seq:
                # The server knows its beginning, as a gap or as what the gap stands for since: better told twice.
                entry = replace(entry, seq=seq, counted=0, span=entry.end - seq)
            return self._begin(entry)

    def _held(self, seq: int) -> tuple[Entry | None, int]:
        """What covers ``seq`` in memory, and the first number that memory holds from there on."""
        return covering(seq, (self._window, self._writing, self._unwritten), self._next_seq)

    def _stored(self, seq: int) -> Stored | None:
        return self._storage.read(seq) if self._storage is not None else None

    def _covering(self, seq: int, stored: Stored | None, held_from: int) -> Entry | None:
        """What the disk has under ``seq``, or else a hole up to what comes next."""
        known_from = min((number for number in (*self._again, *self._decided) if number > seq), default=held_from)
        until = min(held_from, known_from)
        if stored is not None and stored.seq < until:
            found = entry_of(stored)
            if found.seq <= seq:
                if self._resumed and found.counted and isinstance(found.item, Loss):  # of a process that is gone
                    self._ledger.lose(found.item.reason, min(found.counted, self._ledger.waiting))
                return found
            following: Entry | None = found
        else:
            following = self._again.get(until) or self._decided.get(until) or self._held(until)[0]
        end, total, step = self._next_seq, self._total, self._sent_step
        if following is None and until < self._next_seq:
            return None  # It went to the disk in between: look again.
        if following is not None:
            end, total, step = following.seq, following.before, following.item.first
        reason = "server_lost" if seq <= self._most_acked else "spool_damaged"
        records = max(0, total - self._sent_total)
        owed = self._ledger.take_owed(seq, end)
        # Among what the server forgot there may be losses, which were counted when they happened.
        self._ledger.lose(reason, owed if seq <= self._most_acked else min(records, self._ledger.waiting))
        loss = Loss(first=min(self._sent_step, step), last=max(self._sent_step, step), records=records, reason=reason)
        if reason == "server_lost":
            loss = widened(loss, self._ledger.forgotten)
        hole = Entry(seq=seq, item=loss, counted=records, total=total, span=end - seq, named=True)
        self._decided[seq] = hole
        return hole

    def _begin(self, entry: Entry) -> Entry:
        """Note where we are, and cut ``entry`` down to its first number."""
        self._most_taken = max(self._most_taken, entry.seq)
        self._sent_total = entry.total
        owed = self._ledger.take_owed(entry.seq, entry.end)
        if owed and isinstance(entry.item, Loss):
            self._ledger.lose(entry.item.reason, owed)  # given up after the server had it, and before it forgot it
        if entry.item is not _FILLER:
            self._sent_step = entry.item.last
        self._fill_until = max(self._fill_until, entry.end)
        item = entry.item
        if entry.named and self._layers:
            names = names_of(entry.item.first, tuple(self._layers.values()), continued=True)
            if entry.span == 1 and isinstance(item, Loss):
                # No number is left for the names but its own.
                self._append_loss_of(item)
                item = names[0]
            else:
                self._fill_names.extend(names[: entry.span - 1])
        return replace(entry, item=item, span=1, named=False)

    def _append_loss_of(self, loss: Loss) -> None:
        self._hold(Entry(seq=self._next_seq, item=loss, counted=0, total=self._total))
        self._next_seq += 1

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is on the server's disk."""
        with self._lock:
            self._acknowledge(seq)

    def _acknowledge(self, seq: int) -> None:
        while self._flight and (self._flight[0].seq <= seq or self._flight[0].settled):
            entry = self._flight.popleft()
            self._cursor = max(0, self._cursor - 1)
            self._acked, self._acked_total = entry.seq, entry.total
            self._ledger.arrive(entry)
        self._most_acked = max(self._most_acked, self._acked)
        self._trim()

    def rewind(self, expected: int) -> None:
        """The server has everything below ``expected``: send again from there.

        For a welcome and for a hole. A server that expects less than it has acknowledged has lost data (an older
        backup, say): it gets what the disk still holds, and a gap with reason "server_lost" for the rest.
        """
        with self._lock:
            self._acknowledge(expected - 1)
            self._cursor = 0
            if expected == self._acked + 1:
                return
        # A look at the disk; nobody but this thread changes what is acknowledged.
        before = self._total_before(expected)
        with self._lock:
            if self._peeked is not None:
                self._again[self._peeked.seq] = self._peeked
                self._peeked = None
            if expected > self._acked + 1:
                self._skip_to(expected, before)
            else:
                self._go_back_to(expected, before)
            self._acked = expected - 1
            self._fill_until = 0
            self._fill_names.clear()
            self._sent_total = self._acked_total
            self._trim()

    def _skip_to(self, expected: int, before: int | None) -> None:
        """The server has more than was ever sent from here: an earlier process sent it."""
        assert not self._flight
        self._next_seq = max(self._next_seq, expected)
        self._again = {seq: entry for seq, entry in self._again.items() if seq >= expected}
        if before is None:
            held = self._held(expected)[0]
            before = held.before if held is not None else self._total
        skipped = min(self._ledger.waiting, max(0, before - self._acked_total))
        self._ledger.skip(skipped)
        self._acked_total = before
        self._most_acked = max(self._most_acked, expected - 1)

    def _go_back_to(self, expected: int, before: int | None) -> None:
        back = self._ledger.forget_from(expected)
        self._again.update((entry.seq, entry) for entry in self._flight)
        for entry in self._flight:
            entry.settled = False
        self._flight.clear()
        self._acked_total = self._acked_total - back if before is None else before

    def _total_before(self, seq: int) -> int | None:
        """Records up to the number before ``seq``, as far as that is known."""
        if seq <= 1:
            return 0
        if (known := self._ledger.total_at(seq - 1)) is not None:
            return known
        stored = self._stored(seq - 1)
        return stored.total if stored is not None and stored.seq < seq <= stored.seq + stored.span else None

    def send_again(self) -> None:
        """Send everything that is not acknowledged once more."""
        with self._lock:
            self._cursor = 0

    def quarantine(self, seq: int, reason: str) -> bool:
        """The server will never take ``seq``, and waits for something else under this number.

        That is the names in the batch, or else the declaration of its loss. False when ``seq`` is no batch.
        """
        with self._lock:
            entry = next((sent for sent in self._flight if sent.seq == seq), None)
            if entry is None or not isinstance(entry.item, Batch) or entry.item is _FILLER:
                return False
            names, loss = self._refuse(entry, entry.item, reason)
            if len(names) == 1:
                entry.item = names[0]
                self._append_loss_of(loss)
        self._wake()
        return True

    def settle(self, seq: int, reason: str) -> None:
        """The server has noted the loss of batch ``seq`` for ``reason`` itself, and went on to the next one."""
        names: list[Batch] = []
        with self._lock:
            entry = next((sent for sent in self._flight if sent.seq == seq), None)
            if entry is None:
                return
            if isinstance(entry.item, Batch):
                names, _ = self._refuse(entry, entry.item, reason)
            entry.settled = True
            self._acknowledge(0)
        for batch in names:
            self.append(batch)

    def _refuse(self, entry: Entry, batch: Batch, reason: str) -> tuple[list[Batch], Loss]:
        """Count ``batch`` as lost; its names, which may not be, and the loss that stands in its place."""
        self._ledger.lose(reason, batch.records)
        entry.item = loss = lost_batch(batch, reason)
        self._decided[entry.seq] = replace(entry)
        layers = batch.layers or content_of(batch.body).layers
        return ([] if batch.names_only else names_of(batch.last, layers, continued=True)), loss

    def abandon(self, reason: str) -> None:
        """Let go of memory: no server will take it now. What is on disk waits there, the rest counts as lost."""
        with self._lock:
            self._abandoned = reason
            if not self._storing or self._storage is None:
                self._ledger.lose(reason, self._ledger.waiting)
                self._unwritten.clear()
                self._held_bytes = self._held_records = 0
            self._window.clear()
            self._window_held = 0

    # All

    @property
    def layers(self) -> tuple[wire.Layer, ...]:
        """The layer table so far."""
        with self._lock:
            return tuple(self._layers.values())

    @property
    def stored(self) -> int:
        """Records that wait for the server and were written to the disk, which may be there or not."""
        with self._lock:
            held = {entry.seq: entry.records for entry in (*self._flight, *self._writing, *self._unwritten)}
            in_memory = sum(records for seq, records in held.items() if seq >= self._written_end)
            return max(0, self._ledger.waiting - in_memory)

    @property
    def last_seq(self) -> int:
        """The highest number given out so far."""
        return self._next_seq - 1

    @property
    def acknowledged(self) -> int:
        """The number up to which the server has everything."""
        return self._acked

    @property
    def in_flight(self) -> int:
        """Messages sent on this connection that the server has not answered."""
        return self._cursor

    def empty(self) -> bool:
        """Whether the server has acknowledged everything."""
        with self._lock:
            return self._acked >= self._next_seq - 1

    def counts(self) -> OutboxCounts:
        """A consistent copy of the counters."""
        with self._lock:
            return OutboxCounts(
                acknowledged=self._ledger.acknowledged,
                lost=dict(self._ledger.lost),
                waiting=self._ledger.waiting,
                waiting_bytes=self._held_bytes + self._window_held + sum(e.item.nbytes for e in self._flight),
            )
