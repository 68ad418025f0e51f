"""NaN and infinity in the loss, the gradient norm and the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope_server.rules.record import Record
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Nonfinite", "Window", "gradients_nonfinite", "judge"]

_MASKED_NORMS = (1.0, 2.0**0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """A NaN is critical at once, an overflow that a scaler caught is its ordinary work."""

    startup_steps: int = 50
    """Steps from 0 in which the scaler may look for its level; overflows in a row count after it."""
    critical_in_a_row: int = 3
    """Steps with non-finite gradients one after the other: critical, no update has been applied for that long."""
    mask_tolerance: float = 1e-6
    """How near a grad norm must be to 1 or sqrt(2), the constants that DeepSpeed puts in place of a NaN."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``since`` is where the present stretch of non-finite steps began, None when the last step was sound.

    ``in_a_row`` counts the steps with non-finite gradients after start-up that lead up to this one.
    """

    since: int | None = None
    in_a_row: int = 0
    reward_keys: bool = False


def _masked(rule: Nonfinite, window: Window, now: Record) -> bool:
    """Whether the grad norm is the constant that stands for a NaN. Alone that proves nothing (norms after clipping are
    1.0 too): a loss that is exactly 0 or not finite must agree."""
    norm = now.grad_norm
    zero = now.loss == 0.0 and not window.reward_keys
    if norm is None or not (zero or now.loss_nonfinite):
        return False
    return any(abs(norm - constant) <= rule.mask_tolerance for constant in _MASKED_NORMS)


def _critical(rule: Nonfinite, window: Window, now: Record) -> tuple[str, float | None] | None:
    if now.loss is not None and not math.isfinite(now.loss):
        return "loss", now.loss
    if now.raw_loss_nonfinite:
        return "raw_loss", float(now.raw_loss_nonfinite)
    if now.eval_loss is not None and not math.isfinite(now.eval_loss):
        return "eval_loss", now.eval_loss
    if now.loss_absent:
        return "loss_absent", None
    if not now.skipped:
        if now.grad_norm is not None and math.isnan(now.grad_norm):
            return "grad_norm", now.grad_norm
        if now.grad_nan:
            return "gradients", math.nan
    if _masked(rule, window, now):
        return "masked_grad_norm", now.grad_norm
    return None


def gradients_nonfinite(now: Record) -> bool:
    """Whether any gradient of this step was not finite, by what is known."""
    broken_norm = now.grad_norm is not None and not math.isfinite(now.grad_norm)
    return bool(now.skipped or now.grad_nan or now.grad_inf or broken_norm)


def judge(rule: Nonfinite, window: Window, now: Record) -> Outcome:
    """Critical for a NaN (with reward keys: warning); info for an overflow with a finite loss, critical at the third
    in a row after start-up. The verdict's layer and rank are the producer's and come from the caller."""
    measured = (now.loss, now.eval_loss, now.grad_norm, now.grad_nan)
    if all(value is None for value in measured) and not (now.loss_absent or now.skipped or now.raw_loss_nonfinite):
        return NO_DATA
    since = now.step if window.since is None else window.since
    found = _critical(rule, window, now)
    if found is not None:
        reason, value = found
        severity = Severity.WARNING if window.reward_keys else Severity.CRITICAL
        return alert(
            Verdict(
                kind="nonfinite",
                severity=severity,
                reason=reason,
                since_step=since,
                value=value,
                detail={"skipped": now.skipped},
            )
        )
    if not gradients_nonfinite(now):
        return OK
    row = window.in_a_row + (now.step >= rule.startup_steps)
    if row >= rule.critical_in_a_row:
        severity = Severity.WARNING if window.reward_keys else Severity.CRITICAL
        reason = "gradients_in_a_row"
    else:
        severity, reason = Severity.INFO, "gradient_overflow"
    return alert(
        Verdict(
            kind="nonfinite",
            severity=severity,
            reason=reason,
            since_step=since,
            value=now.grad_norm,
            detail={"in_a_row": max(row, 1), "loss_scale": now.loss_scale},
        )
    )
