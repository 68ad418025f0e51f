"""Readers of training logs and of what vendors' tools print. Pure and streaming: bytes in, records out."""

from floatscope_server.readers.detect import HEAD_BYTES, detect
from floatscope_server.readers.rows import Broken, Extreme, Happening, Item, LogFormat, Named, Reading, Row

__all__ = [
    "HEAD_BYTES",
    "Broken",
    "Extreme",
    "Happening",
    "Item",
    "LogFormat",
    "Named",
    "Reading",
    "Row",
    "detect",
]
