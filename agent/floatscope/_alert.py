"""Alerts that the server raises, handed to the user's own code on the training thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from floatscope import wire
from floatscope._log import logger

__all__ = ["Alert", "Reaction", "no_reaction"]

_WAITING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert of severity "warning" or "critical" that began to fire."""

    id: int
    """Its number on the server."""
    kind: str
    """What is wrong, for programs: "nonfinite", "loss_spike", "loss_scale_collapse", ..."""
    severity: str
    step: int
    """The step at which it fired; the training has gone on since."""
    reason: str
    """Which of the kind's conditions decided it, for programs."""
    message: str
    """For people, in English."""
    layer: str | None = None
    rank: int | None = None


def no_reaction(alert: Alert) -> None:
    """What is called where the user gave nothing."""


class Reaction:
    """Calls ``on_alert`` for alerts that wait, and remembers in ``events`` what became of each call."""

    def __init__(self, on_alert: Callable[[Alert], object]) -> None:
        self.events: list[wire.Event] = []
        self._on_alert = on_alert
        self._waiting: deque[Alert] = deque(maxlen=_WAITING)

    def take(self, message: wire.Alert) -> None:
        """Have the user's code called with it, if there is any."""
        if self._on_alert is no_reaction:
            return
        self._waiting.append(
            Alert(
                id=message.id,
                kind=message.kind,
                severity=message.severity,
                step=message.step,
                reason=message.reason,
                message=message.message,
                layer=message.layer,
                rank=message.rank,
            )
        )

    def react(self, step: int) -> None:
        """Call the user's code now, in ``step``. What it raises is logged and recorded, and ends nothing."""
        while self._waiting:
            alert = self._waiting.popleft()
            detail: dict[str, str | int | float | bool | None] = {"alert": alert.id, "kind": alert.kind, "ok": True}
            try:
                self._on_alert(alert)
            except Exception as error:  # the user's, so no guard of ours: each is logged, and tests see it too
                logger.exception("on_alert raised for alert %d (%s); training goes on", alert.id, alert.kind)
                detail |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
            self.events.append(wire.Event(step=step, kind="action", detail=detail))
