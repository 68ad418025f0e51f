"""A loss of exactly 0.0: the mask that hides a NaN (``logging_nan_inf_filter`` of transformers prints it)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope_server.rules.record import Record
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["LossZero", "Window", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossZero:
    """Fires on the exact value, so nothing but the machine can be set."""

    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What went before: the last non-zero loss, and whether the run optimises a reward."""

    last_loss: float | None = None
    reward_keys: bool = False


def _broken(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def judge(_rule: LossZero, window: Window, now: Record) -> Outcome:
    """Critical at 0.0 after a non-zero loss, or beside a grad norm or eval loss that is not finite."""
    if now.loss is None or window.reward_keys:
        return NO_DATA
    if now.loss != 0.0:
        return OK
    if _broken(now.grad_norm) or _broken(now.eval_loss):
        reason = "beside_nonfinite"
    elif window.last_loss is not None:
        reason = "after_nonzero"
    else:
        return NO_DATA
    return alert(
        Verdict(
            kind="loss_zero",
            severity=Severity.CRITICAL,
            reason=reason,
            since_step=now.step,
            value=0.0,
            detail={} if window.last_loss is None else {"before": window.last_loss},
        )
    )
