"""What the C library keeps of freed memory, bounded.

Planes and frames are arrays of some 100 kB to some MB that threads make and drop all the time. glibc gives each thread
a heap of its own, none of which is ever empty: 40 MB of a run of 300 layers with viewers. And it raises the size from
which it asks the system for single blocks to that of the largest one it has seen freed: 10 MB more.
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back", "keep_little"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""https://www.gnu.org/software/libc/manual/html_node/Malloc-Tunable-Parameters.html, malloc.h"""

_ARENAS = 2
_BLOCK_BYTES = 256 << 10
"""From this size on a block is the system's again as soon as it is free."""
_TOP_BYTES = 8 << 20


def keep_little() -> bool:
    """For this process; call it before its threads start. False where the C library is not glibc: nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wishes = (_M_ARENA_MAX, _ARENAS), (_M_MMAP_THRESHOLD, _BLOCK_BYTES), (_M_TRIM_THRESHOLD, _TOP_BYTES)
    return all(mallopt(option, value) == 1 for option, value in wishes)


def give_back() -> None:
    """Free pages between blocks that stay go to the system too: after frames of many ranks they are half of a heap."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
