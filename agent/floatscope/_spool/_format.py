"""The bytes of a spool: records one after the other, each found and checked by itself whatever is broken around it.

A record is a header of 64 bytes (little-endian) and its payload:

    magic 4s | kind u8 | flags u8 | version u16 | length u32 | seq u64 | span u32 | first i64 | last i64 | records u32 |
    counted u32 | total u64 | CRC-32 of the payload u32 | CRC-32 of the header so far u32

``seq`` is the number under which the server gets it, fixed here; ``span`` how many numbers it stands for (a gap that
took the place of many batches). ``total`` counts the step records of this writer up to and with this one, of which
``counted`` are this one's: what is missing between two intact records is known exactly.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from floatscope import wire
from floatscope._packing import Batch, Loss

__all__ = [
    "HEADER_BYTES",
    "Damage",
    "Found",
    "Header",
    "Kind",
    "content_of",
    "encoded",
    "is_cut",
    "item_of",
    "read_payload",
    "scan",
]

_MAGIC = b"\xf5\x0dSP"
_VERSION = 1
_FIELDS = struct.Struct("<4sBBHIQIqqIIQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size
_CONTINUED, _NAMES_ONLY, _NAMED = 1, 2, 4
_SEARCH_BYTES = 256 << 10
_MOST_BYTES = 4 << 20
"""Most that a payload may have: a block has up to 1 MiB, and a layer table somewhat more."""
_LARGEST = (1 << 63) - 1


class Kind(IntEnum):
    """What a payload is: an encoded ``wire.Body``, the reason of a gap, that of the end, or who writes here."""

    BLOCK = 1
    GAP = 2
    BYE = 3
    ABOUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Of one record. ``first`` and ``last`` are steps, ``records`` whole steps, ``length`` bytes of payload.

    Of ``records`` those ``counted`` are part of ``total``: a record that was lost before it had a number is not.
    """

    kind: Kind
    seq: int = 0
    span: int = 0
    first: int = 0
    last: int = 0
    records: int = 0
    counted: int = 0
    total: int = 0
    flags: int = 0
    length: int = 0
    crc: int = 0

    @property
    def end(self) -> int:
        """The number that follows."""
        return self.seq + self.span

    @property
    def named(self) -> bool:
        """Whether layer entries went with what this gap stands for."""
        return bool(self.flags & _NAMED)


@dataclass(frozen=True, slots=True)
class Found:
    """A record whose header is intact, at ``offset``."""

    offset: int
    header: Header

    @property
    def end(self) -> int:
        """Where the next one starts."""
        return self.offset + HEADER_BYTES + self.header.length


@dataclass(frozen=True, slots=True)
class Damage:
    """``size`` bytes at ``offset`` that are no intact record; with the header, if that is."""

    offset: int
    size: int
    header: Header | None


def encoded(
    item: Batch | Loss | None = None,
    *,
    seq: int = 0,
    span: int = 1,
    counted: int = 0,
    total: int = 0,
    named: bool = False,
    kind: Kind | None = None,
    payload: bytes = b"",
) -> list[bytes]:
    """A record as the buffers to write: of a batch or loss, or, without one, of ``kind`` with ``payload``."""
    flags = _NAMED * named
    first = last = records = 0
    if item is None:
        assert kind is not None
        span = 0
        crc = zlib.crc32(payload)
    else:
        first, last, records = item.first, item.last, item.records
        if isinstance(item, Batch):
            kind, payload, crc = Kind.BLOCK, item.body, item.crc
            flags |= _CONTINUED * item.continued + _NAMES_ONLY * item.names_only
        else:
            kind, payload = Kind.GAP, item.reason.encode()
            crc = zlib.crc32(payload)
    assert kind is not None
    fields = _FIELDS.pack(
        *(_MAGIC, kind, flags, _VERSION, len(payload), seq, span),
        *(min(max(first, -_LARGEST), _LARGEST), min(max(last, -_LARGEST), _LARGEST), records, counted, total, crc),
    )
    return [fields + _CRC.pack(zlib.crc32(fields)), payload]


def _decoded(data: bytes) -> Header | None:
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        return None
    if zlib.crc32(data[: _FIELDS.size]) != _CRC.unpack_from(data, _FIELDS.size)[0]:
        return None
    _, kind, flags, version, length, seq, span, first, last, records, counted, total, crc = _FIELDS.unpack_from(data)
    if version != _VERSION or kind not in set(Kind) or length > _MOST_BYTES:
        return None
    return Header(
        kind=Kind(kind),
        seq=seq,
        span=span,
        first=first,
        last=last,
        records=records,
        counted=counted,
        total=total,
        flags=flags,
        length=length,
        crc=crc,
    )


def read_payload(fd: int, found: Found) -> bytes | None:
    """The payload of a record; None when it is damaged or cannot be read."""
    try:
        data = _read(fd, found.header.length, found.offset + HEADER_BYTES)
    except OSError:
        return None
    return data if len(data) == found.header.length and zlib.crc32(data) == found.header.crc else None


def scan(fd: int, start: int, end: int) -> Iterator[Found | Damage]:
    """Every record between two offsets, in order, and what is damaged between them. Never raises."""
    at = start
    while at < end:
        header = _header_at(fd, at)
        if header is not None:
            found = Found(at, header)
            if found.end <= end and read_payload(fd, found) is not None:
                yield found
                at = found.end
                continue
        # Its length may be right while bytes are missing: look for the next one from here on.
        following = _next_header(fd, at + 1, end)
        yield Damage(at, following - at, header)
        at = following


def is_cut(fd: int, damage: Damage, end: int) -> bool:
    """Whether ``damage``, the last before ``end``, is what a write leaves that did not get through: the beginning of a
    record, or zeros in its place."""
    if damage.offset + damage.size != end:
        return False
    if damage.header is not None:
        return damage.offset + HEADER_BYTES + damage.header.length > end
    return damage.size < HEADER_BYTES or _is_zero(fd, damage.offset, end)


def _is_zero(fd: int, start: int, end: int) -> bool:
    try:
        return not any(any(_read(fd, min(_SEARCH_BYTES, end - at), at)) for at in range(start, end, _SEARCH_BYTES))
    except OSError:
        return False


def item_of(header: Header, payload: bytes) -> Batch | Loss:
    """The batch or the loss of a record. What layers its body names is left to ``content_of``: few ask."""
    if header.kind is Kind.GAP:
        reason = payload.decode(errors="replace")
        return Loss(first=header.first, last=header.last, records=header.records, reason=reason)
    return Batch(
        first=header.first,
        last=header.last,
        records=header.records,
        body=payload,
        crc=header.crc,
        continued=bool(header.flags & _CONTINUED),
        names_only=bool(header.flags & _NAMES_ONLY),
    )


def content_of(body: bytes) -> wire.Body:
    """An encoded body; an empty one when it is of a newer version, say: the server judges it."""
    try:
        return wire.decode_body(wire.Block(seq=0, crc=zlib.crc32(body), body=body))
    except wire.WireError:
        return wire.Body()


def _header_at(fd: int, offset: int) -> Header | None:
    try:
        return _decoded(_read(fd, HEADER_BYTES, offset))
    except OSError:
        return None


def _next_header(fd: int, start: int, end: int) -> int:
    """Offset of the next intact header from ``start`` on, ``end`` without one."""
    at = start
    while at < end:
        try:
            chunk = _read(fd, min(_SEARCH_BYTES, end - at), at)
        except OSError:
            chunk = b""
        if not chunk:
            return end
        place = chunk.find(_MAGIC)
        while place >= 0:
            if _header_at(fd, at + place) is not None:
                return at + place
            place = chunk.find(_MAGIC, place + 1)
        # The magic may lie across two chunks.
        at += max(1, len(chunk) - len(_MAGIC) + 1)
    return end


def _read(fd: int, size: int, offset: int) -> bytes:
    parts = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)
