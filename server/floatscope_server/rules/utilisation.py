"""How busy the cards are: one that does less than it did, and cards that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Busy", "GpuImbalance", "GpuUtilDrop", "judge_drop", "judge_imbalance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUtilDrop:
    """One reading of zero between two steps says nothing."""

    seconds: float = 60.0
    """Time over which the median is taken."""
    ratio: float = 0.5
    """Below this share of the run's own level: warning."""
    least_readings: int = 10
    """Readings in that time, and before it for a level."""
    least_level: float = 20.0
    """A run whose own level is below this, in percent, has nothing to lose."""
    hold: float = 0.0
    """Seconds that the condition must last before it fires."""
    keep: float = 60.0
    """Seconds without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuImbalance:
    """Uneven shards or batches; cards that the run does not use are left out."""

    points: float = 30.0
    """Difference between the busiest and the idlest card, each as a mean over ``seconds``, in percentage points."""
    seconds: float = 60.0
    hold: float = 300.0
    """Seconds that the condition must last before it fires: info."""
    keep: float = 60.0
    """Seconds without it before the alert resolves."""


class Busy:
    """The readings of one card: the newest by time, and how often each whole percentage came before them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.recent: deque[tuple[float, float]] = deque()
        self._before = [0] * 101
        self.before = 0

    def push(self, at: float, percent: float) -> None:
        """Remember a reading at ``at``, in seconds."""
        self.recent.append((at, percent))
        while self.recent and at - self.recent[0][0] >= self._seconds:
            old = min(max(round(self.recent.popleft()[1]), 0), 100)
            self._before[old] += 1
            self.before += 1

    @property
    def median(self) -> float:
        """Of the newest readings."""
        return median(percent for _, percent in self.recent)

    @property
    def mean(self) -> float:
        """Of the newest readings."""
        return sum(percent for _, percent in self.recent) / len(self.recent)

    @property
    def level(self) -> float:
        """The median of all readings before, to whole percents."""
        left = self.before / 2
        for percent, count in enumerate(self._before):
            left -= count
            if left <= 0:
                return float(percent)
        return 0.0


def judge_drop(rule: GpuUtilDrop, busy: Busy) -> Outcome:
    """gpu_util_drop; the newest reading is in ``busy``."""
    if len(busy.recent) < rule.least_readings or busy.before < rule.least_readings:
        return NO_DATA
    level, value = busy.level, busy.median
    if level < rule.least_level or value >= rule.ratio * level:
        return OK
    return alert(
        Verdict(
            kind="gpu_util_drop",
            severity=Severity.WARNING,
            reason="below_own_level",
            since_step=-1,
            value=value,
            threshold=rule.ratio * level,
            detail={"level": level, "seconds": rule.seconds},
        )
    )


def judge_imbalance(rule: GpuImbalance, means: Mapping[str, float]) -> Outcome:
    """gpu_imbalance over the cards of a run, by name their mean busy percentage of late."""
    if len(means) < 2:
        return NO_DATA
    idlest, busiest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    spread = means[busiest] - means[idlest]
    if spread <= rule.points:
        return OK
    return alert(
        Verdict(
            kind="gpu_imbalance",
            severity=Severity.INFO,
            reason="spread",
            since_step=-1,
            device=idlest,
            value=spread,
            threshold=rule.points,
            detail={"busiest": busiest, "busiest_percent": means[busiest], "idlest_percent": means[idlest]},
        )
    )
