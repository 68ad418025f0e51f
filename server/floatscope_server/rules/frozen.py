"""Values that repeat to the last digit, which measurements do not: steps are skipped, or a NaN is masked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.record import Record
from floatscope_server.rules.tensors import F64, Bool, Index
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Frozen", "Repeats", "calm_grad_norm", "calm_lr", "judge_grad_norm", "judge_lr", "judge_stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A printed value has few digits, so one repetition can be chance unless a broken loss stands beside it."""

    records: int = 3
    """Identical records: info."""
    records_with_loss: int = 2
    """Identical records beside a loss of exactly 0.0 or one that is not finite: warning."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(slots=True)
class Repeats:
    """How often the newest value of a series came in a row. ``skipped``: of those, how many on skipped steps.

    ``changed``: the series has had another value before.
    """

    value: float | None = None
    count: int = 0
    since: int = 0
    skipped: int = 0
    changed: bool = False

    def push(self, step: int, value: float | None, *, skipped: bool) -> None:
        """Remember a record; one without a value says nothing."""
        if value is None:
            return
        if value != self.value:
            self.changed = self.changed or self.value is not None
            self.value, self.count, self.since, self.skipped = value, 0, step, 0
        self.count += 1
        self.skipped += skipped

    def counts(self, values: F64) -> Index:
        """The ``count`` after each of ``values`` [N] would be pushed."""
        before = np.concatenate(([np.nan if self.value is None else self.value], values[:-1]))
        at = np.arange(len(values))
        begins = np.maximum.accumulate(np.where(values != before, at, -1))
        counts: Index = np.where(begins < 0, self.count + at + 1, at - begins + 1)
        return counts

    def skim(self, steps: Index, values: F64) -> None:
        """``push`` of each of ``values`` [N], N > 0, at steps of which none was skipped."""
        count = int(self.counts(values)[-1])
        newest = float(values[-1])
        if count <= len(values):
            self.changed = self.changed or self.value is not None or bool((values != newest).any())
            self.value, self.since, self.skipped = newest, int(steps[len(values) - count]), 0
        self.count = count


def _agrees(now: Record, *, reward_keys: bool) -> bool:
    return now.loss_nonfinite or now.loss_absent or (now.loss == 0.0 and not reward_keys)


def _verdict(kind: str, severity: Severity, reason: str, repeats: Repeats) -> Outcome:
    return alert(
        Verdict(
            kind=kind,
            severity=severity,
            reason=reason,
            since_step=repeats.since,
            value=repeats.value,
            detail={"records": repeats.count, "skipped": repeats.skipped},
        )
    )


def judge_grad_norm(rule: Frozen, repeats: Repeats, now: Record, *, reward_keys: bool) -> Outcome:
    """grad_norm_frozen: the same norm outside skipped steps. A norm of exactly 1 beside a sound loss is one that was
    printed after clipping. ``now`` is in ``repeats``."""
    value = now.grad_norm
    if value is None or value == 0 or not math.isfinite(value):
        return NO_DATA
    if now.skipped:
        return OK
    if _agrees(now, reward_keys=reward_keys) and repeats.count >= rule.records_with_loss:
        return _verdict("grad_norm_frozen", Severity.WARNING, "masked", repeats)
    if repeats.count >= rule.records and value != 1.0 and not repeats.skipped:
        return _verdict("grad_norm_frozen", Severity.INFO, "identical", repeats)
    return OK


def judge_stale(rule: Frozen, repeats: Repeats, now: Record) -> Outcome:
    """stale_grad_norm: a skipped step prints the norm of an earlier one. ``now`` is in ``repeats``."""
    if now.grad_norm is None or now.grad_norm == 0 or not math.isfinite(now.grad_norm):
        return NO_DATA
    if now.skipped and repeats.count >= rule.records:
        return _verdict("stale_grad_norm", Severity.INFO, "skipped_steps", repeats)
    return OK


def judge_lr(rule: Frozen, repeats: Repeats, now: Record, *, reward_keys: bool) -> Outcome:
    """lr_frozen: a learning rate that moved before stands still while steps are skipped or the loss is masked.
    Constant stretches of a schedule are no news. ``now`` is in ``repeats``."""
    if now.lr is None:
        return NO_DATA
    if not repeats.changed or now.lr == 0:
        return OK
    if _agrees(now, reward_keys=reward_keys) and repeats.count >= rule.records_with_loss:
        return _verdict("lr_frozen", Severity.WARNING, "masked", repeats)
    if repeats.count >= rule.records and repeats.skipped >= rule.records:
        return _verdict("lr_frozen", Severity.INFO, "skipped_steps", repeats)
    return OK


def calm_grad_norm(rule: Frozen, repeats: Repeats, values: F64) -> Bool:
    """Where ``judge_grad_norm`` is sure not to alert on finite ``values`` [N] of steps that were not skipped."""
    calm: Bool = (repeats.counts(values) < rule.records) | (values == 1.0) | (values == 0)
    return calm


def calm_lr(rule: Frozen, repeats: Repeats, values: F64) -> Bool:
    """The same of ``judge_lr``: without a skipped step, only those before them can make it alert."""
    known: Bool = ~np.isnan(values)
    if repeats.skipped >= rule.records:
        known &= np.maximum.accumulate(values != repeats.value)
    return known
