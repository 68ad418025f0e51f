"""How long a thread keeps the interpreter while another one waits for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["short_turns"]

_SWITCH_S = 0.0002


@contextmanager
def short_turns() -> Iterator[None]:
    """For the whole process.

    Every statement, commit and compression gives the interpreter away, and whoever is busy then keeps it for the switch
    interval, 5 ms by default: a question or a commit of ten statements waits for ten of them. In alternation within one
    process beside ingest (``tests/bench/turns.py``), 90th percentiles without waiting for a core: heat map 14.6 to 11.7
    ms, scalars 8.0 to 6.7; 1.15 times as many blocks of one step, CPU of ingest 0.95 times what it was.
    https://docs.python.org/3/library/sys.html#sys.setswitchinterval
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
