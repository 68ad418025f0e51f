"""The cards of this machine as one rank sees them: driver readings joined with its allocator's figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from floatscope import wire
from floatscope._devices._allocator import AllocatorFigures, allocator_figures
from floatscope._devices._figures import fill
from floatscope._devices._sidecar import Sidecar

__all__ = ["LocalDevices", "join"]

_PARTITION_SHARE = 0.9
"""A whole card shows torch some hundred MiB less than its driver shows; the largest partition shows half."""


class LocalDevices:
    """A device source for the sender: at most one sample per ``period_s``, from the sidecar or from torch alone."""

    def __init__(
        self,
        *,
        sysfs: Path = Path("/sys"),
        period_s: float = 1.0,
        allocator: Callable[[], Sequence[AllocatorFigures]] = allocator_figures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sidecar = Sidecar(sysfs=sysfs, period_s=period_s)
        self._period_s = period_s
        self._allocator = allocator
        self._clock = clock
        self._due = 0.0

    @property
    def reason(self) -> str | None:
        """Why the drivers give no readings; None while they do or may yet."""
        return self._sidecar.reason

    def start(self) -> None:
        """Start the sidecar."""
        self._sidecar.start()

    def poll(self) -> tuple[wire.Device, ...]:
        """Readings since the last call; () when none is due. Never blocks."""
        readings = self._sidecar.poll()
        if readings:
            return join(readings, self._allocator())
        if self._sidecar.reason is None or self._clock() < self._due:
            return ()
        self._due = self._clock() + self._period_s
        return tuple(figures.device() for figures in self._allocator())

    def close(self) -> None:
        """End the sidecar."""
        self._sidecar.close()

    def forget(self) -> None:
        """In a forked child: let go of the sidecar's pipes."""
        self._sidecar.forget()


def join(readings: Sequence[wire.Device], allocator: Sequence[AllocatorFigures]) -> tuple[wire.Device, ...]:
    """``readings`` with the allocator's figures, joined by PCI domain:bus:device, never by index.

    A process that uses cards reports those alone: the other ranks report theirs. The driver shows the memory of the
    whole card for each partition of it; there torch's figures stand.
    """
    if not allocator:
        return tuple(readings)
    by_address = {reading.pci.rpartition(".")[0]: reading for reading in readings if reading.pci is not None}
    joined = []
    for figures in allocator:
        own = figures.device()
        reading = by_address.get(figures.pci) if figures.pci is not None else None
        if reading is None:
            joined.append(own)
            continue
        if reading.vram_total_bytes is not None and figures.total_bytes < _PARTITION_SHARE * reading.vram_total_bytes:
            reading = msgspec.structs.replace(reading, index=figures.index, vram_used_bytes=None, vram_total_bytes=None)
        joined.append(fill(reading, own))
    return tuple(joined)
