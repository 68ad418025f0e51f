"""Which store this is: another epoch for one that is new or was restored."""

from __future__ import annotations

import uuid

from sqlmodel import Session

from floatscope_server.models import Meta

__all__ = ["settled_epoch"]


def settled_epoch(session: Session, here: str) -> str:
    """The epoch of the store whose data lies ``here``; a new one, and noted, where agents may hold what this store
    never had."""
    epoch, place = session.get(Meta, "epoch"), session.get(Meta, "place")
    if epoch is None or place is None or place.value != here:
        epoch = session.merge(Meta(key="epoch", value=uuid.uuid4().hex))
        session.merge(Meta(key="place", value=here))
    return epoch.value
