"""What the routes of alerts, endpoints and deliveries share."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel

from floatscope_server.responses import Refusal

__all__ = ["DeliveryOut", "DeliveryState", "Id", "SeverityName", "unknown"]

SeverityName = Literal["info", "warning", "critical"]
Id = Annotated[int, Path(ge=1, lt=1 << 63)]

DeliveryState = Literal["pending", "leased", "ok", "failed", "dead"]

_LISTS = {"alert": "alerts", "endpoint": "endpoints", "delivery": "deliveries"}


def unknown(what: str, identity: int) -> Refusal:
    """The error response to a request about something that is not there."""
    return Refusal(404, f"unknown_{what}", f"there is no {what} {identity}", f"GET /api/v1/{_LISTS[what]}")


class DeliveryOut(BaseModel):
    """One event on its way to one receiver; ``webhook_id`` is the same in every try. To a chat several may go in one
    message, and then end alike."""

    id: int
    endpoint: int
    alert: int | None
    webhook_id: str
    type: str
    state: DeliveryState
    tries: int
    next_at: str | None
    http_status: int | None
    error: str | None
    created_at: str
    done_at: str | None
