"""TensorBoard event files: TFRecord framing with masked CRC-32C, and of the protobuf messages the fields of scalars.

Formats: ``tensorflow/core/lib/io/record_writer.cc``, ``tensorflow/core/util/event.proto``,
``tensorflow/core/framework/summary.proto`` and ``tensor.proto``.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from array import array
from collections.abc import Iterator

from floatscope_server.readers.crc32c import masked_crc32c
from floatscope_server.readers.names import meaning
from floatscope_server.readers.rows import Broken, Item, LogFormat, Row

__all__ = ["TENSORBOARD", "TENSORBOARD_EVENTS", "begins_record"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_LONGEST = 1 << 30
"""Bytes of a record; a length beyond it is damage."""
_CHECKED = 4096
"""Bytes up to which the content of a record is checked: scalars are far shorter, images and graphs longer."""
_FLOAT, _DOUBLE = 1, 2
"""DataType of a TensorProto."""


def begins_record(head: bytes) -> bool:
    """Whether ``head`` begins with the checked length of a record."""
    if len(head) < _HEADER.size:
        return False
    _, check = _HEADER.unpack_from(head)
    return bool(masked_crc32c(head[:8]) == check)


def _records(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Number from 1 and content of each record; None for the content of one that is damaged. Where its length is, the
    rest cannot be found."""
    held = bytearray()
    number = 1

    def fill(length: int) -> bool:
        while len(held) < length:
            chunk = next(chunks, None)
            if chunk is None:
                return False
            held.extend(chunk)
        return True

    while fill(_HEADER.size):
        length, check = _HEADER.unpack_from(held)
        if length > _LONGEST or masked_crc32c(bytes(held[:8])) != check:
            yield number, None
            return
        if not fill(_HEADER.size + length + _FOOTER.size):
            yield number, None
            return
        content = bytes(held[_HEADER.size : _HEADER.size + length])
        (check,) = _FOOTER.unpack_from(held, _HEADER.size + length)
        del held[: _HEADER.size + length + _FOOTER.size]
        sound = len(content) > _CHECKED or masked_crc32c(content) == check
        yield number, content if sound else None
        number += 1
    if held:
        yield number, None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise struct.error("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and content of each field of a message: integers for varints, bytes for the rest."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[kind]
        yield number, kind, data[at : at + length]
        at += length


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _tensor(data: bytes) -> float | None:
    """The number that a TensorProto of one element holds: as raw content (4), float_val (5) or double_val (6)."""
    dtype, value = 0, None
    for number, _, content in _fields(data):
        if number == 1 and isinstance(content, int):
            dtype = content
        elif isinstance(content, bytes) and (number in (5, 6) or (number == 4 and dtype in (_FLOAT, _DOUBLE))):
            code = "<d" if number == 6 or (number == 4 and dtype == _DOUBLE) else "<f"
            if len(content) == struct.calcsize(code):
                (value,) = struct.unpack(code, content)
    return value


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, _, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, found = "", None
        for field, _, content in _fields(value):
            if field == 1 and isinstance(content, bytes):
                tag = content.decode("utf-8", "replace")
            elif field == 2 and isinstance(content, bytes):
                found = float(struct.unpack("<f", content)[0])
            elif field == 8 and isinstance(content, bytes):
                found = _tensor(content)
        if found is not None:
            yield tag, found


def _event(content: bytes) -> tuple[int, list[tuple[str, float]]]:
    """Step and scalars of an event. Text, graphs and images are left alone: they hold paths and arguments."""
    step, scalars = 0, []
    for number, _, value in _fields(content):
        if number == 2 and isinstance(value, int):
            step = _signed(value)
        elif number == 5 and isinstance(value, bytes):
            scalars += list(_scalars(value))
    return step, scalars


class _Series:
    """The points of one tag in the order of the file: 25 bytes each. ``first`` marks the first point of an event."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self.first = array("b")
        self.lines = array("q")

    def ordered(self, tag: str) -> Iterator[tuple[int, int, int, str, float, int]]:
        """(attempt, step, line, tag, value, first) in order: where steps go back the training began anew."""
        attempt, begun = 0, 0
        steps = self.steps
        for i in range(1, len(steps) + 1):
            if i == len(steps) or steps[i] < steps[i - 1]:
                for at in range(begun, i):
                    yield attempt, steps[at], self.lines[at], tag, self.values[at], self.first[at]
                attempt, begun = attempt + 1, i


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    series: dict[str, _Series] = {}
    for number, content in _records(chunks):
        if content is None:
            yield Broken(line=number, why="the record is damaged or not complete")
            continue
        try:
            step, scalars = _event(content)
        except (IndexError, KeyError, struct.error):
            yield Broken(line=number, why="the record is no event")
            continue
        for i, (tag, value) in enumerate(scalars):
            points = series.setdefault(tag, _Series())
            points.steps.append(step)
            points.values.append(value)
            points.first.append(i == 0)
            points.lines.append(number)
    yield from _rows(series)


def _rows(series: dict[str, _Series]) -> Iterator[Row]:
    """One row a step: a file may hold the points of one tag after those of another."""
    points = heapq.merge(*(one.ordered(tag) for tag, one in series.items()))
    before = 0
    for (attempt, step), group in itertools.groupby(points, key=lambda point: point[:2]):
        values: dict[str, float] = {}
        line = records = 0
        for _, _, number, tag, value, first in group:
            values[tag] = value
            line, records = max(line, number), records + first
        yield Row(
            line=line, step=step, values=values, meaning=meaning(values), restart=attempt > before, records=records
        )
        before = attempt


def _read_events(chunks: Iterator[bytes]) -> Iterator[Item]:
    """A row for each event with scalars, in the order of the file."""
    for number, content in _records(chunks):
        if content is None:
            yield Broken(line=number, why="the record is damaged or not complete")
            continue
        try:
            step, scalars = _event(content)
        except (IndexError, KeyError, struct.error):
            yield Broken(line=number, why="the record is no event")
            continue
        if scalars:
            values = dict(scalars)
            yield Row(line=number, step=step, values=values, meaning=meaning(values))


TENSORBOARD_EVENTS = LogFormat("tensorboard-events", _read_events)
"""The same as they come, for files that grow."""
TENSORBOARD = LogFormat("tensorboard-events", _read)
