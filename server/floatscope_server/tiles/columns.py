"""The bytes of a chunk: columns of numbers behind a header of 16 bytes, little-endian, lossless.

| offset | type | field |
|---|---|---|
| 0 | 4s | ``FSC1`` |
| 4 | u8 | what the columns are: chosen by who encodes |
| 5 | u8 | number of columns |
| 6 | u16 | 0 |
| 8 | u32 | CRC-32 of the 8 bytes before it and of the body |
| 12 | u32 | length of the body |

Each column is: dtype (u8: 0 float64, 1 int64, 2 uint8, 3 uint16, 4 uint32, 5 uint64), how it is stored (u8), number of
elements (u32), bytes that follow (u32), then these. Stored as 0: one value stands for all; 1: first and difference of
an arithmetic sequence; 2: as it is; 3: bit-shuffled and compressed with LZ4 (a Blosc frame). int64 is stored as the
difference to the element before, so that steps of a constant stride take no room.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from floatscope_server.tiles.codec import TileError

__all__ = ["Column", "decode_columns", "encode_columns"]

Column = npt.NDArray[Any]

_MAGIC = b"FSC1"
_HEADER = struct.Struct("<4sBBH")
_SUM = struct.Struct("<II")
_COLUMN = struct.Struct("<BBII")
_DTYPES = ("<f8", "<i8", "|u1", "<u2", "<u4", "<u8")
_CONSTANT, _SEQUENCE, _PLAIN, _PACKED = range(4)
_BLOSC = blosc.Blosc(cname="lz4", clevel=5, shuffle=blosc.Blosc.BITSHUFFLE)


def encode_columns(kind: int, columns: Sequence[Column]) -> bytes:
    """``columns`` of one dimension each; they may differ in length."""
    body = b"".join(_encoded(column) for column in columns)
    header = _HEADER.pack(_MAGIC, kind, len(columns), 0)
    return header + _SUM.pack(zlib.crc32(body, zlib.crc32(header)), len(body)) + body


def decode_columns(kind: int, data: bytes) -> list[Column]:
    """What ``encode_columns`` was given, bit for bit. ``TileError`` if that cannot be had."""
    start = _HEADER.size + _SUM.size
    if len(data) < start or data[:4] != _MAGIC:
        raise TileError("this is no chunk")
    _, found, n, _ = _HEADER.unpack_from(data)
    crc, length = _SUM.unpack_from(data, _HEADER.size)
    body = memoryview(data)[start:]
    if len(body) != length or zlib.crc32(body, zlib.crc32(data[: _HEADER.size])) != crc:
        raise TileError("the chunk is damaged: its checksum does not match")
    if found != kind:
        raise TileError(f"a chunk of kind {found} where one of kind {kind} should be")
    columns: list[Column] = []
    at = 0
    for _ in range(n):
        dtype, how, elements, size = _COLUMN.unpack_from(body, at)
        at += _COLUMN.size
        if dtype >= len(_DTYPES) or how > _PACKED:
            raise TileError("the chunk is of a newer version")
        columns.append(_decoded(np.dtype(_DTYPES[dtype]), how, elements, body[at : at + size]))
        at += size
    return columns


def _encoded(column: Column) -> bytes:
    column = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
    bits = column.view(f"<u{column.dtype.itemsize}")
    if len(bits) and (bits == bits[0]).all():
        how, content = _CONSTANT, column[:1].tobytes()
    elif column.dtype.kind == "i" and len(column):
        differences = np.diff(column)
        if (differences == differences[0]).all():
            how, content = _SEQUENCE, np.append(column[:1], differences[:1]).tobytes()
        else:
            how, content = _packed(np.append(column[:1], differences))
    else:
        how, content = _packed(column)
    return _COLUMN.pack(_DTYPES.index(column.dtype.str), how, len(column), len(content)) + content


def _packed(column: Column) -> tuple[int, bytes]:
    packed = bytes(_BLOSC.encode(column)) if len(column) else b""
    return (_PACKED, packed) if len(column) and len(packed) < column.nbytes else (_PLAIN, column.tobytes())


def _decoded(dtype: np.dtype[Any], how: int, elements: int, content: memoryview) -> Column:
    if how == _CONSTANT:
        return np.full(elements, np.frombuffer(content, dtype, 1)[0], dtype)
    if how == _SEQUENCE:
        first, difference = np.frombuffer(content, dtype, 2).tolist()
        sequence: Column = first + difference * np.arange(elements, dtype=dtype)
        return sequence
    column: Column = np.frombuffer(_BLOSC.decode(content) if how == _PACKED else content, dtype, elements)
    return np.cumsum(column, dtype=dtype) if dtype.kind == "i" else column
