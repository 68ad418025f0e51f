"""Clipping that has become the rule instead of the exception, by the run's own level."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["ClipSaturation", "Clips", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSaturation:
    """In 14 healthy public runs the clip rate lay anywhere from 0 to 100 %: only a change says something."""

    steps: int = 200
    """Records over which the rate is taken, and that must lie before them for the run's own level."""
    ratio: float = 3.0
    """The rate must be this many times the run's own level."""
    share: float = 0.10
    """And above this: info."""
    warning_share: float = 0.90
    """Above this: warning."""
    percentile: float = 90.0
    """The suggested max_grad_norm is this percentile of the norms before clipping."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


class Clips:
    """Which of the last records were clipped, and how many of all before them."""

    def __init__(self, rule: ClipSaturation) -> None:
        self._recent: deque[tuple[bool, float | None]] = deque(maxlen=rule.steps)
        self._clipped = 0
        self._before = 0
        self._before_clipped = 0

    def push(self, clip_coef: float | None, grad_norm: float | None) -> None:
        """Remember a record whose clipping is known."""
        if clip_coef is None or math.isnan(clip_coef):
            return
        recent = self._recent
        if len(recent) == recent.maxlen:
            self._before += 1
            self._before_clipped += recent[0][0]
            self._clipped -= recent[0][0]
        clipped = clip_coef < 1.0
        self._clipped += clipped
        recent.append((clipped, grad_norm))

    @property
    def full(self) -> bool:
        """Whether there are records enough for a rate, and as many before them for a level."""
        return len(self._recent) == self._recent.maxlen and self._before >= len(self._recent)

    @property
    def rate(self) -> float:
        """Share of the recent records that were clipped."""
        return self._clipped / len(self._recent)

    @property
    def level(self) -> float:
        """The same of all records before."""
        return self._before_clipped / self._before

    def norms(self) -> list[float]:
        """The recent norms from before clipping."""
        return [norm for _, norm in self._recent if norm is not None and math.isfinite(norm)]


def judge(rule: ClipSaturation, clips: Clips, step: int, clip_coef: float | None) -> Outcome:
    """Info above 3x the own level and 10 %, warning above 90 %. The record of ``step`` is in ``clips``."""
    if clip_coef is None or not clips.full:
        return NO_DATA
    rate, level = clips.rate, clips.level
    floor = max(rule.ratio * level, rule.share)
    if rate <= floor:
        return OK
    norms = clips.norms()
    p10, p50, suggested = np.percentile(norms, (10, 50, rule.percentile)).tolist() if norms else (None, None, None)
    return alert(
        Verdict(
            kind="clip_saturation",
            severity=Severity.WARNING if rate > rule.warning_share else Severity.INFO,
            reason="above_own_level",
            since_step=step,
            value=rate,
            threshold=floor,
            detail={"level": level, "p10": p10, "p50": p50, "suggested_max_grad_norm": suggested, "steps": rule.steps},
        )
    )
