"""A gradient norm far above the run's own recent level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.record import Record
from floatscope_server.rules.series import Recent
from floatscope_server.rules.tensors import F64, Bool
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["GradNormSpike", "Window", "calm", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradNormSpike:
    """Ratios are to the median of the last 20 finite, non-zero records.

    Single spikes of 14x, 94x and 1430x were harmless in public runs; never two in a row outside GRPO.
    """

    info_ratio: float = 5.0
    """Above this: info, and critical when the record before was above it as well."""
    warning_ratio: float = 10.0
    """Above this: warning; the only ratio that counts in a run with reward keys."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``since`` is the step at which the present stretch of spikes began, None when the last record was none."""

    recent: Recent
    since: int | None = None
    reward_keys: bool = False


def judge(rule: GradNormSpike, window: Window, now: Record) -> Outcome:
    """Info above 5x, warning above 10x, critical twice in a row."""
    value = now.grad_norm
    if value is None or not math.isfinite(value) or not len(window.recent):
        return NO_DATA
    median = window.recent.median
    ratio = value / median
    floor = rule.warning_ratio if window.reward_keys else rule.info_ratio
    if ratio <= floor:
        return OK
    if window.since is not None:
        severity, reason = Severity.CRITICAL, "in_a_row"
    elif ratio > rule.warning_ratio:
        severity, reason = Severity.WARNING, "far_above_median"
    else:
        severity, reason = Severity.INFO, "above_median"
    return alert(
        Verdict(
            kind="grad_norm_spike",
            severity=severity,
            reason=reason,
            since_step=now.step if window.since is None else window.since,
            value=value,
            threshold=floor * median,
            detail={"median": median, "ratio": ratio, "records": len(window.recent)},
        )
    )


def calm(rule: GradNormSpike, values: F64, medians: F64, *, reward_keys: bool) -> Bool:
    """Where ``judge`` says OK of finite ``values`` [N] with the ``medians`` [N] of the full windows before them."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return values / medians <= (rule.warning_ratio if reward_keys else rule.info_ratio)
