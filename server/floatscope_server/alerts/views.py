"""Alerts, endpoints and deliveries as JSON objects, and the bodies of webhooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from sqlmodel import Session, col, func, select

from floatscope_server.alerts.addresses import shown
from floatscope_server.alerts.models import Alert, Delivery, Endpoint, Silence
from floatscope_server.jsontext import stamp
from floatscope_server.settings import Settings

__all__ = [
    "alert_tallies",
    "alert_view",
    "alerts_of",
    "delivery_view",
    "endpoint_view",
    "no_alerts",
    "silence_view",
    "webhook_body",
]


def alert_view(alert: Alert) -> dict[str, Any]:
    """The alert object of the HTTP interface, the live socket and the webhooks."""
    return {
        "id": alert.id,
        "run": alert.run,
        "attempt": alert.attempt,
        "kind": alert.kind,
        "severity": alert.severity,
        "state": alert.state,
        "first_step": alert.first_step,
        "last_step": alert.last_step,
        "since_step": alert.since_step,
        "layer": alert.layer,
        "rank": alert.rank,
        "device": alert.device,
        "format": alert.format,
        "reason": alert.reason,
        "message": alert.message,
        "message_zh": alert.message_zh,
        "value": alert.value,
        "threshold": alert.threshold,
        "hits": alert.hits,
        "detail": alert.detail,
        "opened_at": stamp(alert.opened_at),
        "resolved_at": stamp(alert.resolved_at),
        "resolved_reason": alert.resolved_reason,
        "acknowledged_at": stamp(alert.acknowledged_at),
    }


def alerts_of(session: Session, run_id: int) -> list[dict[str, Any]]:
    """The alerts of a run in the order in which they opened; what is pending has not fired and is left out."""
    rows = session.exec(select(Alert).where(Alert.run_id == run_id, Alert.state != "pending").order_by(col(Alert.id)))
    return [alert_view(alert) for alert in rows]


def alert_tallies(session: Session, runs: Collection[int] | None) -> dict[int, dict[str, dict[str, int]]]:
    """Of each run, or those in ``runs``, that has any: {"alerts": open ones, "alerts_past": resolved ones}, each by
    severity. An alert that gained severity and went on as another one counts once, as that one."""
    query = (
        select(Alert.run_id, Alert.state, Alert.severity, func.count())
        .where(Alert.state != "pending", col(Alert.resolved_reason).is_distinct_from("superseded"))
        .group_by(col(Alert.run_id), Alert.state, Alert.severity)
    )
    if runs is not None:
        query = query.where(col(Alert.run_id).in_(runs))
    tallies: dict[int, dict[str, dict[str, int]]] = {}
    for run, state, severity, count in session.exec(query):
        tallies.setdefault(run, no_alerts())["alerts_past" if state == "resolved" else "alerts"][severity] += count
    return tallies


def no_alerts() -> dict[str, dict[str, int]]:
    """The tally of a run without any."""
    return {name: {"critical": 0, "warning": 0, "info": 0} for name in ("alerts", "alerts_past")}


def endpoint_view(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint without what is secret of it."""
    return {
        "id": endpoint.id,
        "type": endpoint.type,
        "url": shown(endpoint.type, endpoint.url),
        "language": endpoint.language,
        "kinds": endpoint.kinds,
        "min_severity": endpoint.min_severity,
        "signed": bool(endpoint.secrets),
        "enabled": endpoint.enabled,
        "disabled_reason": endpoint.disabled_reason,
        "created_at": stamp(endpoint.created_at),
    }


def delivery_view(delivery: Delivery) -> dict[str, Any]:
    """One line of the delivery log; ``webhook_id`` is what the receiver sees."""
    waiting = delivery.state in ("pending", "failed")
    return {
        "id": delivery.id,
        "endpoint": delivery.endpoint_id,
        "alert": delivery.alert_id,
        "webhook_id": delivery.event_id,
        "type": delivery.type,
        "state": delivery.state,
        "tries": delivery.tries,
        "next_at": stamp(delivery.next_at) if waiting else None,
        "http_status": delivery.http_status,
        "error": delivery.error,
        "created_at": stamp(delivery.created_at),
        "done_at": stamp(delivery.done_at),
    }


def silence_view(silence: Silence) -> dict[str, Any]:
    """A silence; null covers all."""
    return {
        "id": silence.id,
        "run": silence.run,
        "kind": silence.kind,
        "layer": silence.layer,
        "until": stamp(silence.until),
        "comment": silence.comment,
        "created_at": stamp(silence.created_at),
    }


def webhook_body(settings: Settings, kind: str, at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent: ``kind`` is alert.firing, alert.reminder, alert.resolved or alert.test."""
    url = None if settings.url is None else f"{settings.url}/#/run/{quote(str(data['run']), safe='')}"
    return {"type": kind, "timestamp": stamp(at), "data": {**data, "run_url": url}}
