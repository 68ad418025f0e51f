"""FSB1: a JSON header and typed arrays in one answer (docs/http-api.md)."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope.wire import MISSING_BITS

__all__ = ["MEDIA_TYPE", "missing_of", "parse"]

MEDIA_TYPE = "application/vnd.floatscope.block"
_MAGIC = b"FSB1"
_START = struct.Struct("<4sI")


def parse(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The header's ``meta`` and the arrays by name, as views on ``data`` in the machine's byte order.

    ``ValueError`` if it is no such block, or ends early.
    """
    if len(data) < _START.size or data[:4] != _MAGIC:
        raise ValueError("no FSB1 block")
    _, length = _START.unpack_from(data)
    start = _START.size + length
    if len(data) < start:
        raise ValueError("the FSB1 block ends in its header")
    header = json.loads(data[_START.size : start])
    arrays: dict[str, npt.NDArray[Any]] = {}
    for entry in header["arrays"]:
        dtype = np.dtype(entry["dtype"])
        if dtype.hasobject:
            raise ValueError(f"an FSB1 block cannot hold {entry['dtype']}")
        shape = tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        # numpy refuses what reaches beyond the end.
        array = np.frombuffer(data, dtype, count, start + entry["offset"]).reshape(shape)
        arrays[entry["name"]] = array.astype(dtype.newbyteorder("="), copy=False)
    return header["meta"], arrays


def missing_of(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where float32 ``values`` are "not observed"; nowhere in arrays of other types."""
    if values.dtype != np.float32:
        return np.zeros(values.shape, np.bool_)
    bits: npt.NDArray[np.bool_] = np.ascontiguousarray(values).view(np.uint32) == MISSING_BITS
    return bits
