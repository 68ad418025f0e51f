"""A loss that jumps away from its recent level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.record import Record
from floatscope_server.rules.series import Recent
from floatscope_server.rules.tensors import F64, Bool
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["LossSpike", "Window", "calm", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """Both a ratio and a margin must be exceeded: over 45,031 public loss points the ratio alone gives 1185 false
    alarms, with the margin 59, two in a row 9."""

    ratio: float = 1.5
    """Loss over the median of the last 20 finite, non-zero records."""
    margin: float = 0.2
    """Least distance from that median."""
    mads: float = 6.0
    """Least distance in median absolute deviations."""
    mads_from: int = 8
    """Records needed before the deviation counts."""
    few_mads: float = 20.0
    """With fewer records, how many deviations make a record that averages no steps more than info, unless the gradients
    agree: the first batches of a small training differ as much."""
    big_margin: float = 1.0
    """A distance above this is a warning, and critical where a record averages steps or the gradients agree."""
    averaged_steps: int = 5
    """A record this many steps after the one before averages them, so noise cannot explain it."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``since`` is the step at which the present stretch began, None when the last record was no spike.

    ``last_step`` is the step of the record before, ``grad_norm_spike`` whether a grad_norm_spike above info came at
    this or the previous record.
    """

    recent: Recent
    since: int | None = None
    last_step: int | None = None
    grad_norm_spike: bool = False


def judge(rule: LossSpike, window: Window, now: Record) -> Outcome:
    """Info for one record, warning for a big one, critical when something confirms it."""
    value = now.loss
    if value is None or not math.isfinite(value) or not len(window.recent):
        return NO_DATA
    median = window.recent.median
    distance = value - median
    margin = rule.margin
    spread_known = len(window.recent) >= rule.mads_from
    if spread_known:
        margin = max(margin, rule.mads * window.recent.mad)
    # A loss that is negative or near zero by nature has no ratio: its own spread has to decide.
    risen = value > rule.ratio * median if median > 0 else spread_known
    if not (risen and distance > margin):
        return OK
    big = distance > rule.big_margin
    averaged = window.last_step is not None and now.step - window.last_step >= rule.averaged_steps
    if big and window.grad_norm_spike and window.since is None:
        severity, reason = Severity.CRITICAL, "with_grad_norm"
    elif not (spread_known or averaged) and (
        len(window.recent) < 2 or distance <= rule.few_mads * window.recent.mad  # one alone has no spread
    ):
        severity, reason = Severity.INFO, "above_median"
    elif window.since is not None:
        severity, reason = Severity.CRITICAL, "in_a_row"
    elif big and averaged:
        severity, reason = Severity.CRITICAL, "averaged_record"
    elif big:
        severity, reason = Severity.WARNING, "big_jump"
    else:
        severity, reason = Severity.INFO, "above_median"
    return alert(
        Verdict(
            kind="loss_spike",
            severity=severity,
            reason=reason,
            since_step=now.step if window.since is None else window.since,
            value=value,
            threshold=max(rule.ratio * median, median + margin),
            detail={"median": median, "ratio": value / median, "records": len(window.recent)},
        )
    )


def calm(rule: LossSpike, values: F64, medians: F64) -> Bool:
    """Where ``judge`` is sure to say OK of finite ``values`` [N] with the ``medians`` [N] of the full windows before
    them: without the deviations, which only raise the margin."""
    with np.errstate(invalid="ignore", over="ignore"):
        risen = (values > rule.ratio * medians) | ~(medians > 0)
        return ~(risen & ~(values - medians <= rule.margin))
