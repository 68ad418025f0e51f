"""HTTP: where alerts are sent to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session, col, delete, select

from floatscope_server.alerts.addresses import check_target, check_url
from floatscope_server.alerts.connect import Guard
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.notices import new_event_id
from floatscope_server.alerts.outbox import disable
from floatscope_server.alerts.receivers import APPRISE, CHATS, GENERIC, TYPES
from floatscope_server.alerts.shapes import DeliveryOut, Id, SeverityName, unknown
from floatscope_server.alerts.signing import first_secrets, rotated
from floatscope_server.alerts.views import delivery_view, endpoint_view, webhook_body
from floatscope_server.audit import Actor, record
from floatscope_server.responses import Refusal
from floatscope_server.rules import RULES
from floatscope_server.services import Running, Services

__all__ = ["disabled", "router"]

router = APIRouter(prefix="/api/v1/endpoints", tags=["alerts"])

TypeName = Literal["generic", "slack", "discord", "teams", "feishu", "dingtalk", "wecom", "apprise"]
Language = Literal["en", "zh"]
Url = Annotated[str, Field(max_length=2000)]
Kinds = Annotated[list[str], Field(max_length=100)]
Secret = Annotated[str | None, Field(max_length=200)]


class EndpointIn(BaseModel):
    """A receiver to be told of alerts of ``kinds`` (empty: all) from ``min_severity`` on.

    ``url``: its address; for apprise the name of a target of the operator. ``language`` is that of chats. ``secret``:
    that of a webhook (one is made without), or that of a robot of Feishu or DingTalk.
    """

    model_config = ConfigDict(extra="forbid")

    type: TypeName = "generic"
    url: Url
    language: Language = "en"
    kinds: Kinds = Field(default_factory=list)
    min_severity: SeverityName = "warning"
    secret: Secret = None


class EndpointChange(BaseModel):
    """What is to change; what is left out stays as it is. ``enabled``: stop sending, or begin again."""

    model_config = ConfigDict(extra="forbid")

    url: Url | None = None
    language: Language | None = None
    kinds: Kinds | None = None
    min_severity: SeverityName | None = None
    enabled: bool | None = None


class SecretIn(BaseModel):
    """A secret of one's own; for a webhook a fresh one is made without."""

    secret: Secret = None


class EndpointOut(BaseModel):
    """A receiver. Its secret is shown once, when it is made, and of a chat's address only the host and the end."""

    id: int
    type: TypeName
    url: str
    language: Language
    kinds: list[str]
    min_severity: SeverityName
    signed: bool
    enabled: bool
    disabled_reason: str | None
    created_at: str


class NewEndpointOut(EndpointOut):
    """A receiver with its secret, where that was made or given: null for one that has none."""

    secret: str | None


class TypeOut(BaseModel):
    """A kind of receiver. ``signed``: whether it has a secret; ``targets``: the names that apprise may be given."""

    type: TypeName
    signed: bool
    per_minute: float | None
    targets: list[str]


def _check_address(services: Services, type_: str, url: str) -> None:
    if type_ == APPRISE:
        check_target(url, services.targets)
    else:
        check_url(url, Guard(services.settings.webhook_allow))


def _check_kinds(kinds: list[str]) -> None:
    if wrong := [kind for kind in kinds if kind not in RULES]:
        raise Refusal(422, "unknown_kind", f"there is no rule {wrong[0][:60]!r}", f"one of {', '.join(RULES)}")


def _secrets(type_: str, secret: str | None) -> list[dict[str, Any]]:
    """What signs the messages of a new endpoint."""
    if type_ == GENERIC:
        try:
            return first_secrets(secret)
        except ValueError as error:
            raise Refusal(422, "bad_secret", str(error), "leave the secret out and one is made for you") from error
    if secret is None:
        return []
    if type_ not in CHATS or not CHATS[type_].secret:
        raise Refusal(422, "no_secret", f"messages to {type_} are not signed", "leave the secret out")
    if not secret.strip() or not secret.isprintable():
        raise Refusal(422, "bad_secret", "the secret is empty or not text", "copy it from the robot's settings")
    return [{"secret": secret.strip(), "until": None}]


@router.get("", response_model=list[EndpointOut])
def list_endpoints(services: Running) -> list[dict[str, Any]]:
    """The receivers."""
    with services.store.read() as session:
        return [endpoint_view(endpoint) for endpoint in session.exec(select(Endpoint).order_by(col(Endpoint.id)))]


@router.get("/types", response_model=list[TypeOut])
def list_types(services: Running) -> list[dict[str, Any]]:
    """The kinds of receivers, and how many messages a minute each gets at most in the long run."""
    return [
        {
            "type": type_,
            "signed": type_ == GENERIC or (type_ in CHATS and CHATS[type_].secret),
            "per_minute": 60 * CHATS[type_].pace.per_s if type_ in CHATS else None,
            "targets": sorted(services.targets) if type_ == APPRISE else [],
        }
        for type_ in TYPES
    ]


@router.post("", response_model=NewEndpointOut, status_code=201)
def add_endpoint(services: Running, actor: Actor, wanted: EndpointIn) -> dict[str, Any]:
    """Add a receiver; the answer holds its secret, which is not shown again."""
    _check_address(services, wanted.type, wanted.url)
    _check_kinds(wanted.kinds)
    secrets = _secrets(wanted.type, wanted.secret)

    def write(session: Session) -> dict[str, Any]:
        endpoint = Endpoint(
            type=wanted.type,
            url=wanted.url,
            language=wanted.language,
            kinds=wanted.kinds,
            min_severity=wanted.min_severity,
            secrets=secrets,
            created_at=datetime.now(UTC),
        )
        session.add(endpoint)
        session.flush()
        view = endpoint_view(endpoint)
        record(session, actor, "endpoint.add", endpoint.id, {key: view[key] for key in ("type", "url", "min_severity")})
        return {**view, "secret": secrets[0]["secret"] if wanted.type == GENERIC else None}

    return services.store.write(write)


@router.patch("/{endpoint_id}", response_model=EndpointOut)
def change_endpoint(services: Running, actor: Actor, endpoint_id: Id, wanted: EndpointChange) -> dict[str, Any]:
    """Change a receiver. What waits for one that is disabled is given up, and can be delivered again by hand."""
    changes = {key: value for key, value in wanted.model_dump().items() if value is not None}

    def write(session: Session) -> dict[str, Any]:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            raise unknown("endpoint", endpoint_id)
        if "url" in changes or changes.get("enabled"):
            _check_address(services, endpoint.type, changes.get("url", endpoint.url))
        _check_kinds(changes.get("kinds", []))
        for name in ("url", "language", "kinds", "min_severity"):
            if name in changes:
                setattr(endpoint, name, changes[name])
        if changes.get("enabled") is True:
            endpoint.enabled, endpoint.disabled_reason, endpoint.given_up = True, None, 0
        elif changes.get("enabled") is False and endpoint.enabled:
            disable(session, endpoint, "disabled by hand", datetime.now(UTC))
        session.add(endpoint)
        view = endpoint_view(endpoint)
        record(session, actor, "endpoint.change", endpoint_id, {key: view[key] for key in changes})
        return view

    return services.store.write(write)


@router.post("/{endpoint_id}/secret", response_model=NewEndpointOut)
def replace_secret(services: Running, actor: Actor, endpoint_id: Id, wanted: SecretIn) -> dict[str, Any]:
    """Replace the secret. For a day messages of a webhook carry a signature by the former one as well; a robot of
    Feishu or DingTalk gets the new one at once, and none where it is left out."""

    def write(session: Session) -> dict[str, Any]:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            raise unknown("endpoint", endpoint_id)
        fresh = _secrets(endpoint.type, wanted.secret)
        if endpoint.type == GENERIC:
            fresh = rotated(endpoint.secrets, fresh[0]["secret"], datetime.now(UTC))
        endpoint.secrets = fresh
        session.add(endpoint)
        record(session, actor, "endpoint.secret", endpoint_id)
        return {**endpoint_view(endpoint), "secret": fresh[0]["secret"] if endpoint.type == GENERIC else None}

    return services.store.write(write)


@router.delete("/{endpoint_id}", status_code=204)
def delete_endpoint(services: Running, actor: Actor, endpoint_id: Id) -> None:
    """Remove a receiver and its delivery log."""

    def write(session: Session) -> None:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            raise unknown("endpoint", endpoint_id)
        view = endpoint_view(endpoint)
        record(session, actor, "endpoint.delete", endpoint_id, {"type": view["type"], "url": view["url"]})
        session.execute(delete(Delivery).where(col(Delivery.endpoint_id) == endpoint_id))
        session.delete(endpoint)

    services.store.write(write)


@router.post("/{endpoint_id}/test", response_model=DeliveryOut, status_code=202)
def test_endpoint(services: Running, actor: Actor, endpoint_id: Id) -> dict[str, Any]:
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

    def write(session: Session) -> dict[str, Any]:
        endpoint = session.get(Endpoint, endpoint_id)
        if endpoint is None:
            raise unknown("endpoint", endpoint_id)
        if not endpoint.enabled:
            raise disabled(endpoint)
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
        record(session, actor, "endpoint.test", endpoint_id)
        return delivery_view(row)

    return services.store.write(write)


def disabled(endpoint: Endpoint) -> Refusal:
    """The error response to a request to send to an endpoint that is disabled."""
    reason = endpoint.disabled_reason or "disabled"
    hint = f'PATCH /api/v1/endpoints/{endpoint.id} with {{"enabled": true}}'
    return Refusal(409, "endpoint_disabled", f"the endpoint is disabled: {reason}", hint)
