"""Tensors of one device that wait to be measured together: a launch for each would cost more than the measuring."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from floatscope._device_rows import DeviceRows, Part
from floatscope._guard import Guard
from floatscope._streams import Streams

__all__ = ["Batch", "Unread", "batch_bytes"]

_running = Guard("tensors were measured")
_BYTES = 512 << 20
_SHARE = 64
"""At most one part in so many of a card's memory."""


def batch_bytes(device: torch.device) -> int:
    """Most bytes of tensors to be kept alive until they are measured."""
    if device.type != "cuda":
        return _BYTES
    total: int = torch.cuda.get_device_properties(device).total_memory
    return min(_BYTES, total // _SHARE)


def _on(streams: Streams | None, stream: torch.Stream | None) -> AbstractContextManager[None]:
    if streams is None or stream is None or stream == streams.current():
        return nullcontext()
    return streams.on(stream)


class _Waiting(NamedTuple):
    tensor: torch.Tensor
    part: Part
    version: int
    address: int
    size: int

    def unchanged(self) -> bool:
        """Whether the tensor still holds what it held: it can be written to, resized or given other memory."""
        tensor = self.tensor
        return (
            tensor._version == self.version
            and tensor.data_ptr() == self.address
            and tensor.untyped_storage().nbytes() == self.size
        )


class Unread(NamedTuple):
    """Parts of tensors that were changed while they waited, which is why they were left out, and of those in whose
    company something went wrong."""

    changed: list[Part]
    failed: list[Part]


class Batch:
    """Measures once ``limit`` bytes wait, or when told to. Each tensor on the stream that it came on."""

    def __init__(self, rows: DeviceRows, limit: int) -> None:
        self.rows = rows
        """Where the statistics go."""
        self._limit = limit
        self._waiting: dict[torch.Stream | None, list[_Waiting]] = {}
        self._bytes = 0
        # A backward pass has a thread for each device, and one of them may flush for all.
        self._lock = threading.RLock()

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.rows.device

    @property
    def kind(self) -> str:
        """The kind of tensor that has waited longest."""
        return next(iter(self._waiting.values()))[0].part.kind

    @property
    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def add(self, tensor: torch.Tensor, part: Part) -> bool:
        """Have ``tensor`` measured into the row of ``part``; whether it is time to flush."""
        entry = _Waiting(tensor, part, tensor._version, tensor.data_ptr(), tensor.untyped_storage().nbytes())
        streams = self.rows.streams
        stream = streams.current() if streams is not None else None
        with self._lock:
            self._waiting.setdefault(stream, []).append(entry)
            self._bytes += tensor.nbytes
        return self._bytes >= self._limit

    def flush(self, *, histogram: bool) -> Unread:
        """Measure everything that waits."""
        with self._lock:
            waiting, self._waiting, self._bytes = self._waiting, {}, 0
        changed: list[Part] = []
        failed: list[Part] = []
        streams = self.rows.streams
        for stream, entries in waiting.items():
            kept = [entry for entry in entries if entry.unchanged()]
            if len(kept) < len(entries):
                changed += [entry.part for entry in entries if not entry.unchanged()]
            done = False
            with _running, _on(streams, stream):
                at = tuple(entry.part.row for entry in kept)
                self.rows.run(at, [entry.tensor for entry in kept], histogram=histogram)
                done = True
            if not done:
                # Nobody knows which of them were measured.
                for entry in kept:
                    self.rows.discard(entry.part)
                failed += [entry.part for entry in kept]
        return Unread(changed, failed)
