"""Step time: a run that became slower, and a rank that is later than the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from floatscope_server.rules.series import RunningMedian
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Arrivals", "Late", "Straggler", "Tempo", "ThroughputDrop", "judge_straggler", "judge_throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputDrop:
    """5 % is what one slow node costs everybody; it should page nobody."""

    info_ratio: float = 1.05
    """Median step time over its baseline: info."""
    warning_ratio: float = 1.3
    """The same: warning."""
    steps: int = 50
    """Steps that the median must stay above."""
    records: int = 20
    """Records in the median."""
    baseline_records: int = 100
    """The baseline is the lowest median of this many records in a row, or of those there are from half of them on."""
    warm_up_records: int = 5
    """First records that do not count: compilation, filling caches."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Step times of ranks that wait for each other are alike: what differs is work that nobody waits for."""

    ratio: float = 1.5
    """Step time of a rank over the median of all ranks."""
    steps: int = 20
    """Steps in a row: warning."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


class Tempo:
    """The step times of one series: the median of the newest and the baseline; since when the one is above the other
    by either ratio."""

    def __init__(self, rule: ThroughputDrop) -> None:
        self._rule = rule
        self._seen = 0
        self._recent = RunningMedian(rule.records)
        self._longer = RunningMedian(rule.baseline_records)
        self.baseline = math.inf
        self.above: dict[float, int] = {}

    def push(self, step: int, seconds: float | None) -> None:
        """Remember a record."""
        rule = self._rule
        if seconds is None or not math.isfinite(seconds) or seconds <= 0:
            return
        self._seen += 1
        if self._seen <= rule.warm_up_records:
            return
        self._recent.push(seconds)
        self._longer.push(seconds)
        if len(self._longer) >= rule.baseline_records / 2:
            self.baseline = min(self.baseline, self._longer.median)
        for ratio in (rule.info_ratio, rule.warning_ratio):
            if self.known and self.median > ratio * self.baseline:
                self.above.setdefault(ratio, step)
            else:
                self.above.pop(ratio, None)

    @property
    def known(self) -> bool:
        """Whether there is a baseline."""
        return math.isfinite(self.baseline) and len(self._recent) >= self._rule.records

    @property
    def median(self) -> float:
        """Seconds a step, of the newest records; NaN without any."""
        return self._recent.median


def judge_throughput(rule: ThroughputDrop, tempo: Tempo, step: int, seconds: float | None) -> Outcome:
    """throughput_drop; the record of ``step`` is in ``tempo``."""
    if seconds is None or not tempo.known:
        return NO_DATA
    for ratio, severity in ((rule.warning_ratio, Severity.WARNING), (rule.info_ratio, Severity.INFO)):
        since = tempo.above.get(ratio)
        if since is not None and step - since >= rule.steps:
            return alert(
                Verdict(
                    kind="throughput_drop",
                    severity=severity,
                    reason="slower",
                    since_step=since,
                    value=tempo.median,
                    threshold=ratio * tempo.baseline,
                    detail={"baseline": tempo.baseline, "ratio": tempo.median / tempo.baseline},
                )
            )
    return OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """``streak`` steps in a row, the present one included, a rank was late; ``since`` the first of them."""

    streak: int
    since: int


class Arrivals:
    """Step times by rank, put together once all ranks have told of a step."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, float]] = {}
        self._late: dict[int, Late] = {}

    def add(self, rule: Straggler, step: int, rank: int, seconds: float, world: int) -> dict[int, Outcome]:
        """What is found by rank once ``step`` is complete, else nothing."""
        times = self._open.setdefault(step, {})
        times[rank] = seconds
        if len(times) < world:
            while len(self._open) > 64:
                del self._open[min(self._open)]
            return {}
        del self._open[step]
        for stale in [other for other in self._open if other < step]:
            del self._open[stale]
        found = {}
        middle = median(times.values())
        for member, value in times.items():
            before = self._late.pop(member, None)
            if value > rule.ratio * middle:
                self._late[member] = (
                    Late(streak=1, since=step) if before is None else Late(streak=before.streak + 1, since=before.since)
                )
            found[member] = judge_straggler(rule, self._late.get(member), times, member)
        return found


def judge_straggler(rule: Straggler, late: Late | None, times: Mapping[int, float], rank: int) -> Outcome:
    """straggler for ``rank`` at a step with the ``times`` of all ranks, in seconds."""
    if late is None or late.streak < rule.steps:
        return OK
    middle = median(times.values())
    return alert(
        Verdict(
            kind="straggler",
            severity=Severity.WARNING,
            reason="late",
            since_step=late.since,
            rank=rank,
            value=times[rank],
            threshold=rule.ratio * middle,
            detail={"median": middle, "ratio": times[rank] / middle, "steps": late.streak},
        )
    )
