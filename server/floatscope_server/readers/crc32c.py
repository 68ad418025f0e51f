"""CRC-32C (Castagnoli, RFC 3720) as TFRecord stores it."""

from __future__ import annotations

__all__ = ["masked_crc32c"]

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of ``data``, rotated right by 15 bits with a constant added."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
