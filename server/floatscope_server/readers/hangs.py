"""Lines that say that a card or a collective operation hangs, or that a card has failed."""

from __future__ import annotations

import re

__all__ = ["hang"]

_HANGS = re.compile(
    r"(?P<gpu>HW Exception by GPU|reason ?: ?GPU Hang|GPU hang|ring \S+ timeout|GPU reset)"
    r"|(?P<fault>Memory access fault by GPU|HSA_STATUS_ERROR_MEMORY_APERTURE|uncorrectable ECC error|NVRM: Xid|"
    r"GPU has fallen off the bus|an illegal memory access was encountered)"
    r"|(?P<collective>Watchdog caught collective operation timeout|NCCL watchdog thread terminated|"
    r"Timed out waiting \d+ms for (?:send|recv)|heartbeat monitor timed out)",
    re.IGNORECASE,
)
_HINTS = ("gpu", "GPU", "atchdog", "imed out", "timeout", "ECC", "Xid", "HSA_", "illegal memory", "eartbeat")
_RANK = re.compile(r"\[?rank ?(\d+)\]?", re.IGNORECASE)


def hang(text: str) -> tuple[str, str, int | None] | None:
    """What ``text`` tells of: the kind (gpu_hang, gpu_fault or collective_timeout), its words, the rank it names."""
    if not any(hint in text for hint in _HINTS):
        return None
    found = _HANGS.search(text)
    if found is None:
        return None
    kind = {"gpu": "gpu_hang", "fault": "gpu_fault", "collective": "collective_timeout"}[str(found.lastgroup)]
    rank = _RANK.search(text)
    return kind, found.group(), None if rank is None else int(rank[1])
