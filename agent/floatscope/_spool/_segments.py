"""The segments of one writer: files that grow one after the other, are read back in order, and go oldest first."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floatscope import wire
from floatscope._packing import Batch, Loss
from floatscope._spool._format import (
    Damage,
    Found,
    Header,
    Kind,
    content_of,
    encoded,
    is_cut,
    item_of,
    read_payload,
    scan,
)

__all__ = ["Contents", "Segments", "Stored"]

_FULL, _DIGEST = ".spool", ".digest"
_REASON = "spool_full"
_EVENTS = 64
_MOST_EVENT_BYTES = wire.MAX_BLOCK_BYTES // 2
_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An intact batch or loss, and its place among the records of its writer."""

    seq: int
    span: int
    counted: int
    total: int
    named: bool
    item: Batch | Loss


@dataclass(slots=True, kw_only=True)
class Contents:
    """What the segments of a writer held when they were opened."""

    about: bytes | None = None
    """Payload of the newest record that says who writes."""
    bye: str | None = None
    last_seq: int = 0
    total: int = 0
    """Step records up to ``last_seq``."""
    before: int = 0
    """Step records before the first one that is left."""
    last_step: int = 0
    damaged_bytes: int = 0
    torn: Loss | None = None
    """What was damaged behind the last intact record."""
    torn_bytes: int = 0
    """Of ``damaged_bytes`` what a process that was killed did not get to write to the end: all of ``torn``, then."""


@dataclass(slots=True, kw_only=True)
class _Segment:
    path: Path
    first: int
    end: int
    """The number after its last one."""
    size: int = 0

    @property
    def condensed(self) -> bool:
        """Whether only events are left of it."""
        return self.path.suffix == _DIGEST


class Segments:
    """Files in ``folder``. One thread appends and clears away, another one reads; neither waits for a write.

    Everything that touches the disk may raise ``OSError``, but for ``read``.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        # Guards the list and the sizes, never a write: a slow disk holds nobody up who needs memory only.
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._active = -1
        self._reading = -1
        self._read_path: Path | None = None
        self._read_at = 0
        self._read_seq = 0
        self.full: deque[int] = deque()
        """Descriptors of segments that will not grow; whoever makes them durable closes them."""

    # Appending

    @property
    def active(self) -> int:
        """Descriptor of the segment that grows, -1 before the first write."""
        return self._active

    def append(self, buffers: Sequence[bytes], first: int, end: int) -> None:
        """Write encoded records, numbered ``first`` up to but without ``end``, to the segment that grows."""
        assert self._active >= 0, "a segment is begun first"
        size = _write_all(self._active, buffers)
        with self._lock:
            segment = self._segments[-1]
            segment.size += size
            segment.end = max(segment.end, end)
            if segment.first == 0:
                segment.first = first

    def must_begin(self, size: int) -> bool:
        """Whether ``size`` more bytes belong into a new segment."""
        if self._active < 0:
            return True
        segment = self._segments[-1]
        # With one number a gap would leave none for the events.
        return segment.end - segment.first > 1 and segment.first > 0 and segment.size + size > self._segment_bytes

    def begin(self, first: int, about: bytes) -> None:
        """A new segment, whose first record says who writes."""
        path = self.folder / f"{first:016d}{_FULL}"
        descriptor = os.open(path, _FLAGS, 0o600)
        before, self._active = self._active, descriptor
        if before >= 0:
            self.full.append(before)
        with self._lock:
            self._segments.append(_Segment(path=path, first=0, end=first))
        self.append(encoded(kind=Kind.ABOUT, payload=about), 0, first)

    def are_there(self) -> bool:
        """Whether nobody has removed any of the files."""
        with self._lock:
            return all(segment.path.exists() for segment in self._segments)

    # Reading

    def read(self, seq: int) -> Stored | None:
        """The intact record that covers ``seq``, else the next one behind it; None without one that can be read."""
        while True:
            try:
                return self._read(seq)
            except FileNotFoundError:
                # Condensed or cleared away since the list was copied: what stands in its place is in the list now.
                if not self.folder.is_dir():
                    return None
            except OSError:
                return None

    def _read(self, seq: int) -> Stored | None:
        with self._lock:
            segments = list(self._segments)
        place = max((n for n, segment in enumerate(segments) if segment.first <= seq and segment.first), default=0)
        for segment in segments[place:]:
            if segment.end <= seq:
                continue
            stored = self._read_in(segment, seq)
            if stored is not None:
                return stored
        return None

    def _read_in(self, segment: _Segment, seq: int) -> Stored | None:
        if self._read_path != segment.path:
            self._open_for_reading(segment.path)
        start = self._read_at if self._read_seq <= seq else 0
        for part in scan(self._reading, start, segment.size):
            if isinstance(part, Damage) or part.header.end <= seq or part.header.kind > Kind.GAP:
                continue
            payload = read_payload(self._reading, part)
            if payload is None:
                continue
            self._read_at, self._read_seq = part.end, part.header.end
            header = part.header
            return Stored(
                seq=header.seq,
                span=header.span,
                counted=header.counted,
                total=header.total,
                named=header.named,
                item=item_of(header, payload),
            )
        return None

    def _open_for_reading(self, path: Path) -> None:
        self._stop_reading()
        self._reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._read_path, self._read_at, self._read_seq = path, 0, 0

    def _stop_reading(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)
        self._reading, self._read_path = -1, None

    # Clearing away

    def nbytes(self, after: int = 0) -> int:
        """Bytes of the segments that hold something numbered above ``after``."""
        with self._lock:
            return sum(segment.size for segment in self._segments if segment.end > after + 1)

    def forget(self, acknowledged: int) -> None:
        """Delete the segments in which everything is acknowledged, but for the one that grows."""
        while True:
            with self._lock:
                if len(self._segments) < 2 or self._segments[0].end > acknowledged + 1:
                    return
                gone = self._segments.pop(0)
            gone.path.unlink(missing_ok=True)

    def _old(self) -> list[_Segment]:
        return self._segments[:-1] if self._active >= 0 else self._segments

    def condensable(self) -> tuple[int, int] | None:
        """First number of the oldest segment that ``condense`` would give up, and the one that follows its last."""
        with self._lock:
            return next(((segment.first, segment.end) for segment in self._old() if not segment.condensed), None)

    def condense(self, taken: int, about: bytes) -> Loss | None:
        """Give up the oldest segment but the one that grows, and keep its events.

        A gap and the events stand in its place, under its numbers. Returns what is lost above ``taken``: the numbers
        up to there were taken to be sent, and get a gap of their own.
        """
        with self._lock:
            number = next(n for n, segment in enumerate(self._segments) if not segment.condensed)
            oldest = self._segments[number]
            before = self._segments[number - 1] if number else None
        loss, digest = _digest(oldest, taken)
        if before is not None and before.size < self._segment_bytes:
            target = before
        else:
            digest = [*encoded(kind=Kind.ABOUT, payload=about), *digest]
            path = self.folder / f"{oldest.first:016d}{_DIGEST}"
            target = _Segment(path=path, first=oldest.first, end=oldest.first)
        descriptor = os.open(target.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = _write_all(descriptor, digest)
        finally:
            os.close(descriptor)
        with self._lock:
            target.size += size
            target.end = oldest.end
            self._segments[number : number + 1] = [] if target is before else [target]
        oldest.path.unlink(missing_ok=True)
        return loss

    # Opening and ending

    def load(self) -> Contents:
        """Look through what a process that is gone has left."""
        contents = Contents()
        behind: list[Damage] = []
        paths = [path for path in self.folder.iterdir() if path.suffix in (_FULL, _DIGEST)]
        for path in sorted(paths, key=lambda path: (path.stem, path.suffix)):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._load_one(path, descriptor, contents, behind)
            finally:
                os.close(descriptor)
        contents.torn = _torn(behind, contents)
        return contents

    def _load_one(self, path: Path, descriptor: int, contents: Contents, behind: list[Damage]) -> None:
        segment = _Segment(path=path, first=0, end=0, size=os.fstat(descriptor).st_size)
        for part in scan(descriptor, 0, segment.size):
            if isinstance(part, Damage):
                contents.damaged_bytes += part.size
                behind.append(part)
                whole = len(behind) == 1 and is_cut(descriptor, part, segment.size)
                contents.torn_bytes = part.size if whole else 0
                continue
            _note(contents, part, descriptor)
            if part.header.kind > Kind.GAP:
                continue
            behind.clear()
            contents.torn_bytes = 0
            segment.first = segment.first or part.header.seq
            segment.end = max(segment.end, part.header.end)
        if segment.first:
            self._segments.append(segment)

    def forget_descriptors(self) -> None:
        """Close them all; also in a forked child, where nobody may wait for a lock."""
        for descriptor in (self._active, self._reading, *self.full):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._active = self._reading = -1
        self._read_path = None
        self.full.clear()

    def remove(self) -> None:
        """Delete every segment."""
        with self._lock:
            gone, self._segments = self._segments, []
        for segment in gone:
            segment.path.unlink(missing_ok=True)


def _note(contents: Contents, found: Found, descriptor: int) -> None:
    header = found.header
    if header.kind is Kind.ABOUT:
        contents.about = read_payload(descriptor, found)
    elif header.kind is Kind.BYE:
        contents.bye = (read_payload(descriptor, found) or b"").decode(errors="replace")
    elif header.end > contents.last_seq:
        if not contents.last_seq:
            contents.before = header.total - header.counted
        contents.last_seq, contents.total, contents.last_step = header.end - 1, header.total, header.last


def _torn(behind: Sequence[Damage], contents: Contents) -> Loss | None:
    """What the damage at the end cost: known where a header is left, at least one record otherwise."""
    headers = [part.header for part in behind if part.header is not None and part.header.kind <= Kind.GAP]
    fresh = [header for header in headers if header.seq > contents.last_seq]
    if all(part.header is not None and part.header.kind > Kind.GAP for part in behind):
        return None
    steps = [contents.last_step, *(step for header in fresh for step in (header.first, header.last))]
    records = sum(header.records for header in fresh)
    return Loss(first=min(steps[1:] or steps), last=max(steps), records=max(1, records), reason="spool_damaged")


def _digest(segment: _Segment, taken: int) -> tuple[Loss | None, list[bytes]]:
    """What is lost with ``segment`` above ``taken``, and the records that take its place."""
    lost: Loss | None = None
    declared = {False: _NOTHING, True: _NOTHING}
    totals = {False: 0, True: 0}
    counted = {False: 0, True: 0}
    events: list[wire.Event] = []
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for part in scan(descriptor, 0, segment.size):
            if isinstance(part, Damage) or part.header.kind > Kind.GAP:
                continue
            header, is_taken = part.header, part.header.end <= taken + 1
            if header.kind is Kind.BLOCK:
                events += content_of(read_payload(descriptor, part) or b"").events
                time.sleep(0)  # lets the training thread have the interpreter
            totals[is_taken] = header.total
            counted[is_taken] += header.counted
            declared[is_taken] = _merged(declared[is_taken], header)
            if not is_taken and header.kind is Kind.BLOCK:  # what a gap stands for was lost before
                lost = _merged(lost or _NOTHING, header)
    finally:
        os.close(descriptor)
    middle = min(max(taken + 1, segment.first), segment.end)
    replacement: list[bytes] = []
    if middle > segment.first:
        span = middle - segment.first
        replacement += encoded(declared[True], seq=segment.first, span=span, counted=counted[True], total=totals[True])
    if segment.end > middle:
        replacement += _replacement(middle, segment.end, declared[False], events, (counted[False], totals[False]))
    return lost, replacement


_NOTHING = Loss(first=-1, last=-1, records=0, reason=_REASON)


def _merged(loss: Loss, header: Header) -> Loss:
    one = Loss(first=header.first, last=header.last, records=header.records, reason=_REASON)
    return one if loss is _NOTHING else loss.merged(one)


def _replacement(first: int, end: int, loss: Loss, events: Sequence[wire.Event], count: tuple[int, int]) -> list[bytes]:
    counted, total = count
    numbers = end - first
    # The gap takes one number, and each batch of events one.
    size = max(_EVENTS, -(-len(events) // max(1, numbers - 1)))
    batches = [_of_events(events[start : start + size]) for start in range(0, len(events), size)]
    batches = [batch for batch in batches if batch.nbytes <= _MOST_EVENT_BYTES][: numbers - 1]
    span = numbers - len(batches)
    buffers = encoded(loss, seq=first, span=span, counted=counted, total=total, named=True)
    for number, batch in enumerate(batches):
        buffers += encoded(batch, seq=first + span + number, total=total)
    return buffers


def _of_events(events: Sequence[wire.Event]) -> Batch:
    first, last = min(event.step for event in events), max(event.step for event in events)
    body = wire.encode(wire.Body(first_step=first, steps=last - first + 1, events=tuple(events)))
    return Batch(first=first, last=last, records=0, body=body, crc=zlib.crc32(body))


def _write_all(descriptor: int, buffers: Sequence[bytes]) -> int:
    """Write every byte; where that fails nothing of it stays."""
    data = b"".join(buffers)
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:] if written else data)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
        raise
    return written
