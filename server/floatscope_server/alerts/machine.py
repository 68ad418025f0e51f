"""The state machine of an alert: pending, firing, resolved. Pure; the step is a parameter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum, StrEnum

from floatscope_server.rules.verdict import Severity

__all__ = ["Change", "Ended", "Phase", "Policy", "Signal", "State", "advance"]


class Phase(StrEnum):
    """The state that an alert shows."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Ended(Enum):
    """Why a condition says nothing any more. A run that is over stays as it ended: what fires goes on firing, until
    somebody has seen it. One that started anew has left its former attempt behind."""

    RUN_FINISHED = "run_finished"
    RUN_RESTARTED = "run_restarted"


class Change(Enum):
    """What a step did to an alert. Each FIRED and each RESOLVED is one event."""

    NONE = "none"
    PENDING = "pending"
    FIRED = "fired"
    ESCALATED = "escalated"
    RESOLVED = "resolved"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``hold``: steps that a condition must last before it fires. ``keep``: steps that an alert goes on firing after
    the condition last held. Both are seconds for a rule that goes by time."""

    hold: float = 0
    keep: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a step says of a condition: it holds with ``severity``, it is seen to be sound (``clear``), the run has
    ``ended``, or nothing at all."""

    severity: Severity | None = None
    clear: bool = False
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """``since`` is the step at which the condition was first seen, ``fired`` the one at which the alert fired (None
    while pending), ``held`` the last at which the condition held. ``since_at`` and ``held_at`` are the times of the
    first and the last, in seconds, for a rule that goes by time."""

    phase: Phase
    severity: Severity
    since: int
    held: int
    fired: int | None = None
    since_at: float | None = None
    held_at: float | None = None


def advance(
    policy: Policy, state: State | None, signal: Signal, step: int, *, at: float | None = None, inhibited: bool = False
) -> tuple[State | None, Change]:
    """The next state and what happened. ``at``: the time, in seconds, for a rule whose ``policy`` is in seconds.
    ``inhibited``: another alert explains the condition, so it may neither start nor grow. ESCALATED leaves the old
    alert resolved; the caller opens a new one with the greater severity."""
    if signal.severity is not None:
        return _active(policy, state, signal.severity, step, at, inhibited=inhibited)
    if state is None or state.phase is Phase.RESOLVED:
        return state, Change.NONE
    if signal.ended is Ended.RUN_RESTARTED or (signal.ended is not None and state.phase is Phase.PENDING):
        return _close(state)
    if not signal.clear:
        return state, Change.NONE
    if state.phase is Phase.PENDING or _passed(state.held, state.held_at, step, at) >= policy.keep:
        return _close(state)
    return state, Change.NONE


def _passed(then: int, then_at: float | None, step: int, at: float | None) -> float:
    """Seconds where both times are known, else steps."""
    return step - then if at is None or then_at is None else at - then_at


def _close(state: State) -> tuple[State | None, Change]:
    if state.phase is Phase.PENDING:
        return None, Change.DROPPED
    return dataclasses.replace(state, phase=Phase.RESOLVED), Change.RESOLVED


def _active(
    policy: Policy, state: State | None, severity: Severity, step: int, at: float | None, *, inhibited: bool
) -> tuple[State | None, Change]:
    if state is None or state.phase is Phase.RESOLVED:
        if inhibited:
            return state, Change.NONE
        begun = State(phase=Phase.PENDING, severity=severity, since=step, held=step, since_at=at, held_at=at)
        if policy.hold > 0:
            return begun, Change.PENDING
        return dataclasses.replace(begun, phase=Phase.FIRING, fired=step), Change.FIRED
    newest = dataclasses.replace(state, held=max(step, state.held), held_at=_later(state.held_at, at))
    if state.phase is Phase.PENDING:
        if inhibited:
            return None, Change.DROPPED
        newest = dataclasses.replace(newest, severity=max(severity, state.severity))
        if _passed(state.since, state.since_at, step, at) < policy.hold:
            return newest, Change.NONE
        return dataclasses.replace(newest, phase=Phase.FIRING, fired=step), Change.FIRED
    if severity > state.severity and not inhibited:
        return dataclasses.replace(state, phase=Phase.RESOLVED), Change.ESCALATED
    return newest, Change.NONE


def _later(before: float | None, at: float | None) -> float | None:
    return before if at is None else at if before is None else max(before, at)
