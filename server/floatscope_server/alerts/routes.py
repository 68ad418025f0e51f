"""HTTP: alerts, what is said about them, and closing them by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlmodel import Session, col, select

from floatscope_server.alerts.models import Alert
from floatscope_server.alerts.shapes import Id, SeverityName, unknown
from floatscope_server.alerts.views import alert_view, alerts_of
from floatscope_server.audit import Actor, record
from floatscope_server.query.line import run_named
from floatscope_server.responses import Refusal, busy
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["alerts"])

Number = float | Literal["NaN", "Infinity", "-Infinity"]


class AlertOut(BaseModel):
    """An alert. ``message`` and ``message_zh`` are for people, ``kind`` and ``reason`` for programs."""

    id: int
    run: str
    attempt: int
    kind: str
    severity: SeverityName
    state: Literal["pending", "firing", "resolved"]
    first_step: int
    last_step: int
    since_step: int
    layer: str | None
    rank: int | None
    device: str | None
    format: str | None
    reason: str
    message: str
    message_zh: str
    value: Number | None
    threshold: Number | None
    hits: int
    detail: dict[str, Any]
    opened_at: str
    resolved_at: str | None
    resolved_reason: str | None
    acknowledged_at: str | None


@router.get("/alerts", response_model=list[AlertOut])
def list_alerts(
    services: Running,
    state: Annotated[Literal["firing", "resolved"] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """Alerts of all runs, newest first."""
    query = select(Alert).where(Alert.state != "pending" if state is None else Alert.state == state)
    with services.store.read() as session:
        return [alert_view(alert) for alert in session.exec(query.order_by(col(Alert.id).desc()).limit(limit))]


@router.get("/runs/{run}/alerts", response_model=list[AlertOut])
def list_run_alerts(services: Running, run: str) -> list[dict[str, Any]]:
    """Alerts of one run in the order in which they opened."""
    with services.store.read() as session:
        found = run_named(session, run)
        assert found.id is not None
        return alerts_of(session, found.id)


@router.post("/alerts/{alert_id}/acknowledge", response_model=AlertOut)
def acknowledge(services: Running, actor: Actor, alert_id: Id) -> dict[str, Any]:
    """Somebody has seen it. Doing so again changes nothing."""

    def write(session: Session) -> dict[str, Any] | None:
        alert = session.get(Alert, alert_id)
        if alert is None:
            return None
        if alert.acknowledged_at is None:
            alert.acknowledged_at = datetime.now(UTC)
            session.add(alert)
            record(session, actor, "alert.acknowledge", alert_id, {"run": alert.run, "kind": alert.kind})
        return alert_view(alert)

    found = services.store.write(write)
    if found is None:
        raise unknown("alert", alert_id)
    return found


@router.post("/alerts/{alert_id}/resolve", response_model=AlertOut)
def resolve(services: Running, actor: Actor, alert_id: Id) -> dict[str, Any]:
    """Close it by hand; receivers are told that it is resolved. It fires anew if its condition still holds."""
    with services.store.read() as session:
        found = session.get(Alert, alert_id)
        if found is None:
            raise unknown("alert", alert_id)
        if found.state == "pending":
            raise Refusal(
                409, "not_firing", f"alert {alert_id} has not fired", "GET /api/v1/alerts lists those that did"
            )
        where = (found.run_id, found.attempt)
        before = found.state
    if before == "firing":
        services.alerts.resolve(*where, alert_id)

    def read(session: Session) -> dict[str, Any]:
        alert = session.get(Alert, alert_id)
        if alert is None:
            raise unknown("alert", alert_id)
        if alert.state != "resolved":
            raise busy()
        if before == "firing":
            record(session, actor, "alert.resolve", alert_id, {"run": alert.run, "kind": alert.kind})
        return alert_view(alert)

    return services.store.write(read)
