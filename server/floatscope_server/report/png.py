"""Indexed PNG images: a byte a pixel, which deflate makes small where neighbours are alike."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["data_url", "indexed_png"]


def indexed_png(pixels: npt.NDArray[np.uint8], colours: npt.NDArray[np.uint8]) -> bytes:
    """A PNG of ``pixels`` [height, width], each a row of ``colours`` (uint8 sRGB [n, 3], n up to 256).

    https://www.w3.org/TR/png-3/
    """
    height, width = pixels.shape
    assert len(colours) <= 256
    lines = np.zeros((height, width + 1), np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", colours.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def data_url(png: bytes) -> str:
    """The image as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
