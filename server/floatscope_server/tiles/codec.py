"""The bytes of a tile: a header of 32 bytes, little-endian, and a compressed body with a checksum.

| offset | type | field |
|---|---|---|
| 0 | 4s | ``TTL1`` |
| 4 | u8 | dtype: 0 float32, 1 float64, 2 uint32, 3 uint16, 4 uint8 |
| 5 | u8 | codec: 0 none, 1 bit-shuffle and LZ4 (a Blosc frame) |
| 6 | u8 | flags |
| 7 | u8 | bits of the mantissa that are kept |
| 8 | u16, u16 | rows (layers), columns |
| 12 | u32 | first layer |
| 16 | u64 | first column |
| 24 | u32 | CRC-32 of the 24 bytes before it and of the body |
| 28 | u32 | length of the body |

The body is [rows, columns] in C order. With ``SPARSE`` it begins with the number of columns that are there (u16) and
their places (u16 each): those that are not are missing. With ``CONSTANT`` one value stands for all that are there.

Missing is the NaN with the payload ``wire.MISSING_BITS``; an observed NaN is 0x7FC00000. (In float64 the same bits of
the upper half.) Rounding leaves both, and infinities, as they are.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from floatscope import wire

__all__ = ["MISSING", "MISSING64", "Flag", "TileData", "TileError", "decode", "encode", "is_missing"]

MISSING = np.array([wire.MISSING_BITS], np.uint32).view(np.float32)[0]
_MISSING64_BITS = 0x7FF8000020000000
MISSING64 = np.array([_MISSING64_BITS], np.uint64).view(np.float64)[0]
"""``MISSING`` as the conversion to float64 makes it."""

_MAGIC = b"TTL1"
_HEADER = struct.Struct("<4sBBBBHHIQ")
_SUM = struct.Struct("<II")
_DTYPES = ("<f4", "<f8", "<u4", "<u2", "|u1")
_LEVEL = 5

# Called from several threads: Blosc's own would fight over its one pool.
blosc.use_threads = False


class TileError(ValueError):
    """Bytes that are no tile, or a damaged one."""


class Flag(IntFlag):
    """The first eight are in the header, all in the column ``flags`` of the table."""

    MISSING = 1
    NAN = 2
    INF = 4
    LOSSY = 8
    SPARSE = 32
    CONSTANT = 64
    MIN_APART = 256
    """``Agg.MIN`` is stored, because it is not what this tile holds; so with the next two."""
    MEAN_APART = 512
    WEIGHT_APART = 1024
    MAX_APART = 2048


# As numbers: operators of an IntFlag take a microsecond each.
_MISSING, _NAN, _INF, _LOSSY, _SPARSE, _CONSTANT = (
    int(flag) for flag in (Flag.MISSING, Flag.NAN, Flag.INF, Flag.LOSSY, Flag.SPARSE, Flag.CONSTANT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TileData:
    """``values`` [rows, columns], float32 or float64 as stored."""

    values: npt.NDArray[Any]
    first_layer: int
    first_column: int
    flags: Flag
    keep_bits: int


def is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where ``values`` (float32 or float64) hold the payload of "not observed"."""
    if values.dtype == np.float64:
        return np.asarray(values.view(np.uint64) == _MISSING64_BITS)
    return np.asarray(values.view(np.uint32) == wire.MISSING_BITS)


def encode(
    values: npt.NDArray[Any], *, first_layer: int, first_column: int, keep_bits: int = 23
) -> tuple[Flag, bytes] | None:
    """``values`` [layers, columns] (float32, float64, or an unsigned integer) as a tile with its flags; None when all
    of it is missing. ``keep_bits`` is for float32: 23 keeps everything."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    flags = 0
    there = None
    plain = values.dtype.kind != "f" or bool(np.isfinite(values).all())
    if not plain:
        missing = is_missing(values)
        if missing.all():
            return None
        if missing.any():
            there = np.flatnonzero(~missing.all(axis=0))
            if len(there) < values.shape[1]:
                flags |= _SPARSE
            if missing[:, there].any():
                flags |= _MISSING
        values, found = _canonical(values, missing)
        flags |= found
    if values.dtype == np.float32 and keep_bits < 23:
        values = _rounded(values, keep_bits, plain)
        flags |= _LOSSY
    kept = values if there is None or not flags & _SPARSE else np.ascontiguousarray(values[:, there])
    bits = kept.view(f"u{kept.dtype.itemsize}")
    # Most planes differ already in their first and last value.
    if bits.flat[0] == bits.flat[-1] and (bits == bits.flat[0]).all():
        flags |= _CONSTANT
        body, codec = kept.ravel()[:1].tobytes(), 0
    else:
        body, codec = blosc.compress(kept, b"lz4", _LEVEL, blosc.BITSHUFFLE), 1
    if there is not None and flags & _SPARSE:
        body = struct.pack("<H", len(there)) + there.astype("<u2").tobytes() + body
    header = _HEADER.pack(
        _MAGIC,
        _DTYPES.index(values.dtype.str),
        codec,
        flags & 0xFF,
        keep_bits if flags & _LOSSY else 23,
        *values.shape,
        first_layer,
        first_column,
    )
    return Flag(flags), header + _SUM.pack(_checksum(header, body), len(body)) + body


def decode(data: bytes) -> TileData:
    """What ``encode`` was given, all columns of it, up to rounding. ``TileError`` if that cannot be had."""
    start = _HEADER.size + _SUM.size
    if len(data) < start or data[:4] != _MAGIC:
        raise TileError("this is no tile")
    _, dtype_id, codec, bits, keep, rows, columns, first_layer, first_column = _HEADER.unpack_from(data)
    crc, length = _SUM.unpack_from(data, _HEADER.size)
    body = memoryview(data)[start:]
    if len(body) != length or _checksum(data[: _HEADER.size], body) != crc:
        raise TileError("the tile is damaged: its checksum does not match")
    if dtype_id >= len(_DTYPES) or codec > 1:
        raise TileError("the tile is of a newer version")
    dtype = np.dtype(_DTYPES[dtype_id])
    there = None
    if bits & _SPARSE:
        (n,) = struct.unpack_from("<H", body)
        there = np.frombuffer(body, "<u2", n, 2).astype(np.intp)
        body = body[2 + 2 * n :]
    shape = rows, columns if there is None else len(there)
    if bits & _CONSTANT:
        kept = np.full(shape, np.frombuffer(body, dtype, 1)[0], dtype)
    else:
        raw = blosc.decompress(body) if codec else body
        kept = np.frombuffer(raw, dtype).reshape(shape)
    if there is not None:
        values = np.full((rows, columns), MISSING64 if dtype.itemsize == 8 else MISSING, dtype)
        values[:, there] = kept
        kept = values
    return TileData(values=kept, first_layer=first_layer, first_column=first_column, flags=Flag(bits), keep_bits=keep)


def _checksum(header: bytes, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(header))


def _canonical(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], int]:
    """``values`` with one kind of observed NaN, and what is in them."""
    flags = 0
    nan = np.isnan(values)
    nan &= ~missing
    if nan.any():
        flags |= _NAN
        values = values.copy()
        values[nan] = np.nan
    if np.isinf(values).any():
        flags |= _INF
    return values, flags


def _rounded(values: npt.NDArray[np.float32], keep_bits: int, plain: bool) -> npt.NDArray[np.float32]:
    """Finite values to the nearest with ``keep_bits`` bits of mantissa, ties to even. What would round to infinity is
    cut off instead: a finite value stays finite. Subnormals are kept whole: their leading zeros are part of the
    mantissa, and the smallest would become 0. ``plain``: there are no others."""
    bits = values.view(np.uint32)
    drop = np.uint32(23 - keep_bits)
    mask = np.uint32((0xFFFFFFFF << int(drop)) & 0xFFFFFFFF)
    rounded = bits >> drop
    rounded &= np.uint32(1)
    rounded += np.uint32((1 << (int(drop) - 1)) - 1)
    # A NaN may wrap around; it is put back below.
    rounded += bits
    rounded &= mask
    over = (rounded & _EXPONENT) == _EXPONENT
    if over.any():
        rounded = np.where(over, bits & mask, rounded)
    small = bits << np.uint32(1)
    # Zeros wrap around: mostly there is nothing left to do.
    small -= np.uint32(1)
    subnormal = small < _SUBNORMAL
    if subnormal.any():
        rounded = np.where(subnormal, bits, rounded)
    if not plain:
        rounded = np.where((bits & _EXPONENT) == _EXPONENT, bits, rounded)
    return rounded.view(np.float32)


_EXPONENT = np.uint32(0x7F800000)
_SUBNORMAL = np.uint32(0x00FFFFFF)
"""Twice the bits of the smallest normal number, less one."""
