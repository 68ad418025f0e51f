"""What the demo prints: the first chart, alerts as they fire, webhooks as they arrive, and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from floatscope._demo.api import Api, ApiError
from floatscope._demo.receiver import Webhook

__all__ = ["Story"]

_CHART = "/api/v1/runs/demo/scalars?names=loss"


class Story:
    """Follows the runs through the server's API and prints each thing once.

    ``started``: when the demo's process started, in seconds of CLOCK_BOOTTIME.
    """

    def __init__(self, api: Api, say: Callable[[str], None], *, started: float) -> None:
        self._api = api
        self._say = say
        self._started = started
        self._chart_seen = False
        self._told: dict[str, str] = {}
        """Alert id to the severity that was printed."""
        self._delivered: set[str] = set()

    @property
    def undelivered(self) -> set[str]:
        """Ids of printed alerts that no webhook has brought yet."""
        return self._told.keys() - self._delivered

    def poll(self) -> None:
        """Ask the server once; raises ``ApiError`` when it does not answer."""
        if not self._chart_seen and self._loss_points() >= 2:
            self._chart_seen = True
            took = time.clock_gettime(time.CLOCK_BOOTTIME) - self._started
            self._say(f"time to first chart: {took:.1f} s")
        # The API lists the newest first.
        for alert in sorted(self._api.get("/api/v1/alerts"), key=_order):
            identity, severity = str(alert["id"]), str(alert["severity"])
            if self._told.get(identity) != severity:
                self._told[identity] = severity
                self._say(f"alert {_describe(alert)}: {alert['message']}")

    def _loss_points(self) -> int:
        try:
            series = self._api.get(_CHART)
        except ApiError as error:
            if error.status == 404:  # the run has not introduced itself yet
                return 0
            raise
        return sum(len(one["steps"]) for one in series)

    def webhook(self, webhook: Webhook) -> None:
        self._say(f"webhook {webhook.id} signature={'valid' if webhook.valid else 'INVALID'}")
        if webhook.alert is not None:
            self._delivered.add(webhook.alert)

    def summary(self, runs: Sequence[str]) -> None:
        """One line for each run, and where to look next."""
        for name in runs:
            try:
                run = self._api.get(f"/api/v1/runs/{name}")
            except ApiError as error:
                if error.status != 404:
                    raise
                self._say(f"{name}: no step arrived")
                continue
            skipped = sorted({one["step"] for one in run["skipped_steps"]})
            first = min(run["alerts"], key=_urgency, default=None)
            self._say(
                f"{name}: {run['steps']} steps, {len(skipped)} skipped"
                + (f" (first at step {skipped[0]})" if skipped else "")
                + (f"; look first at: {_describe(first)}" if first else "; no alert")
            )


def _order(alert: dict[str, Any]) -> tuple[int, str]:
    return int(alert["first_step"]), str(alert["id"])


def _urgency(alert: dict[str, Any]) -> tuple[bool, bool, int, str]:
    """The layer that broke the training comes before one that only came close to a limit, however early."""
    critical = alert["severity"] == "critical"
    return (not (critical and alert["kind"] == "nonfinite"), not critical, *_order(alert))


def _describe(alert: dict[str, Any]) -> str:
    where = f" layer={alert['layer']}" if alert["layer"] else ""
    return f"{alert['severity']} {alert['kind']} run={alert['run']} step={alert['first_step']}{where}"
