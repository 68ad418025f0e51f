"""How long the agent keeps the threads of the training, by what for. Guards measure, a step's end takes the sums."""

from __future__ import annotations

from time import perf_counter_ns

__all__ = ["CHARGES", "begin", "drain", "end"]

CHARGES = ("gradients", "activations", "weights", "updates", "step")

_NOTHING = dict.fromkeys(CHARGES, 0)
_spent = dict(_NOTHING)
_total = 0
_open: list[tuple[int, int]] = []
"""Of each ``begin`` without an ``end`` its time in nanoseconds, and ``_total`` then.

One list for all threads (one for each costs 0.4 us more): while autograd's threads run our hooks, the training's waits
for them. Where two do run at once each may be charged with the other's time, and nothing else happens.
"""


def begin() -> None:
    """Time that passes from now on is the agent's. With its ``end`` this takes about 0.5 us."""
    _open.append((perf_counter_ns(), _total))


def end(charge: str) -> None:
    """Charge the time since the last ``begin`` that has no ``end``, without what was charged within it."""
    global _total
    started, before = _open.pop()
    own = perf_counter_ns() - started - (_total - before)
    _total += own
    _spent[charge] += own


def drain() -> dict[str, float]:
    """Seconds by charge since the last call, of the whole process: whoever watches two models pays for both."""
    spent = {charge: 1e-9 * nanoseconds for charge, nanoseconds in _spent.items()}
    _spent.update(_NOTHING)
    return spent
