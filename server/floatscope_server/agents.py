"""The agents that are connected now, and what the server tells them unasked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from floatscope import wire

__all__ = ["Agents"]

Tell = Callable[[wire.ServerMessage], bool]
"""Queues a message for one agent; False when it takes too slowly what it is told already."""

_TOLD = ("warning", "critical")
_KEPT_S = 60.0
"""An agent that comes back within this time hears what it missed; what is older is history."""
_KEPT = 256
_FREEZE_EVERY_S = 600.0
"""Between two dumps of a run for the same kind of alert."""


class Agents:
    """By run. An alert that fires is told to the run's agents, and a critical one freezes their flight recorders."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected: dict[str, dict[Tell, tuple[int, int]]] = {}
        """By run, with the attempt and the rank that each speaks for."""
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, str, wire.ServerMessage]] = deque(maxlen=_KEPT)
        self._frozen: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        """Take the running event loop for the one that all agents are connected in."""
        self._loop = asyncio.get_running_loop()

    # In the event loop.

    def add(self, run: str, attempt: int, tell: Tell, *, rank: int = 0) -> None:
        """The agent of ``rank`` of ``attempt`` of ``run`` has been welcomed."""
        self._connected.setdefault(run, {})[tell] = attempt, rank
        since = self._clock() - _KEPT_S
        with self._lock:
            missed = [message for at, name, message in self._recent if name == run and at >= since]
        for message in missed:
            tell(message)

    def remove(self, run: str, tell: Tell) -> None:
        """The agent has gone."""
        connected = self._connected.get(run, {})
        connected.pop(tell, None)
        if not connected:
            self._connected.pop(run, None)

    def tell(
        self,
        run: str,
        message: wire.ServerMessage,
        *,
        attempt: int | None = None,
        ranks: Collection[int] | None = None,
    ) -> int:
        """Say ``message`` to the agents of ``run``, of ``attempt`` and ``ranks`` or of all; how many that were."""
        return sum(
            tell(message)
            for tell, (of, rank) in self._connected.get(run, {}).items()
            if (attempt is None or of == attempt) and (ranks is None or rank in ranks)
        )

    # From any thread.

    def alert_fired(self, run: str, alert: Mapping[str, Any]) -> None:
        """Pass on the alert object of an alert that begins to fire."""
        if alert["severity"] not in _TOLD:
            return
        told = wire.Alert(
            id=alert["id"],
            kind=alert["kind"],
            severity=alert["severity"],
            step=alert["first_step"],
            reason=alert["reason"],
            message=alert["message"],
            layer=alert["layer"],
            rank=alert["rank"],
        )
        self._announce(run, told)
        if told.severity == "critical" and self._may_freeze(run, told.kind):
            self._announce(
                run, wire.Freeze(id=f"alert-{told.id}", alert=told.id, kind=told.kind, step=alert["since_step"])
            )

    def _may_freeze(self, run: str, kind: str) -> bool:
        now = self._clock()
        self._frozen = {key: at for key, at in self._frozen.items() if now - at < _FREEZE_EVERY_S}
        if (run, kind) in self._frozen:
            return False
        self._frozen[run, kind] = now
        return True

    def _announce(self, run: str, message: wire.ServerMessage) -> None:
        with self._lock:
            self._recent.append((self._clock(), run, message))
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.tell, run, message)
