"""HTTP: the log of deliveries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlmodel import Session, col, select

from floatscope_server.alerts.endpoint_routes import disabled
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.shapes import DeliveryOut, DeliveryState, Id, unknown
from floatscope_server.alerts.views import delivery_view
from floatscope_server.audit import Actor, record
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["alerts"])


@router.get("/deliveries", response_model=list[DeliveryOut])
def list_deliveries(
    services: Running,
    endpoint: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
    state: Annotated[DeliveryState | None, Query()] = None,
    before: Annotated[int | None, Query(ge=1, lt=1 << 63)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[dict[str, Any]]:
    """The delivery log, newest first; ``before``: only those with a smaller id."""
    query = select(Delivery)
    if endpoint is not None:
        query = query.where(Delivery.endpoint_id == endpoint)
    if state is not None:
        query = query.where(Delivery.state == state)
    if before is not None:
        query = query.where(col(Delivery.id) < before)
    with services.store.read() as session:
        return [delivery_view(row) for row in session.exec(query.order_by(col(Delivery.id).desc()).limit(limit))]


@router.post("/deliveries/{delivery_id}/redeliver", response_model=DeliveryOut, status_code=202)
def redeliver(services: Running, actor: Actor, delivery_id: Id) -> dict[str, Any]:
    """Send it again under the same webhook-id, with a fresh schedule of retries."""

    def write(session: Session) -> dict[str, Any] | None:
        row = session.get(Delivery, delivery_id)
        endpoint = None if row is None else session.get(Endpoint, row.endpoint_id)
        if row is None or endpoint is None:
            return None
        if not endpoint.enabled:
            raise disabled(endpoint)
        row.state, row.tries, row.next_at = "pending", 0, datetime.now(UTC)
        row.done_at, row.error, row.http_status, row.lease_until = None, None, None, None
        session.add(row)
        record(session, actor, "delivery.redeliver", delivery_id, {"endpoint": row.endpoint_id})
        return delivery_view(row)

    found = services.store.write(write)
    if found is None:
        raise unknown("delivery", delivery_id)
    return found
