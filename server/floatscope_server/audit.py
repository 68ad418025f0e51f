"""The audit log: who changed what, and when. Rows are only ever added."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from sqlmodel import Session, col, select
from starlette.requests import HTTPConnection

from floatscope_server.access import Audit
from floatscope_server.jsontext import stamp
from floatscope_server.services import Running, services_of

__all__ = ["Actor", "record", "router"]


async def _actor(connection: HTTPConnection) -> str:
    return services_of(connection).gatekeeper.actor(connection)


Actor = Annotated[str, Depends(_actor)]
"""Who asks, as the audit log names them."""


def record(
    session: Session, actor: str, action: str, subject: object, detail: Mapping[str, object] | None = None
) -> None:
    """Add a line, in the transaction that makes the change. ``detail`` must hold no secret."""
    session.add(
        Audit(at=datetime.now(UTC), actor=actor, action=action, subject=str(subject), detail=dict(detail or {}))
    )


class AuditOut(BaseModel):
    """A change."""

    id: int
    at: str
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


router = APIRouter(prefix="/api/v1/audit", tags=["audit"])


@router.get("", response_model=list[AuditOut])
def list_changes(
    services: Running,
    before: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """The changes, newest first; ``before``: only those with a smaller id."""
    query = select(Audit).order_by(col(Audit.id).desc()).limit(limit)
    if before is not None:
        query = query.where(col(Audit.id) < before)
    with services.store.read() as session:
        return [{**row.model_dump(exclude={"at"}), "at": stamp(row.at)} for row in session.exec(query)]
