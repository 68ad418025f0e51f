"""Memory of one card: nearly full, filling up, or jumping. Occupancy is bytes of bytes, never "memory use %", which is
the activity of the memory controller."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from floatscope import wire
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Memory", "VramJitter", "VramLeak", "VramNearOom", "judge_jitter", "judge_leak", "judge_near_oom"]

_GIB = float(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class VramNearOom:
    """Cards without memory of their own worth the name (an APU's carve-out) are always nearly full."""

    share: float = 0.95
    """Share of the card's bytes that is used: warning. So is a retry of the allocator."""
    least_bytes: float = _GIB
    """Cards with no more than this are left out."""
    hold: float = 0.0
    """Seconds that the condition must last before it fires."""
    keep: float = 60.0
    """Seconds without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VramLeak:
    """A lasting slope after the warm-up, not a level."""

    samples: int = 50
    """Samples over which the line is fitted."""
    reach: float = 10.0
    """It must fill the card within this many times the time that the samples span."""
    r_squared: float = 0.9
    """Least share of the variance that the line explains."""
    hold: float = 0.0
    """Seconds that the condition must last before it fires."""
    keep: float = 60.0
    """Seconds without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VramJitter:
    """Memory that is given back and taken again costs time and fragments."""

    share: float = 0.10
    """A difference between two samples above this share of the card is a jump."""
    jumps: int = 10
    """Jumps among the last ``samples``: info."""
    samples: int = 50
    hold: float = 0.0
    """Seconds that the condition must last before it fires."""
    keep: float = 60.0
    """Seconds without it before the alert resolves."""


class Memory:
    """The last samples of one card: times in seconds and bytes in use."""

    def __init__(self, leak: VramLeak, jitter: VramJitter) -> None:
        self.times: deque[float] = deque(maxlen=leak.samples)
        self.used: deque[float] = deque(maxlen=leak.samples)
        self.jumps: deque[bool] = deque(maxlen=jitter.samples)
        self.retries: int | None = None
        self.retried = False

    def push(self, rule: VramJitter, sample: wire.Device, *, counts: bool) -> None:
        """Remember a sample; ``counts``: the run has warmed up."""
        self.retried = (
            sample.alloc_retries is not None and self.retries is not None and sample.alloc_retries > self.retries
        )
        self.retries = self.retries if sample.alloc_retries is None else sample.alloc_retries
        used, total = sample.vram_used_bytes, sample.vram_total_bytes
        if used is None or not total or not counts:
            return
        if self.used:
            self.jumps.append(abs(used - self.used[-1]) > rule.share * total)
        self.times.append(sample.time_ns / 1e9)
        self.used.append(float(used))

    def line(self) -> tuple[float, float, float]:
        """Bytes a second, R^2 and the time spanned, of the least-squares line. Samples that all have one time count as
        one a second."""
        times = np.array(self.times)
        if times[-1] <= times[0]:
            times = np.arange(len(times), dtype=np.float64)
        span = float(times[-1] - times[0])
        x, y = times - times.mean(), np.array(self.used) - np.mean(self.used)
        square, total = float(x @ x), float(y @ y)
        if square == 0 or total == 0:
            return 0.0, 0.0, span
        slope = float(x @ y) / square
        return slope, slope * slope * square / total, span


def _verdict(kind: str, severity: Severity, reason: str, value: float, threshold: float, **detail: object) -> Outcome:
    return alert(
        Verdict(
            kind=kind,
            severity=severity,
            reason=reason,
            since_step=-1,
            value=value,
            threshold=threshold,
            detail=detail,
        )
    )


def judge_near_oom(rule: VramNearOom, memory: Memory, now: wire.Device) -> Outcome:
    """vram_near_oom; ``now`` is in ``memory``."""
    if memory.retried:
        return _verdict(
            "vram_near_oom",
            Severity.WARNING,
            "allocator_retry",
            float(now.alloc_retries or 0),
            0.0,
            used=None,
            total=None,
        )
    used, total = now.vram_used_bytes, now.vram_total_bytes
    if used is None or total is None or total <= rule.least_bytes:
        return NO_DATA
    if used < rule.share * total:
        return OK
    return _verdict("vram_near_oom", Severity.WARNING, "occupancy", used / total, rule.share, used=used, total=total)


def judge_leak(rule: VramLeak, memory: Memory, now: wire.Device) -> Outcome:
    """vram_leak; ``now`` is in ``memory``."""
    used, total = now.vram_used_bytes, now.vram_total_bytes
    if used is None or not total or len(memory.used) < rule.samples:
        return NO_DATA
    slope, fit, span = memory.line()
    if slope <= 0 or fit <= rule.r_squared:
        return OK
    left = (total - used) / slope
    if left > rule.reach * span:
        return OK
    return _verdict(
        "vram_leak",
        Severity.WARNING,
        "slope",
        left,
        rule.reach * span,
        slope=slope,
        r_squared=fit,
        used=used,
        total=total,
    )


def judge_jitter(rule: VramJitter, memory: Memory, now: wire.Device) -> Outcome:
    """vram_jitter; ``now`` is in ``memory``."""
    if now.vram_used_bytes is None or not now.vram_total_bytes:
        return NO_DATA
    jumps = sum(memory.jumps)
    if jumps < rule.jumps:
        return OK
    return _verdict("vram_jitter", Severity.INFO, "jumps", float(jumps), float(rule.jumps), samples=len(memory.jumps))
