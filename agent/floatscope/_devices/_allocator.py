"""Memory figures that only the training process has: torch's caching allocator."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from floatscope import wire

__all__ = ["AllocatorFigures", "allocator_figures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorFigures:
    """One card as this process uses it. ``pci`` is "domain:bus:device", without function, as torch knows it."""

    index: int
    pci: str | None
    name: str
    used_bytes: int
    total_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    alloc_retries: int
    ooms: int

    def device(self) -> wire.Device:
        """These figures alone, for a card that no driver library shows."""
        return wire.Device(
            time_ns=time.time_ns(),
            backend="torch",
            index=self.index,
            pci=None if self.pci is None else f"{self.pci}.0",
            name=self.name,
            vram_used_bytes=self.used_bytes,
            vram_total_bytes=self.total_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            alloc_retries=self.alloc_retries,
            ooms=self.ooms,
        )


def allocator_figures() -> list[AllocatorFigures]:
    """Figures of every card that this process allocates on; [] without torch or before it uses a card.

    Imports nothing and starts no CUDA context: ``mem_get_info`` on a card without one would take several hundred MiB
    there. No host synchronisation.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    figures = []
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if not stats.get("reserved_bytes.all.current"):
            continue
        free, total = torch.cuda.mem_get_info(index)
        properties = torch.cuda.get_device_properties(index)
        figures.append(
            AllocatorFigures(
                index=index,
                pci=_pci(properties),
                name=properties.name,
                used_bytes=total - free,
                total_bytes=total,
                allocated_bytes=stats["allocated_bytes.all.current"],
                reserved_bytes=stats["reserved_bytes.all.current"],
                alloc_retries=stats["num_alloc_retries"],
                ooms=stats["num_ooms"],
            )
        )
    return figures


def _pci(properties: object) -> str | None:
    # The three are newer than the oldest torch that works.
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(number, int) for number in numbers):
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}"
