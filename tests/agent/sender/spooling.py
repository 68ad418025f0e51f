"""What tests of a sender that spools share."""

from __future__ import annotations

from floatscope._sender import Sender

__all__ = ["WRITER", "on_disk"]

WRITER = "0" * 32


def on_disk(sender: Sender, records: int) -> bool:
    spooler = sender._spooler
    return spooler is not None and sender._outbox.counts().waiting == records and spooler._written_to > 0
