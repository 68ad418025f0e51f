"""Lines that say that a card or a collective operation hangs, or that a card has failed."""

from __future__ import annotations

import re

from floatscope_server.readers.text import whole

__all__ = ["hang", "has_hint"]

_HANGS = re.compile(
    r"(?P<gpu>HW Exception by GPU|reason ?: ?GPU Hang|GPU hang|GPU has fallen off the bus|ring \S+ timeout|GPU reset)"
    r"|(?P<aborted>Memory access fault by GPU|HSA_STATUS_ERROR_MEMORY_APERTURE\w+|"
    r"an illegal memory access was encountered)"
    r"|(?P<ecc>uncorrectable ECC error)"
    r"|(?P<collective>Watchdog caught collective operation timeout|NCCL watchdog thread terminated|"
    r"Timed out waiting \d+ms for (?:send|recv)|heartbeat monitor timed out)",
    re.IGNORECASE,
)
_RANK = re.compile(r"\[?rank ?(\d+)\]?", re.IGNORECASE)


def has_hint(text: str) -> bool:
    """Whether ``text`` holds a word of those that ``hang`` looks for: quick, for every line of a log."""
    return (
        "GPU" in text
        or "gpu" in text
        or "atchdog" in text
        or "imed out" in text
        or " timeout" in text
        or "ECC" in text
        or "HSA_" in text
        or "illegal memory" in text
    )


def hang(text: str) -> tuple[str, str, int | None] | None:
    """What ``text`` tells of: "gpu" or "collective" for a hang, "aborted" for a process that the driver ended, "ecc"
    for a memory error; its words, and the rank that it names."""
    if not has_hint(text):
        return None
    found = _HANGS.search(text)
    if found is None:
        return None
    rank = _RANK.search(text)
    return str(found.lastgroup), found.group(), None if rank is None else whole(rank[1])
