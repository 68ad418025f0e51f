"""Summaries as they lie in ``wal_frame``: their msgpack, as a Blosc frame of LZ4 over shuffled bytes.

Less than half the bytes, which are written twice and deleted again: 17 of 33 s of the system's CPU per 1e9 samples for
2 s of ours. What an earlier version stored is the msgpack alone.
"""

from __future__ import annotations

import msgspec
from numcodecs import blosc

from floatscope import wire

__all__ = ["SUMMARIES", "pack"]

_LEVEL = 1
_WORD = 8
"""Bytes of the counts and sums that most of it is: those above of small counts become runs of zeros."""

_BLOSC_VERSION = b"\x02"
"""First byte of a Blosc frame; a msgpack map begins with 0x80 or higher."""

_MSGPACK = msgspec.msgpack.Decoder(wire.Summaries)


def pack(part: wire.Summaries) -> bytes:
    """``part`` for its row."""
    packed: bytes = blosc.compress(wire.encode(part), b"lz4", _LEVEL, blosc.SHUFFLE, typesize=_WORD)
    return packed


class _Decoder:
    def decode(self, data: bytes) -> wire.Summaries:
        """What ``pack`` was given; ``msgspec.DecodeError`` or ``RuntimeError`` if that cannot be had."""
        return _MSGPACK.decode(blosc.decompress(data) if data[:1] == _BLOSC_VERSION else data)


SUMMARIES = _Decoder()
