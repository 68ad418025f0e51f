"""The log of deliveries does not grow for ever."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlmodel import Session, col

from floatscope_server.alerts.models import Delivery

__all__ = ["DELIVERIES_KEPT", "drop_deliveries"]

DELIVERIES_KEPT = timedelta(days=90)
"""After their end. The alert that a message told of stays."""

_ENDED = ("ok", "dead")


def drop_deliveries(session: Session, now: datetime, most: int) -> int:
    """Delete up to ``most`` messages that came to their end long ago; how many there were."""
    old = (
        select(col(Delivery.id))
        .where(col(Delivery.state).in_(_ENDED), col(Delivery.done_at) < now - DELIVERIES_KEPT)
        .order_by(col(Delivery.id))
        .limit(most)
    )
    ids = list(session.execute(old).scalars())
    if ids:
        session.execute(delete(Delivery).where(col(Delivery.id).in_(ids)))
    return len(ids)
