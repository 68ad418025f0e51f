"""HTTP: alerts, endpoints and deliveries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from sqlmodel import Session, col, delete, select

from floatscope_server.alerts.connect import Guard
from floatscope_server.alerts.models import Alert, Delivery, Endpoint
from floatscope_server.alerts.notices import new_event_id
from floatscope_server.alerts.signing import first_secrets, rotated
from floatscope_server.alerts.views import alert_view, alerts_of, delivery_view, endpoint_view, webhook_body
from floatscope_server.query.line import run_named
from floatscope_server.responses import Refusal
from floatscope_server.rules import RULES
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["alerts"])

Number = float | Literal["NaN", "Infinity", "-Infinity"]
SeverityName = Literal["info", "warning", "critical"]
_MAX_URL = 2000


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


class EndpointIn(BaseModel):
    """A receiver to be told of alerts of ``kinds`` (empty: all) from ``min_severity`` on."""

    url: str = Field(max_length=_MAX_URL)
    kinds: list[str] = Field(default_factory=list, max_length=100)
    min_severity: SeverityName = "warning"
    secret: str | None = Field(default=None, max_length=200)


class SecretIn(BaseModel):
    """A secret of one's own; a fresh one is made without."""

    secret: str | None = Field(default=None, max_length=200)


class EndpointOut(BaseModel):
    """A receiver; its secret is shown once, when it is made."""

    id: int
    url: str
    kinds: list[str]
    min_severity: SeverityName
    enabled: bool
    disabled_reason: str | None
    created_at: str


class NewEndpointOut(EndpointOut):
    """A receiver with its secret."""

    secret: str


class DeliveryOut(BaseModel):
    """One event on its way to one receiver; ``webhook_id`` is the same in every try."""

    id: int
    endpoint: int
    alert: int | None
    webhook_id: str
    type: str
    state: Literal["pending", "leased", "ok", "failed", "dead"]
    tries: int
    next_at: str | None
    http_status: int | None
    error: str | None
    created_at: str
    done_at: str | None


Id = Annotated[int, Path(ge=1, lt=1 << 63)]


def _unknown(what: str, identity: int) -> Refusal:
    return Refusal(404, f"unknown_{what}", f"there is no {what} {identity}", f"GET /api/v1/{_LISTS[what]}")


_LISTS = {"alert": "alerts", "endpoint": "endpoints", "delivery": "deliveries"}


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
def acknowledge(services: Running, alert_id: Id) -> dict[str, Any]:
    """Somebody has seen it. Doing so again changes nothing."""

    def write(session: Session) -> dict[str, Any] | None:
        alert = session.get(Alert, alert_id)
        if alert is None:
            return None
        if alert.acknowledged_at is None:
            alert.acknowledged_at = datetime.now(UTC)
            session.add(alert)
        return alert_view(alert)

    found = services.store.write(write)
    if found is None:
        raise _unknown("alert", alert_id)
    return found


def _check_url(url: str, guard: Guard) -> None:
    hint = "give the receiver's address in full, such as https://example.com/hook"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refusal(422, "bad_url", f"the URL cannot be read: {error}", hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refusal(422, "bad_url", "webhooks go to http:// and https:// addresses", hint)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Refusal(422, "bad_url", "the URL holds characters that must be percent-encoded (or Punycode)", hint)
    if parts.username is not None or parts.password is not None or parts.fragment or port == 0:
        raise Refusal(422, "bad_url", "the URL may not hold a user name, a fragment or the port 0", hint)
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:
        raise Refusal(422, "bad_url", f"the host name cannot be looked up: {error}", hint) from error
    try:
        literal = str(ip_address(parts.hostname))
    except ValueError:
        return  # a name: its address is checked whenever a webhook connects
    if not guard.permits(parts.hostname, literal):
        raise Refusal(
            422,
            "forbidden_address",
            f"webhooks may not connect to {literal}",
            f"start the server with FLOATSCOPE_WEBHOOK_ALLOW={literal} if this receiver is yours",
        )


def _secrets(secret: str | None) -> list[dict[str, Any]]:
    try:
        return first_secrets(secret)
    except ValueError as error:
        raise Refusal(422, "bad_secret", str(error), "leave the secret out and one is made for you") from error


@router.get("/endpoints", response_model=list[EndpointOut])
def list_endpoints(services: Running) -> list[dict[str, Any]]:
    """The receivers."""
    with services.store.read() as session:
        return [endpoint_view(endpoint) for endpoint in session.exec(select(Endpoint).order_by(col(Endpoint.id)))]


@router.post("/endpoints", response_model=NewEndpointOut, status_code=201)
def add_endpoint(services: Running, wanted: EndpointIn) -> dict[str, Any]:
    """Add a receiver; the answer holds its secret, which is not shown again."""
    _check_url(wanted.url, Guard(services.settings.webhook_allow))
    if unknown := [kind for kind in wanted.kinds if kind not in RULES]:
        raise Refusal(422, "unknown_kind", f"there is no rule {unknown[0][:60]!r}", f"one of {', '.join(RULES)}")
    secrets = _secrets(wanted.secret)

    def write(session: Session) -> dict[str, Any]:
        endpoint = Endpoint(
            url=wanted.url,
            kinds=wanted.kinds,
            min_severity=wanted.min_severity,
            secrets=secrets,
            created_at=datetime.now(UTC),
        )
        session.add(endpoint)
        session.flush()
        return {**endpoint_view(endpoint), "secret": secrets[0]["secret"]}

    return services.store.write(write)


@router.post("/endpoints/{endpoint_id}/secret", response_model=NewEndpointOut)
def rotate_secret(services: Running, endpoint_id: Id, wanted: SecretIn) -> dict[str, Any]:
    """Replace the secret. For a day messages carry a signature by the former one as well."""
    _secrets(wanted.secret)

    def write(session: Session) -> dict[str, Any] | None:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            return None
        endpoint.secrets = rotated(endpoint.secrets, wanted.secret, datetime.now(UTC))
        session.add(endpoint)
        return {**endpoint_view(endpoint), "secret": endpoint.secrets[0]["secret"]}

    found = services.store.write(write)
    if found is None:
        raise _unknown("endpoint", endpoint_id)
    return found


@router.delete("/endpoints/{endpoint_id}", status_code=204)
def delete_endpoint(services: Running, endpoint_id: Id) -> None:
    """Remove a receiver and its delivery log."""

    def write(session: Session) -> bool:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            return False
        session.execute(delete(Delivery).where(col(Delivery.endpoint_id) == endpoint_id))
        session.delete(endpoint)
        return True

    if not services.store.write(write):
        raise _unknown("endpoint", endpoint_id)


@router.post("/endpoints/{endpoint_id}/test", response_model=DeliveryOut, status_code=202)
def test_endpoint(services: Running, endpoint_id: Id) -> dict[str, Any]:
    """Send a message of type alert.test, signed and retried like any other."""
    now = datetime.now(UTC)
    view = {
        "run": "test",
        "kind": "test",
        "severity": "info",
        "message": "This is a test.",
        "message_zh": "这是一条测试消息。",
    }
    body = json.dumps(webhook_body(services.settings, "alert.test", now, view), ensure_ascii=False)

    def write(session: Session) -> dict[str, Any] | None:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            return None
        if not endpoint.enabled:
            raise _disabled(endpoint)
        row = Delivery(
            endpoint_id=endpoint_id,
            event_id=new_event_id(),
            type="alert.test",
            body=body,
            next_at=now,
            created_at=now,
        )
        session.add(row)
        session.flush()
        return delivery_view(row)

    found = services.store.write(write)
    if found is None:
        raise _unknown("endpoint", endpoint_id)
    return found


def _disabled(endpoint: Endpoint) -> Refusal:
    reason = endpoint.disabled_reason or "disabled"
    return Refusal(409, "endpoint_disabled", f"the endpoint is disabled: {reason}", "delete it and add it anew")


@router.get("/deliveries", response_model=list[DeliveryOut])
def list_deliveries(
    services: Running,
    endpoint: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """The delivery log, newest first."""
    query = select(Delivery)
    if endpoint is not None:
        query = query.where(Delivery.endpoint_id == endpoint)
    with services.store.read() as session:
        return [delivery_view(row) for row in session.exec(query.order_by(col(Delivery.id).desc()).limit(limit))]


@router.post("/deliveries/{delivery_id}/redeliver", response_model=DeliveryOut, status_code=202)
def redeliver(services: Running, delivery_id: Id) -> dict[str, Any]:
    """Send it again under the same webhook-id, with a fresh schedule of retries."""

    def write(session: Session) -> dict[str, Any] | None:
        row = session.get(Delivery, delivery_id)
        endpoint = None if row is None else session.get(Endpoint, row.endpoint_id)
        if row is None or endpoint is None:
            return None
        if not endpoint.enabled:
            raise _disabled(endpoint)
        row.state, row.tries, row.next_at = "pending", 0, datetime.now(UTC)
        row.done_at, row.error, row.http_status, row.lease_until = None, None, None, None
        session.add(row)
        return delivery_view(row)

    found = services.store.write(write)
    if found is None:
        raise _unknown("delivery", delivery_id)
    return found
