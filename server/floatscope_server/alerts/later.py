"""What a later step, of which more was read, says about the NaN of an alert that fires already."""

from __future__ import annotations

import dataclasses
from typing import Any

from floatscope_server.rules.verdict import Verdict

__all__ = ["with_later"]


def with_later(first: Verdict, later: Verdict, step: int) -> Verdict:
    """``first`` with what ``later``, of ``step``, tells of the cause; severity, reason and value stay.

    Where weights are not finite by then, that is all that a later step can tell: ``detail.parameters`` says so, and
    what the first step showed of the producer stays. Where nobody knows how they are, only a module whose own inputs
    and parameters were finite is named.
    """
    producer = later.detail["producer"]
    detail: dict[str, Any] = dict(first.detail)
    if spoilt := later.detail["spoilt_weights"]:
        detail["parameters"] = {"layer": spoilt[0], "step": step}
        return dataclasses.replace(first, certainty=later.certainty, detail=detail)
    if later.detail["unread_weights"] and not producer["alone"]:
        return first
    detail.pop("limit", None)
    detail |= {key: later.detail[key] for key in ("producer", "limit") if key in later.detail}
    detail["producer_step"] = step
    return dataclasses.replace(
        first,
        layer=later.layer,
        tensor=later.tensor,
        format=later.format,
        rank=later.rank,
        certainty=later.certainty,
        hits=max(first.hits, later.hits),
        detail=detail,
    )
