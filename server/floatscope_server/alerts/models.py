"""Tables of alerts, their events, and the endpoints and deliveries of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, Text, text
from sqlmodel import Field, SQLModel

__all__ = ["Alert", "AlertEvent", "Delivery", "Endpoint", "Evaluated", "Rule", "Silence"]

# SQLite only numbers rows by itself where the key is spelled INTEGER.
_ID = BigInteger().with_variant(Integer(), "sqlite")


def _json(*, null: bool = False) -> Column[Any]:
    return Column(JSON(none_as_null=null), nullable=null)


class Alert(SQLModel, table=True):
    """One condition on one subject, from the step it was first seen until it no longer holds.

    ``state`` is pending, firing or resolved. ``value`` and ``threshold`` are numbers, or the strings "NaN",
    "Infinity" and "-Infinity". ``machine`` is what the state machine needs to go on after a restart.
    """

    __tablename__ = "alert"
    __table_args__ = (
        Index(
            "uq_alert_open",
            "run_id",
            "dedupe_key",
            unique=True,
            sqlite_where=text("state <> 'resolved'"),
            postgresql_where=text("state <> 'resolved'"),
        ),
        Index("ix_alert_run", "run_id", "opened_at"),
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id")
    run: str
    attempt: int
    dedupe_key: str
    kind: str
    severity: str
    state: str
    first_step: int = Field(sa_type=BigInteger)
    last_step: int = Field(sa_type=BigInteger)
    since_step: int = Field(sa_type=BigInteger)
    layer: str | None = None
    rank: int | None = None
    device: str | None = None
    format: str | None = None
    reason: str
    message: str = Field(sa_type=Text)
    message_zh: str = Field(sa_type=Text)
    value: float | str | None = Field(default=None, sa_column=_json(null=True))
    threshold: float | str | None = Field(default=None, sa_column=_json(null=True))
    hits: int = 1
    detail: dict[str, Any] = Field(default_factory=dict, sa_column=_json())
    machine: dict[str, Any] = Field(default_factory=dict, sa_column=_json())
    opened_at: datetime
    resolved_at: datetime | None = None
    resolved_reason: str | None = None
    acknowledged_at: datetime | None = None


class AlertEvent(SQLModel, table=True):
    """A transition. ``id`` is made in the transaction that stores it and names the event everywhere.

    ``kind`` is firing, resolved, superseded (the alert gained severity and goes on as a new entry; nobody is told), or
    "reminder N" (it still fires and nobody has acknowledged it).
    """

    __tablename__ = "alert_event"
    __table_args__ = (Index("uq_alert_event", "alert_id", "kind", unique=True),)

    id: str = Field(primary_key=True)
    alert_id: int = Field(sa_type=BigInteger, foreign_key="alert.id")
    kind: str
    step: int = Field(sa_type=BigInteger)
    at: datetime


class Evaluated(SQLModel, table=True):
    """How far a writer's blocks have been judged; moves in the transaction that stores what came of it.

    ``held``: the last step of the newest block waits for its rest.
    """

    __tablename__ = "evaluated"

    writer: str = Field(primary_key=True)
    run_id: int = Field(sa_type=BigInteger, foreign_key="run.id", index=True)
    attempt: int
    seq: int = Field(sa_type=BigInteger)
    step: int = Field(sa_type=BigInteger)
    held: bool = False


class Rule(SQLModel, table=True):
    """What an operator has set of the rules: ``preset`` (null: that of all runs) and single ``parameters`` over it.

    ``run_id`` 0 stands for all runs.
    """

    __tablename__ = "rule"

    run_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    preset: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict, sa_column=_json())
    changed_at: datetime


class Silence(SQLModel, table=True):
    """Alerts that nobody is told of before ``until``: of one run, one kind, one layer and what is in it; null stands
    for all. They fire and resolve as ever."""

    __tablename__ = "silence"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    run: str | None = None
    kind: str | None = None
    layer: str | None = None
    until: datetime
    comment: str = ""
    created_at: datetime


class Endpoint(SQLModel, table=True):
    """A receiver of alerts.

    ``type``: generic (a signed webhook), a chat, or apprise, where ``url`` is the name of a target of the operator.
    ``language`` (en, zh) is that of chats. ``kinds`` empty means all. ``secrets`` are [{"secret", "until"}], newest
    first; those whose ``until`` (ISO 8601) has passed no longer sign. ``given_up`` counts messages that were given up
    since the last success.
    """

    __tablename__ = "endpoint"

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    type: str = "generic"
    url: str
    language: str = "en"
    kinds: list[str] = Field(default_factory=list, sa_column=_json())
    min_severity: str = "warning"
    secrets: list[dict[str, Any]] = Field(default_factory=list, sa_column=_json())
    enabled: bool = True
    disabled_reason: str | None = None
    given_up: int = 0
    created_at: datetime


class Delivery(SQLModel, table=True):
    """One event on its way to one endpoint.

    ``state``: pending (never tried), leased (being tried until ``lease_until``), failed (to be tried again at
    ``next_at``), ok, dead (given up). ``event_id`` is the webhook-id of every try; ``body`` is what is signed and sent.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        Index("uq_delivery_event", "endpoint_id", "event_id", unique=True),
        Index("ix_delivery_due", "state", "next_at"),
    )

    id: int | None = Field(default=None, sa_column=Column(_ID, primary_key=True))
    endpoint_id: int = Field(sa_type=BigInteger, foreign_key="endpoint.id")
    event_id: str
    alert_id: int | None = Field(default=None, sa_type=BigInteger)
    type: str
    body: str = Field(sa_type=Text)
    state: str = "pending"
    tries: int = 0
    next_at: datetime
    lease_until: datetime | None = None
    http_status: int | None = None
    error: str | None = None
    created_at: datetime
    done_at: datetime | None = None
