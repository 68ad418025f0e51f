"""A run that takes no step any more."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["Stalled", "Window", "hung", "judge", "patience"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Whether the process lives does not matter: one that waits in a collective answers as before."""

    seconds: float = 60.0
    """Silence is never called a stall before this."""
    ratio: float = 10.0
    """Nor before this many times the median step time."""
    hold: float = 0.0
    """Seconds that the condition must last before it fires."""
    keep: float = 0.0
    """Seconds without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``progress_at``: when the last new step came, in seconds since 1970; None before the first. ``step_time_s`` is
    the median, None while it is not known."""

    last_step: int
    progress_at: float | None
    step_time_s: float | None = None


def patience(rule: Stalled, step_time_s: float | None) -> float:
    """Seconds without a step from which a run is stalled."""
    return max(rule.seconds, rule.ratio * (step_time_s or 0.0))


def judge(rule: Stalled, window: Window, now: float) -> Outcome:
    """Critical after max(60 s, 10 median steps) without a new step; ``now`` in seconds since 1970. A run that is over
    must not be asked for."""
    if window.progress_at is None or window.last_step < 0:
        return NO_DATA
    silence, limit = now - window.progress_at, patience(rule, window.step_time_s)
    if silence <= limit:
        return OK
    return alert(
        Verdict(
            kind="stalled",
            severity=Severity.CRITICAL,
            reason="no_step",
            since_step=window.last_step,
            value=silence,
            threshold=limit,
            detail={"step_time_s": window.step_time_s},
        )
    )


def hung(step: int, what: str, text: str, rank: int | None) -> Outcome:
    """The run said itself that it hangs: ``what`` is gpu, collective or aborted, ``text`` the words of the log."""
    return alert(
        Verdict(
            kind="stalled",
            severity=Severity.CRITICAL,
            reason=what,
            since_step=step,
            rank=rank,
            detail={"text": text},
        )
    )
