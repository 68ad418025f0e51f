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
    process beside ingest (``tests/bench/turns.py``; two cores at a load of 20, 12 rounds), 90th percentiles without
    waiting for a core, 5 ms and 0.2: scalars 7.4 and 6.7 ms, latest 8.9 and 4.7, tail 5.2 and 3.3; heat maps differed
    by less than their spread. Blocks of one step and of ten: 1.4 times as many in the median, ingest's CPU 0.94 times.
    https://docs.python.org/3/library/sys.html#sys.setswitchinterval
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
