"""Alerts, endpoints and deliveries as JSON objects, and the bodies of webhooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from sqlmodel import Session, col, select

from floatscope_server.alerts.models import Alert, Delivery, Endpoint
from floatscope_server.settings import Settings

__all__ = ["alert_view", "alerts_of", "delivery_view", "endpoint_view", "json_number", "plain", "stamp", "webhook_body"]


def json_number(value: float | None) -> float | str | None:
    """``value`` for JSON, which has no NaN and no infinity."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """``value`` with every number as ``json_number`` gives it."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def stamp(at: datetime | None) -> str | None:
    """ISO 8601 in UTC, ending in Z."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def alert_view(alert: Alert) -> dict[str, Any]:
    """The alert object of the HTTP interface, the live socket and the webhooks."""
    return {
        "id": alert.id,
        "run": alert.run,
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


def endpoint_view(endpoint: Endpoint) -> dict[str, Any]:
    """An endpoint without its secrets."""
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "kinds": endpoint.kinds,
        "min_severity": endpoint.min_severity,
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


def webhook_body(settings: Settings, kind: str, at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent: ``kind`` is alert.firing, alert.resolved or alert.test. A server on a port of the system's choice
    does not know its own address."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{settings.port}/#/run/{quote(str(data['run']), safe='')}" if settings.port else None
    return {"type": kind, "timestamp": stamp(at), "data": {**data, "run_url": url}}
