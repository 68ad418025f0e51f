"""What the sidecar writes: one JSON object a line."""

from __future__ import annotations

import msgspec

from floatscope import wire

__all__ = ["NoDevices", "Sample", "decode_line", "encode_line"]


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """One reading of every card."""

    devices: tuple[wire.Device, ...]


class NoDevices(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """There is nothing to read (any more), and why. The sidecar ends after it."""

    reason: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Sample | NoDevices)


def encode_line(line: Sample | NoDevices) -> bytes:
    """``line`` with its newline."""
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Sample | NoDevices:
    """One line; ``msgspec.MsgspecError`` when it is none."""
    return _decoder.decode(data)
