"""FSB1: a JSON header and typed arrays in one reply, for pages that draw many numbers.

``b"FSB1"``, the header's length (uint32 LE), the header padded with spaces so that the data starts at a multiple of 8,
then the arrays, each padded to 8 bytes. The header is ``{"meta": ..., "arrays": [{name, dtype, shape, offset}]}``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.jsontext import encode_json

__all__ = ["MEDIA_TYPE", "pack"]

MEDIA_TYPE = "application/vnd.floatscope.block"
_MAGIC = b"FSB1"
_ALIGN = 8


def pack(meta: Mapping[str, object], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """``meta`` and little-endian C-ordered ``arrays`` as one FSB1 block."""
    listed: list[dict[str, object]] = []
    chunks: list[bytes | memoryview] = []
    offset = 0
    for name, array in arrays.items():
        ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        listed.append({"name": name, "dtype": ordered.dtype.str, "shape": list(ordered.shape), "offset": offset})
        # Copied once, into the block: a heat map has some megabytes.
        chunks += [ordered.reshape(-1).view(np.uint8).data, b"\0" * (-ordered.nbytes % _ALIGN)]
        offset += ordered.nbytes + -ordered.nbytes % _ALIGN
    header = encode_json({"meta": dict(meta), "arrays": listed})
    header += b" " * (-(len(_MAGIC) + 4 + len(header)) % _ALIGN)
    return b"".join((_MAGIC, struct.pack("<I", len(header)), header, *chunks))
