"""Parts of blocks as ``wal_frame`` holds them. What is damaged there is None: the rest is shown, and sealed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, REQUIRED_FIELDS, Frame
from floatscope_server.store.packed import SUMMARIES

__all__ = ["devices_of", "frame_of", "histograms_of", "scalars_of", "sound_frame", "summaries_of"]

_T = TypeVar("_T")

_HISTOGRAMS = msgspec.msgpack.Decoder(wire.Histograms)
_SCALARS = msgspec.msgpack.Decoder(tuple[wire.Scalars, ...])
_DEVICES = msgspec.msgpack.Decoder(tuple[wire.Device, ...])

_DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RuntimeError)
"""What msgspec, Blosc and NumPy make of bytes that nobody wrote."""


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
    return None if frame_of(data) is None else SUMMARIES.decode(data)


def histograms_of(data: bytes) -> wire.Histograms | None:
    """Histograms as they came."""
    return _read(data, _HISTOGRAMS.decode, _is_whole)


def scalars_of(data: bytes) -> tuple[wire.Scalars, ...] | None:
    """Scalars as they came."""
    return _read(data, _SCALARS.decode, _have_pairs)


def devices_of(data: bytes) -> tuple[wire.Device, ...] | None:
    """Device samples as they came."""
    return _read(data, _DEVICES.decode, lambda _: True)


def _read(data: bytes, decode: Callable[[bytes], _T], is_sound: Callable[[_T], bool]) -> _T | None:
    try:
        part = decode(data)
        return part if is_sound(part) else None
    except _DAMAGED:
        return None


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
