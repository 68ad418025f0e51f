"""What a run reports in words: faults of cards, hangs, records that were lost, layers that nobody observes."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope import wire
from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["CoverageLow", "DataGap", "GpuFault", "gap", "judge_coverage", "judge_fault"]

_FAULTS = {"ecc": Severity.CRITICAL, "ras": Severity.CRITICAL, "hang": Severity.CRITICAL, "throttle": Severity.WARNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """Uncorrectable memory errors and hangs are critical; throttling and lanes that were lost are warnings."""

    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 200
    """Steps without a further report before the alert resolves."""
    throttle_percent: float = 20.0
    """Share of the time for which heat, or a signal from outside, holds down the clocks of a busy card, as a mean over
    ``throttle_seconds``: warning. At its power limit every busy card is."""
    throttle_seconds: float = 180.0
    link_seconds: float = 120.0
    """Time for which a busy card works on fewer lanes than its PCI Express link could have: warning."""
    keep_seconds: float = 300.0
    """Seconds without it before an alert that comes from a card's readings resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataGap:
    """Telemetry that was lost: info."""

    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without a further loss before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageLow:
    """Layers that train and whose gradients the agent does not get to see."""

    share: float = 0.10
    """Share of the trainable layers that is not observed: info."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 0
    """Steps without it before the alert resolves."""


def judge_fault(event: wire.Event) -> Outcome:
    """gpu_fault from an event "gpu_fault" with ``what`` (ecc, ras, hang, throttle), ``device`` and ``text``, or from a
    "hang" of the card."""
    what = str(event.detail.get("what", ""))
    if event.kind == "hang":
        what = "hang" if what == "gpu" else ""
    severity = _FAULTS.get(what)
    if severity is None:
        return NO_DATA
    device = event.detail.get("device")
    return alert(
        Verdict(
            kind="gpu_fault",
            severity=severity,
            reason=what,
            since_step=event.step,
            device=None if device is None else str(device),
            detail={"text": str(event.detail.get("text", ""))},
        )
    )


def judge_coverage(rule: CoverageLow, event: wire.Event) -> Outcome:
    """coverage_low from the agent's event "coverage": ``observed`` of ``trainable`` layers, and "count/REASON"."""
    observed, trainable = event.detail.get("observed"), event.detail.get("trainable")
    if not isinstance(observed, int) or not isinstance(trainable, int) or trainable <= 0:
        return NO_DATA
    share = 1 - observed / trainable
    if share <= rule.share:
        return OK
    counts = {k.removeprefix("count/"): v for k, v in event.detail.items() if k.startswith("count/")}
    return alert(
        Verdict(
            kind="coverage_low",
            severity=Severity.INFO,
            reason="unobserved",
            since_step=event.step,
            value=share,
            threshold=rule.share,
            hits=trainable - observed,
            detail={"observed": observed, "trainable": trainable, "reasons": counts},
        )
    )


def gap(first: int, last: int, count: int, reason: str, rank: int) -> Outcome:
    """data_gap: ``count`` records of the steps ``first`` to ``last`` of ``rank`` are lost for ``reason``."""
    return alert(
        Verdict(
            kind="data_gap",
            severity=Severity.INFO,
            reason=reason,
            since_step=first,
            rank=rank,
            value=float(count),
            detail={"first": first, "last": last},
        )
    )
