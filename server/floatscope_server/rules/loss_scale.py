"""The loss scaler: what it is doing, and when that is a collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from floatscope_server.rules.record import Record
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["LossScaleCollapse", "Scaler", "Window", "classify", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleCollapse:
    """Start-up is generous: 23 halvings in the first 24 steps from 2^32 are healthy."""

    startup_steps: int = 50
    """Steps from 0 in which the scaler may look for its level."""
    warning_in_a_row: int = 3
    """Skipped steps one after the other: warning."""
    critical_skips: int = 5
    """Skipped steps within ``critical_steps``: critical. Records of hysteresis count, they are skipped too."""
    critical_steps: int = 10
    minimum: float = 1.0
    """An overflow at or below this scale cannot be answered by lowering it: critical always."""
    oscillating_skips: int = 5
    """Skips within the window of 200 steps from which the scaler counts as oscillating; a healthy one probes once in
    2000 steps."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


class Scaler(StrEnum):
    """What a loss scaler is doing."""

    WARM_UP = "warm-up"
    HEALTHY = "healthy"
    OSCILLATING = "oscillating"
    COLLAPSING = "collapsing"
    AT_MINIMUM = "at minimum"
    BELOW_ONE = "below one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``skips`` are the steps of the last 200 that were skipped, oldest first, the present one excluded;
    ``in_a_row`` those that lead up to it without a good step between; ``high`` the largest scale of the window."""

    skips: Sequence[int] = ()
    in_a_row: int = 0
    high: float | None = None


def _counted(rule: LossScaleCollapse, window: Window, now: Record) -> tuple[int, list[int]]:
    """Skips in a row, and the steps of those within the last ``critical_steps``; start-up is left out."""
    if not now.skipped or now.step < rule.startup_steps:
        return 0, []
    past = [step for step in window.skips if step >= rule.startup_steps]
    near = [step for step in past if 0 <= now.step - step < rule.critical_steps]
    return 1 + min(window.in_a_row, len(past)), [*near, now.step]


def _at_minimum(rule: LossScaleCollapse, now: Record) -> bool:
    """Whether the scaler overflows where it cannot go lower, by its scale or by its own words."""
    low = now.loss_scale is not None and now.loss_scale <= rule.minimum
    return now.at_minimum or (bool(now.skipped) and low)


def classify(rule: LossScaleCollapse, window: Window, now: Record) -> Scaler:
    """The state of the scaler at ``now``."""
    scale = now.loss_scale
    if scale is not None and scale < 1:
        return Scaler.BELOW_ONE
    if _at_minimum(rule, now):
        return Scaler.AT_MINIMUM
    row, near = _counted(rule, window, now)
    if row >= rule.warning_in_a_row or len(near) >= rule.critical_skips:
        return Scaler.COLLAPSING
    if now.step < rule.startup_steps:
        return Scaler.WARM_UP
    late = sum(step >= rule.startup_steps for step in window.skips) + bool(now.skipped)
    return Scaler.OSCILLATING if late >= rule.oscillating_skips else Scaler.HEALTHY


def judge(rule: LossScaleCollapse, window: Window, now: Record) -> Outcome:
    """Warning at the third skip in a row, critical at the fifth within ten steps or at the smallest scale."""
    if now.skipped is None and not now.at_minimum:
        return NO_DATA
    state = classify(rule, window, now)
    row, near = _counted(rule, window, now)
    if _at_minimum(rule, now):
        severity, reason, value, threshold = Severity.CRITICAL, "at_minimum", now.loss_scale, rule.minimum
    elif len(near) >= rule.critical_skips:
        severity, reason, value, threshold = Severity.CRITICAL, "many_skips", len(near), rule.critical_skips
    elif row >= rule.warning_in_a_row:
        severity, reason, value, threshold = Severity.WARNING, "skips_in_a_row", row, rule.warning_in_a_row
    else:
        return OK
    return alert(
        Verdict(
            kind="loss_scale_collapse",
            severity=severity,
            reason=reason,
            since_step=near[0] if near else now.step,
            value=None if value is None else float(value),
            threshold=float(threshold),
            detail={
                "scaler": state.value,
                "loss_scale": now.loss_scale,
                "highest_scale": window.high,
                "in_a_row": row,
                "within": rule.critical_steps,
                "skips": len(near),
            },
        )
    )
