"""Whom an alert is told to: nobody while a silence covers it, and again while it fires and nobody has said to have seen
it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import true
from sqlmodel import Session, col, func, select

from floatscope_server.alerts.models import Alert, AlertEvent, Delivery, Endpoint, Silence
from floatscope_server.alerts.views import alert_view, webhook_body
from floatscope_server.rules.verdict import Severity
from floatscope_server.settings import Settings

__all__ = ["REMINDER", "deliver", "due", "is_silenced", "new_event_id", "remind", "silences_at", "wants"]

REMINDER = "reminder"
"""The kind of an event that tells of a firing alert again; a number follows."""

_AT_ONCE = 200


def is_silenced(silences: Iterable[Silence], run: str, kind: str, layer: str | None, now: datetime) -> bool:
    """Whether any of ``silences`` covers an alert at ``now``. One without a run, kind or layer covers all of them; a
    layer covers those inside it."""
    return any(
        silence.until > now
        and silence.run in (None, run)
        and silence.kind in (None, kind)
        and (
            silence.layer is None
            or (layer is not None and (layer == silence.layer or layer.startswith(f"{silence.layer}.")))
        )
        for silence in silences
    )


def silences_at(session: Session, now: datetime) -> list[Silence]:
    """The silences that have not ended."""
    return list(session.exec(select(Silence).where(Silence.until > now)))


def wants(endpoint: Endpoint, kind: str, severity: str) -> bool:
    """Whether an endpoint has asked for alerts of this kind and severity."""
    enough = Severity[severity.upper()] >= Severity[endpoint.min_severity.upper()]
    return endpoint.enabled and enough and (not endpoint.kinds or kind in endpoint.kinds)


def deliver(
    session: Session,
    settings: Settings,
    endpoints: Iterable[Endpoint],
    event: AlertEvent,
    type_: str,
    view: dict[str, Any],
    now: datetime,
) -> None:
    """One outbox row for each endpoint that wants the alert object ``view``."""
    body = json.dumps(webhook_body(settings, type_, now, view), ensure_ascii=False, allow_nan=False)
    for endpoint in endpoints:
        if wants(endpoint, view["kind"], view["severity"]):
            assert endpoint.id is not None
            session.add(
                Delivery(
                    endpoint_id=endpoint.id,
                    event_id=event.id,
                    alert_id=event.alert_id,
                    type=type_,
                    body=body,
                    next_at=now,
                    created_at=now,
                )
            )


def due(session: Session, settings: Settings, now: datetime) -> list[tuple[Alert, int]]:
    """What is to be told again, each with the number of its events so far: alerts above info that fire, that nobody has
    acknowledged or silenced, that were not found in an imported log, and that were told last ``alert_repeat_s`` ago or
    before."""
    if not settings.alert_repeat_s:
        return []
    waiting = (
        Alert.state == "firing",
        col(Alert.acknowledged_at).is_(None),
        col(Alert.detail)["imported"].as_boolean().is_not(true()),
        Alert.severity != Severity.INFO.label,
    )
    told = (
        select(AlertEvent.alert_id, func.count().label("events"))
        .join(Alert, col(Alert.id) == col(AlertEvent.alert_id))
        .where(*waiting)
        .group_by(col(AlertEvent.alert_id))
        .having(func.max(AlertEvent.at) <= now - timedelta(seconds=settings.alert_repeat_s))
        .subquery()
    )
    rows = session.exec(
        select(Alert, told.c.events).join(told, told.c.alert_id == Alert.id).order_by(col(Alert.id))
    ).all()
    silences = silences_at(session, now) if rows else []
    found = [
        (alert, int(events))
        for alert, events in rows
        if not is_silenced(silences, alert.run, alert.kind, alert.layer, now)
    ]
    return found[:_AT_ONCE]


def remind(session: Session, settings: Settings, now: datetime) -> None:
    """Tell again of what is due. Each time is an event with an id of its own."""
    endpoints = list(session.exec(select(Endpoint).where(Endpoint.enabled)))
    for alert, events in due(session, settings, now):
        assert alert.id is not None
        event = AlertEvent(
            id=new_event_id(), alert_id=alert.id, kind=f"{REMINDER} {events}", step=alert.last_step, at=now
        )
        session.add(event)
        deliver(session, settings, endpoints, event, f"alert.{REMINDER}", alert_view(alert), now)


def new_event_id() -> str:
    """The id of an event, and of the webhook that tells of it."""
    return f"evt_{uuid.uuid4().hex}"
