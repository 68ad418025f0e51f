"""A loss that has left its best level and stays away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.record import Record
from floatscope_server.rules.tensors import F64, Bool
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["LossDivergence", "Window", "calm", "is_above", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDivergence:
    """A spike comes back within a record or two; a loss that is still away afterwards, and no better, does not."""

    ratio: float = 1.5
    """Loss over the lowest running median (of 20 finite, non-zero records) of the run."""
    margin: float = 0.5
    """Least distance from that median."""
    lasting: float = 0.9
    """The newest record must be at least this share of the first of the last three that were above."""
    averaged_steps: int = 5
    """A record this many steps after the one before averages them."""
    records_from: int = 8
    """With fewer records, which average no steps, the best level may be that of a lucky batch: then three in a row must
    be above it, none of them lower than the one before."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``best`` is the lowest running median so far, ``records`` the number of losses behind it, up to 20. ``past`` are
    the two records before, (step, loss), oldest first."""

    best: float | None = None
    records: int = 0
    past: Sequence[tuple[int, float]] = ()


def is_above(rule: LossDivergence, best: float, value: float) -> bool:
    """Whether a loss is far from ``best``."""
    return value > rule.ratio * best and value - best > rule.margin


def judge(rule: LossDivergence, window: Window, now: Record) -> Outcome:
    """Critical when this record and one of the two before are above and it has not come down since."""
    value, best = now.loss, window.best
    # A loss around zero (rewards, log-densities) has no ratio to a best level.
    if value is None or not math.isfinite(value) or best is None or best <= 0:
        return NO_DATA
    if not is_above(rule, best, value):
        return OK
    earlier = [(step, loss) for step, loss in window.past if is_above(rule, best, loss)]
    if not earlier or value < rule.lasting * earlier[0][1]:
        return OK
    if window.records < rule.records_from and now.step - window.past[-1][0] < rule.averaged_steps:
        last = [loss for _, loss in window.past] + [value]
        if len(earlier) < 2 or last != sorted(last):
            return OK
    return alert(
        Verdict(
            kind="loss_divergence",
            severity=Severity.CRITICAL,
            reason="stays_above",
            since_step=earlier[0][0],
            value=value,
            threshold=max(rule.ratio * best, best + rule.margin),
            detail={"best": best, "ratio": value / best},
        )
    )


def calm(rule: LossDivergence, values: F64, best: F64) -> Bool:
    """Where ``judge`` is sure not to alert on finite ``values`` [N] with the ``best`` levels [N] before them."""
    with np.errstate(invalid="ignore", over="ignore"):
        return ~((best > 0) & (values > rule.ratio * best) & (values - best > rule.margin))
