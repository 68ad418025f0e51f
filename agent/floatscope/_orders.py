"""What a server says without being asked, and what the records show, on its way to the threads that act on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from floatscope import wire
from floatscope._conversation import Order
from floatscope._record import Trouble

__all__ = ["Orders"]

_WAITING = 16
_REMEMBERED = 256
"""Alerts that were heard lately: a server repeats them to an agent that comes back."""


class Orders:
    """Heard on the sending thread; ``freezes`` are for the packing thread, which adds ``Trouble``; the rest is for the
    training's.

    At most 16 of each wait, and the oldest is forgotten first.
    """

    def __init__(self) -> None:
        self.freezes: deque[wire.Freeze] = deque(maxlen=_WAITING)
        self._others: deque[wire.Focus | wire.Alert] = deque(maxlen=_WAITING)
        self._troubles: deque[Trouble] = deque(maxlen=_WAITING)
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

    def notice(self, trouble: Trouble) -> None:
        """Pass it on, from the packing thread. Never blocks."""
        self._troubles.append(trouble)

    def take(self) -> Sequence[wire.Focus | wire.Alert | Trouble]:
        """What came since the last call, each alert once."""
        if not (self._others or self._troubles):
            return ()
        return [waiting.popleft() for waiting in (self._troubles, self._others) for _ in range(len(waiting))]
