"""The secrets of an endpoint: which of them sign a message now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from floatscope._webhooks import headers, key_of, new_secret

__all__ = ["OVERLAP", "active_secrets", "first_secrets", "rotated", "signed_headers"]

OVERLAP = timedelta(hours=24)
"""How long a replaced secret goes on signing beside its successor."""


def first_secrets(secret: str | None) -> list[dict[str, Any]]:
    """The secrets of a new endpoint; ``ValueError`` when ``secret`` is no Standard Webhooks secret."""
    chosen = new_secret() if secret is None else secret
    key_of(chosen)
    return [{"secret": chosen, "until": None}]


def rotated(known: Iterable[Mapping[str, Any]], secret: str | None, now: datetime) -> list[dict[str, Any]]:
    """``known`` with a new secret in front; the former ones expire after ``OVERLAP``, or when they would have."""
    until = (now + OVERLAP).isoformat()
    kept = [{"secret": item["secret"], "until": item["until"] or until} for item in known]
    return first_secrets(secret) + [item for item in kept if datetime.fromisoformat(item["until"]) > now]


def active_secrets(known: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """The secrets that sign at ``now``, newest first."""
    return [item["secret"] for item in known if item["until"] is None or datetime.fromisoformat(item["until"]) > now]


def signed_headers(known: Iterable[Mapping[str, Any]], event_id: str, body: bytes, now: datetime) -> dict[str, str]:
    """The headers of one try."""
    return headers(active_secrets(known, now), event_id, int(now.timestamp()), body)
