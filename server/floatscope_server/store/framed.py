"""Parts of blocks as ``wal_frame`` and ``dump_part`` hold them: a byte that begins nothing else, a CRC-32 and the part.

What is damaged is None: the rest is shown, and sealed. Neither msgpack nor LZ4 would notice a flipped bit of a number.
Frames without a checksum are those of an earlier version.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, REQUIRED_FIELDS, Frame
from floatscope_server.store.packed import SUMMARIES

__all__ = [
    "UNLIKE",
    "bodies_of",
    "devices_of",
    "frame_of",
    "framed",
    "histograms_of",
    "is_whole",
    "scalars_of",
    "sound_frame",
    "summaries_of",
]

_T = TypeVar("_T")

UNLIKE = "the checksum does not match"
"""What is wrong with a damaged one."""

_MARK = 0xC1
"""No msgpack begins with it, nor a Blosc frame."""
_HEAD = struct.Struct("<BI")

_HISTOGRAMS = msgspec.msgpack.Decoder(wire.Histograms)
_SCALARS = msgspec.msgpack.Decoder(tuple[wire.Scalars, ...])
_DEVICES = msgspec.msgpack.Decoder(tuple[wire.Device, ...])
_BODIES = msgspec.msgpack.Decoder(list[bytes])
_BODY = msgspec.msgpack.Decoder(wire.Body)

_DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RuntimeError)
"""What msgspec, Blosc and NumPy make of bytes that nobody wrote."""


def framed(part: bytes) -> bytes:
    """``part``, encoded, for its row."""
    return _HEAD.pack(_MARK, zlib.crc32(part)) + part


def frame_of(data: bytes) -> Frame | None:
    """Summaries as a frame."""
    return _read(data, lambda data: Frame.of(SUMMARIES.decode(data)), _is_sound)


def sound_frame(part: wire.Summaries) -> Frame | None:
    """What ``frame_of`` makes of ``part`` once it is stored."""
    try:
        frame = Frame.of(part)
        return frame if _is_sound(frame) else None
    except _DAMAGED:
        return None


def summaries_of(data: bytes) -> wire.Summaries | None:
    """Summaries as they came."""
    return None if frame_of(data) is None else SUMMARIES.decode(_part(data))


def histograms_of(data: bytes) -> wire.Histograms | None:
    """Histograms as they came."""
    return _read(data, _HISTOGRAMS.decode, _is_whole)


def scalars_of(data: bytes) -> tuple[wire.Scalars, ...] | None:
    """Scalars as they came."""
    return _read(data, _SCALARS.decode, _have_pairs)


def devices_of(data: bytes) -> tuple[wire.Device, ...] | None:
    """Device samples as they came."""
    return _read(data, _DEVICES.decode, lambda _: True)


def is_whole(data: bytes) -> bool:
    """Whether it is what ``framed`` made, or of an earlier version."""
    return _read(data, lambda _: True, bool) is not None


def bodies_of(data: bytes) -> list[wire.Body] | None:
    """What a piece of a dump holds."""
    return _read(data, lambda data: [_BODY.decode(body) for body in _BODIES.decode(data)], lambda _: True)


def _read(data: bytes, decode: Callable[[bytes], _T], is_sound: Callable[[_T], bool]) -> _T | None:
    try:
        part = decode(_part(data))
        return part if is_sound(part) else None
    except _DAMAGED:
        return None


def _part(data: bytes) -> bytes:
    """What ``framed`` was given; ``ValueError`` if it is another one by now."""
    if data[:1] != bytes([_MARK]):
        return data
    if len(data) < _HEAD.size or zlib.crc32(memoryview(data)[_HEAD.size :]) != _HEAD.unpack_from(data)[1]:
        raise ValueError(UNLIKE)
    return data[_HEAD.size :]


def _is_sound(frame: Frame) -> bool:
    return (
        len(frame.layers) > 0
        and {*REQUIRED_FIELDS} <= frame.fields.keys()
        and all(name in FIELD_DTYPES and field.dtype == FIELD_DTYPES[name] for name, field in frame.fields.items())
        and all(field.shape == (frame.steps, len(frame.layers)) for field in frame.fields.values())
    )


def _is_whole(part: wire.Histograms) -> bool:
    n = len(np.frombuffer(part.layers, "<u4"))
    return (
        len(part.first) == len(part.length) == 2 * n
        and len(part.sampled) == 8 * n
        and len(part.counts) == 8 * int(np.frombuffer(part.length, "<u2").sum(dtype=np.int64))
    )


def _have_pairs(series: tuple[wire.Scalars, ...]) -> bool:
    return all(one.steps and len(one.steps) % 8 == 0 and len(one.steps) == len(one.values) for one in series)
