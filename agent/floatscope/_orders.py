"""What a server says without being asked, on its way to the threads that act on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from floatscope import wire
from floatscope._conversation import Order

__all__ = ["Orders"]

_WAITING = 16
_REMEMBERED = 256
"""Alerts that were heard lately: a server repeats them to an agent that comes back."""


class Orders:
    """Heard on the sending thread; ``freezes`` are the packing thread's, the rest is the training's.

    At most 16 of each wait, and the oldest is forgotten first.
    """

    def __init__(self) -> None:
        self.freezes: deque[wire.Freeze] = deque(maxlen=_WAITING)
        self._others: deque[wire.Focus | wire.Alert] = deque(maxlen=_WAITING)
        self._alerts: deque[int] = deque(maxlen=_REMEMBERED)

    def hear(self, order: Order) -> None:
        """Pass it on. Never blocks."""
        if isinstance(order, wire.Freeze):
            self.freezes.append(order)
        elif isinstance(order, wire.Focus):
            self._others.append(order)
        elif order.id not in self._alerts:
            self._alerts.append(order.id)
            self._others.append(order)

    def take(self) -> Sequence[wire.Focus | wire.Alert]:
        """What came since the last call, each alert once."""
        if not self._others:
            return ()
        return [self._others.popleft() for _ in range(len(self._others))]
