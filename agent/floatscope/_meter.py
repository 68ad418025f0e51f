"""How long the agent keeps the threads of the training, by what for. Guards measure, a step's end takes the sums."""

from __future__ import annotations

import threading
from collections import Counter
from time import perf_counter_ns

__all__ = ["CHARGES", "begin", "drain", "end"]

CHARGES = ("gradients", "activations", "weights", "step")

_spent: Counter[str] = Counter()


class _Open(threading.local):
    """What is being measured on a thread: for each, nanoseconds of others inside it and its start."""

    def __init__(self) -> None:
        self.stack: list[int] = []


_open = _Open()


def begin() -> None:
    """Time that passes from now on is the agent's. Takes about 0.2 us, like ``end``."""
    stack = _open.stack
    stack.append(0)
    stack.append(perf_counter_ns())


def end(charge: str) -> None:
    """Charge the time since the last ``begin`` that has no ``end``, without what was charged within it."""
    stack = _open.stack
    took = perf_counter_ns() - stack.pop()
    own = took - stack.pop()
    if stack:
        stack[-2] += took
    # Of two threads at once one may be lost: autograd's run while the training's waits for them.
    _spent[charge] += own


def drain() -> dict[str, float]:
    """Seconds by charge since the last call, of the whole process: whoever watches two models pays for both."""
    spent = {charge: 1e-9 * _spent[charge] for charge in CHARGES}
    _spent.clear()
    return spent
