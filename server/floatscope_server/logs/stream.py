"""Items of a log on their way to the server: which attempt they belong to, and which of them it has already."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from floatscope import wire
from floatscope._packing import Batch
from floatscope_server.check.timeline import Moment
from floatscope_server.logs.bodies import Bodies, Piece
from floatscope_server.logs.course import Course
from floatscope_server.readers import Extreme, Happening, LogFormat, Reading, Row
from floatscope_server.readers.tfevents import TENSORBOARD_EVENTS

__all__ = ["Counts", "DivergedError", "Item", "Line", "Opener", "Progress", "Stream", "mark_of"]

Item = Row | Happening | Reading | Extreme

_PIECES = 512
_VALUES = 1 << 15
"""Values of one body: half a mebibyte."""
_SPAN = 1 << 15
"""Steps of one body; the server takes 2^16."""


class Line(Protocol):
    """What a stream needs of a ``Channel``."""

    @property
    def max_block_bytes(self) -> int: ...
    def welcome(self) -> wire.Welcome | None: ...
    def send(self, batch: Batch) -> None: ...


Opener = Callable[[str, int], Line]
"""Makes the line of a writer, given its id and its attempt (0: the server chooses)."""


class DivergedError(Exception):
    """What the server has of this log is not what the log begins with."""


class Progress(Enum):
    """Where a stream is in what the server has already."""

    UNKNOWN = "unknown"
    """Nothing has been read."""
    BEHIND = "behind"
    SENDING = "sending"


@dataclass(slots=True)
class Counts:
    """What became of a log. ``records`` and steps are those that were sent now."""

    records: int = 0
    first_step: int | None = None
    last_step: int | None = None
    skipped: int = 0
    attempts: list[int] = field(default_factory=list)

    def note(self, step: int) -> None:
        self.records += 1
        self.first_step = step if self.first_step is None else min(self.first_step, step)
        self.last_step = step if self.last_step is None else max(self.last_step, step)


def mark_of(item: Item) -> int:
    """A number that stands for what ``item`` says, wherever in a file it is."""
    if isinstance(item, Row):
        content: Any = ("row", item.values)
    elif isinstance(item, Extreme):
        content = ("extreme", item.step, item.layer, item.kind, item.format, item.absmax)
    elif isinstance(item, Reading):
        content = ("reading", item.device.index, item.values)
    else:
        content = ("happening", item.event.kind, item.event.detail)
    return zlib.crc32(msgspec.msgpack.encode(content))


class Stream:
    """Takes the items of one log, which may be in several parts: a rotated file and what came after it.

    What was sent is known by what the server says of it: the part, by its first item, and the number of items in it.
    A step that goes back is another attempt, with a writer of its own.
    """

    def __init__(
        self,
        log_format: LogFormat,
        opener: Opener,
        *,
        key: str,
        alone: bool,
        attempt: int = 0,
        generation: int = 0,
        now_ns: Callable[[], int] | None = None,
        resume: bool = True,
    ) -> None:
        """``key`` names the log in its run. ``alone``: no training goes with it. ``attempt`` is that of the first
        writer, if it is known. ``generation`` counts logs that began alike and went on otherwise. ``now_ns`` is the
        time of readings without a clock; None: a second from one to the next, from 1970 on. Without ``resume`` all
        is sent, whatever the server has."""
        self.past = True
        """Whether what comes was there before anybody listened."""
        self.counts = Counts()
        self._format = log_format
        self._opener = opener
        self._key = key
        self._alone = alone
        self._attempt = attempt
        self._generation = generation
        self._now_ns = now_ns
        self._resume = resume
        self._first: int | None = None
        self._part: int | None = None
        self._items = 0
        self._crc = 0
        self._begun = 0
        self._course = Course(log_format.late, scattered=log_format is TENSORBOARD_EVENTS)
        self._line: Line | None = None
        self._bodies = Bodies(alone=alone)
        self._have: dict[str, Any] = {}
        self._pieces: list[Piece] = []
        self._size = 0
        self._low = self._high = 0
        self._rows: dict[int, int] = {}
        self._virtual_s = 0.0
        self.matched_part = False

    @property
    def progress(self) -> Progress:
        """Where it is."""
        if self._line is None:
            return Progress.UNKNOWN
        return Progress.BEHIND if self._have else Progress.SENDING

    def begin_part(self) -> None:
        """What comes next is in another file."""
        self._part, self._items, self._crc = None, 0, 0

    def take(self, item: Item) -> None:
        """The next item. Raises ``ChannelError``, and ``DivergedError`` when the server has something else."""
        mark = mark_of(item)
        if self._part is None:
            self._part = mark
            self._first = mark if self._first is None else self._first
        if self._line is None:
            self._begin()
        self._items += 1
        self._crc = zlib.crc32(mark.to_bytes(4, "little"), self._crc)
        if isinstance(item, Reading) and item.values:
            self._reading(item)
        else:
            self._moments(self._course.take(item))
        self._look()
        if self._course.begins_anew():
            if self._have:
                raise DivergedError
            self.flush()
            self._virtual_s = 0.0
            self._begin()
            self._look()
        if len(self._pieces) >= _PIECES or self._size >= _VALUES:
            self.flush()

    def pause(self) -> None:
        """The log has come to a stop: send what is known, of steps that may still get more as well."""
        if self.progress is Progress.SENDING:
            self._moments(self._course.waiting(), held=True)
            self.flush()

    def finish(self) -> None:
        """The log has ended."""
        self._moments(self._course.finish(), held=True)
        if self.progress is Progress.SENDING:
            self.flush()

    def flush(self) -> None:
        """Send what is complete."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        if not pieces:
            return
        assert self._line is not None
        for batch in self._bodies.encode(pieces, self._line.max_block_bytes):
            self._line.send(batch)
        for piece in pieces:
            for moment in piece.moments:
                self.counts.note(moment.step)
            self.counts.records += len(piece.readings)

    # Writers

    def _begin(self) -> None:
        """The next attempt; what the server has of it already is passed over."""
        name = f"{self._key}/{self._first}/{self._begun}/{self._generation}"
        writer = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._line = self._opener(writer, self._attempt if self._begun == 0 else 0)
        self._begun += 1
        self._bodies = Bodies(alone=self._alone)
        welcome = self._line.welcome()
        if welcome is None:
            return
        if welcome.attempt not in self.counts.attempts:
            self.counts.attempts.append(welcome.attempt)
        self._have = dict(welcome.read) if self._resume else {}
        if self._have:
            self._alone = bool(self._have.get("samples"))
            self._bodies = Bodies(alone=self._alone)

    def _is_at(self, read: dict[str, Any]) -> bool:
        if read.get("part") != self._part:
            return False
        self.matched_part = True
        if read.get("items") != self._items:
            return False
        if read.get("crc") != self._crc:
            raise DivergedError
        return True

    def _look(self) -> None:
        """Whether what comes next is new."""
        if not self._have or not self._is_at(self._have):
            return
        if self._have.get("held"):
            for moment in self._course.waiting():
                self._bodies.skip(moment)
                self.counts.skipped += 1
        self._have = {}

    # Pieces

    def _moments(self, moments: Iterable[Moment], *, held: bool = False) -> None:
        for moment in moments:
            seconds = moment.meaning.get("step_time_s", 1.0)
            self._virtual_s += seconds if 0 <= seconds < 86_400 else 0.0
            if self._have:
                self._bodies.skip(moment)
                self.counts.skipped += 1
                continue
            if moment.devices:
                at = int(self._virtual_s * 1e9) if self._now_ns is None else self._now_ns()
                moment.devices = [msgspec.structs.replace(device, time_ns=at) for device in moment.devices]
            self._add(moment.step, held=held).moments.append(moment)
            self._size += len(moment.values) + len(moment.meaning) + 4 * len(moment.extremes)

    def _reading(self, item: Reading) -> None:
        index = item.device.index
        row = self._rows[index] = self._rows.get(index, -1) + 1
        if self._have:
            self.counts.skipped += 1
            return
        at = item.device.time_ns or ((row + 1) * 1_000_000_000 if self._now_ns is None else self._now_ns())
        timed = dataclasses.replace(item, device=msgspec.structs.replace(item.device, time_ns=at))
        if self._alone and self._pieces and row != self._pieces[-1].readings[-1][0]:
            # The rules judge a reading at the step of its block.
            self.flush()
        self._add(row, held=False).readings.append((row, timed))
        self._size += len(item.values) + 10

    def _add(self, step: int, *, held: bool) -> Piece:
        """The piece of the item at hand."""
        read = {"part": self._part, "items": self._items, "crc": self._crc, "held": held, "past": self.past}
        if self._pieces and not self._fits(step):
            self.flush()
        if not self._pieces:
            self._low = self._high = step
        self._low, self._high = min(self._low, step), max(self._high, step)
        last = self._pieces[-1] if self._pieces else None
        if last is None or last.read != read:
            last = Piece(read)
            self._pieces.append(last)
        return last

    def _fits(self, step: int) -> bool:
        # Points of a series go up in a body.
        return step >= self._high and step - self._low < _SPAN
