"""What a card's readings say of its health: errors that it could not correct, lanes that it lost, clocks held down."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from floatscope import wire
from floatscope_server.rules.telemetry import GpuFault
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Health", "KeptByTime", "judge_errors", "judge_link", "judge_throttle"]

_LEAST_READINGS = 3


@dataclass(frozen=True, slots=True)
class KeptByTime:
    """How long a condition on readings must last, and how long it outlives them, in seconds."""

    hold: float
    keep: float


class Health:
    """What went before on one card."""

    def __init__(self, rule: GpuFault) -> None:
        self._seconds = rule.throttle_seconds
        self.uncorrected: int | None = None
        self.since: float | None = None
        """When it first told what slows it."""
        self.slowed: deque[tuple[float, float, bool]] = deque()
        """Of late: when, for which share of the time in percent, and whether heat was the worst of it."""

    def push(self, sample: wire.Device) -> None:
        """Remember what slowed it. At its power limit a busy card is as it should be."""
        at = sample.time_ns / 1e9
        heat, brake = sample.throttle_thermal_percent, sample.throttle_brake_percent
        known = [share for share in (heat, brake) if share is not None and math.isfinite(share)]
        # One that does nothing loses nothing.
        if not known or sample.busy_percent == 0:
            return
        self.since = at if self.since is None else self.since
        self.slowed.append((at, max(known), max(known) == heat))
        while at - self.slowed[0][0] >= self._seconds:
            self.slowed.popleft()


def judge_errors(health: Health, now: wire.Device) -> Outcome:
    """gpu_fault from errors that came since the reading before. Those that were there at the first are old, and a count
    that falls began anew with the driver."""
    count = now.ecc_uncorrected
    if count is None or count < 0:
        return NO_DATA
    before, health.uncorrected = health.uncorrected, count
    if before is None or count <= before:
        return OK
    return _verdict(Severity.CRITICAL, "ecc_count", float(count), float(before), new=count - before)


def judge_throttle(rule: GpuFault, health: Health, now: wire.Device) -> Outcome:
    """gpu_fault from the mean over ``throttle_seconds``; ``now`` is in ``health``."""
    at = now.time_ns / 1e9
    if not health.slowed or health.slowed[-1][0] != at or health.since is None:
        return NO_DATA
    if at - health.since < rule.throttle_seconds or len(health.slowed) < _LEAST_READINGS:
        return NO_DATA
    mean = sum(share for _, share, _ in health.slowed) / len(health.slowed)
    if mean <= rule.throttle_percent:
        return OK
    hot = sum(share for _, share, hot in health.slowed if hot)
    reason = "throttle_heat" if 2 * hot >= mean * len(health.slowed) else "throttle_brake"
    return _verdict(Severity.WARNING, reason, mean, rule.throttle_percent, seconds=rule.throttle_seconds)


def judge_link(now: wire.Device) -> Outcome:
    """gpu_fault from a link that is narrower than it could be. Some cards give up lanes while they do nothing, and
    one that does not tell how busy it is may do so."""
    width, most = now.pcie_width, now.pcie_max_width
    if not width or width < 0 or most is None or not now.busy_percent:
        return NO_DATA
    return OK if width >= most else _verdict(Severity.WARNING, "link_width", float(width), float(most))


def _verdict(severity: Severity, reason: str, value: float, threshold: float, **detail: float) -> Outcome:
    return alert(
        Verdict(
            kind="gpu_fault",
            severity=severity,
            reason=reason,
            since_step=-1,
            value=value,
            threshold=threshold,
            detail=detail,
        )
    )
