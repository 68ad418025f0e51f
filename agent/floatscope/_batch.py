"""Tensors of one device that wait to be measured together: a launch for each would cost more than the measuring."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import NamedTuple

import torch

from floatscope._device_rows import DeviceRows, Part
from floatscope._guard import Guard
from floatscope._streams import Streams

__all__ = ["Batch", "Unread", "Usual", "batch_bytes"]

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


_Entry = tuple[torch.Tensor, Part, int, int, int, int]
"""A tensor, its part, the elements with which it joins that when it is measured; its version, its address and the bytes
of its storage when it came. No class: to make an instance of one takes as long as all else that is done with it."""
_version = attrgetter("_version")


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


class Unread(NamedTuple):
    """Parts of tensors that were changed while they waited, which is why they were left out, and of those in whose
    company something went wrong."""

    changed: list[Part]
    failed: list[Part]


class Batch:
    """Measures once ``limit`` bytes wait, or when told to. Each tensor on the stream that it came on."""

    def __init__(self, rows: DeviceRows, limit: int, *, row_elements: int) -> None:
        self.rows = rows
        """Where the statistics go."""
        self._limit = limit
        self._row_elements = row_elements
        self._waiting: dict[torch.Stream | None, list[_Entry]] = {}
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
        return next(iter(self._waiting.values()))[0][1].kind

    @property
    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def add(self, tensor: torch.Tensor, part: Part, nbytes: int, elements: int = 0) -> bool:
        """Have ``tensor``, of ``nbytes``, measured into the row of ``part``; whether it is time to flush.

        With ``elements``, which are its own, it joins ``part`` only then, or what must be kept apart from that.
        ``RuntimeError`` for a tensor that has no version (of inference mode) or no address (a sparse one).
        """
        entry = tensor, part, elements, tensor._version, tensor.data_ptr(), tensor.untyped_storage().nbytes()
        streams = self.rows.streams
        stream = streams.current() if streams is not None else None
        with self._lock:
            entries = self._waiting.get(stream)
            if entries is None:
                entries = self._waiting[stream] = []
            entries.append(entry)
            self._bytes += nbytes
        return self._bytes >= self._limit

    def awaits(self, part: Part) -> bool:
        """Whether a tensor waits that is to join ``part``."""
        with self._lock:
            return any(entry[1] is part for entries in self._waiting.values() for entry in entries)

    def flush(self, *, histogram: bool) -> Unread:
        """Measure everything that waits."""
        with self._lock:
            waiting, self._waiting, self._bytes = self._waiting, {}, 0
        changed: list[Part] = []
        failed: list[Part] = []
        streams = self.rows.streams
        for stream, entries in waiting.items():
            kept, left_out = _sorted_out(entries)
            changed += [part for _, part, *_ in left_out]
            if not kept:
                continue
            tensors, parts, elements, *_ = zip(*kept, strict=True)
            done = False
            with _running, _on(streams, stream):
                joined = self.rows.join(parts, elements, limit=self._row_elements)
                parts = joined.parts
                self.rows.run(joined.at, tensors, histogram=histogram)
                done = True
            if not done:
                # Nobody knows which of them were measured.
                for part in parts:
                    self.rows.discard(part)
                failed += parts
        return Unread(changed, failed)


class Usual(NamedTuple):
    """What tensors of one kind and layer have been, and where they then belong: looked up once and not in each step."""

    dtype: torch.dtype
    device: torch.device
    itemsize: int
    """Bytes of an element."""
    part: Part
    batch: Batch


def _sorted_out(entries: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """Tensors that still hold what they held, and others: one can be written to, resized or given other memory."""
    tensors, _, _, versions, addresses, sizes = zip(*entries, strict=True)
    now = [tuple(map(look, tensors)) for look in (_version, torch.Tensor.data_ptr, _storage_bytes)]
    if now == [versions, addresses, sizes]:
        return entries, []
    kept: list[_Entry] = []
    left_out: list[_Entry] = []
    for entry, facts in zip(entries, zip(*now, strict=True), strict=True):
        (kept if entry[3:] == facts else left_out).append(entry)
    return kept, left_out
