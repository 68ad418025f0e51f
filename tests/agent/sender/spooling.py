"""What tests of a sender that spools share."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from pathlib import Path

from floatscope import _cli, wire
from floatscope._packing import Batch, Loss
from floatscope._sender import Sender
from floatscope._spool._entries import buffers_of
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._segments import Segments
from floatscope._spool._spooler import SpoolPlace

__all__ = ["WRITER", "assert_numbered", "end", "new_outbox", "on_disk", "spool", "sync"]

WRITER = "0" * 32


def on_disk(sender: Sender, records: int) -> bool:
    """Whether ``records`` wait, and all of them would be left by a process that is killed."""
    spooler = sender._spooler
    return spooler is not None and sender._outbox.counts().waiting == records == spooler.kept


def new_outbox() -> SpooledOutbox:
    return SpooledOutbox(max_records=1000, max_bytes=1 << 20, window_bytes=0, wake=lambda: None)


def _batch(step: int, size: int) -> Batch:
    scalars = wire.Scalars(name="loss", steps=step.to_bytes(8, "little"), values=random.Random(step).randbytes(size))
    body = wire.encode(wire.Body(first_step=step, steps=1, scalars=(scalars,)))
    return Batch(first=step, last=step, records=1, body=body, crc=zlib.crc32(body))


def spool(folder: Path, batches: int, *, size: int, segment_bytes: int = 1 << 20) -> None:
    """A writer's segments: batches of one step each, a loss among them."""
    folder.mkdir(exist_ok=True)
    segments = Segments(folder, segment_bytes)
    outbox = new_outbox()
    for step in range(batches):
        if step == batches // 2:
            outbox.append(Loss(first=step, last=step, records=1, reason="pending_full"))
        else:
            outbox.append(_batch(step, size))
        entries = outbox.unwritten(1 << 20)
        buffers = [part for entry in entries for part in buffers_of(entry)]
        if segments.must_begin(sum(map(len, buffers))):
            segments.begin(entries[0].seq, b"about")
        segments.append(buffers, entries[0].seq, entries[-1].end)
        outbox.written()
    segments.forget_descriptors()


def sync(place: SpoolPlace, *more: str) -> int:
    """``floatscope sync`` on the folder: its exit status."""
    return _cli.main(["sync", str(place.directory), *more])


def end(sender: Sender) -> None:
    """Close, and wait until the folder is free: a slow machine needs longer for it than a training is made to wait."""
    sender.close("finished")
    for thread in sender._spool_threads:
        thread.join(60.0)


def assert_numbered(batches: Sequence[wire.Block | wire.Gap]) -> None:
    """Without a hole, each once."""
    assert [batch.seq for batch in batches] == [*range(1, len(batches) + 1)]
