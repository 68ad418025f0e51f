"""Orders what several streams of one device write into the same rows, by events on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["Streams"]


class Streams:
    """The streams that write during a step, and the one that ends it. The host waits for none of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index if device.type == "cuda" else None
        """Of a card of CUDA or ROCm: to ask the device for it makes a string, and each output that waits would."""
        self._by_handle: dict[int, torch.Stream] = {}
        self._home = self.current()
        """The stream that the rows were last cleared on."""
        self._cleared = self._home.record_event()
        self._others: set[torch.Stream] = set()

    def current(self) -> torch.Stream:
        """The stream that work goes to at the moment."""
        if self._index is None:
            return torch.accelerator.current_stream(self._device)
        # A handle costs a fifth of the microsecond that the object takes.
        handle = torch._C._cuda_getCurrentRawStream(self._index)
        stream = self._by_handle.get(handle)
        if stream is None:
            stream = self._by_handle[handle] = torch.accelerator.current_stream(self._device)
        return stream

    @contextmanager
    def on(self, stream: torch.Stream) -> Iterator[None]:
        """Work goes to ``stream`` inside."""
        before = self.current()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def enter(self) -> None:
        """The current stream is about to write: not before the rows were cleared."""
        stream = self.current()
        if stream != self._home and stream not in self._others:
            stream.wait_event(self._cleared)
            self._others.add(stream)

    def join(self) -> None:
        """What the current stream does next comes after everything that was written."""
        stream = self.current()
        for other in {*self._others, self._home}:
            if other != stream:
                stream.wait_event(other.record_event())
        self._home = stream
        self._others.clear()

    def cleared(self) -> torch.Event:
        """Note that the current stream, after ``join``, has cleared the rows; the event of that."""
        self._cleared = self._home.record_event()
        return self._cleared
