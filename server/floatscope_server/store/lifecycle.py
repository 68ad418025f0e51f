"""The state of a run, decided from what its agents said and how long they have been silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DELETED", "ENDED", "GONE", "STATES", "Sign", "is_failure", "state_of_run"]

STATES = ("live", "stalled", "finished", "failed", "lost")
"""A run that is lost may come back; finished and failed ones said goodbye."""
GONE = frozenset({"finished", "failed"})
DELETED = "deleted"
"""On its way out, and for nobody to see."""
ENDED = GONE | {"lost", DELETED}

# Goodbyes of a process that ended as it should; any other reason is a failure.
_FINE = frozenset({"", "finished", "closed", "exit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A writer's last sign of life: wall-clock seconds, and its goodbye once it has said it."""

    seen_at: float
    bye: str | None


def is_failure(bye: str) -> bool:
    """Whether a goodbye with this reason means that the training failed."""
    return bye.strip().lower() not in _FINE


def state_of_run(
    signs: Sequence[Sign], *, progress_at: float, now: float, stalled_after_s: float, lost_after_s: float
) -> str:
    """live, stalled, finished, failed or lost, from the writers of the current attempt.

    ``progress_at`` is when the last new step arrived. All times are wall-clock seconds.
    """
    open_signs = [sign for sign in signs if sign.bye is None]
    failed = any(sign.bye is not None and is_failure(sign.bye) for sign in signs)
    if not open_signs:
        return "failed" if failed else "finished"
    silence = now - max(sign.seen_at for sign in open_signs)
    if failed and silence > stalled_after_s:
        return "failed"
    if silence > lost_after_s:
        return "lost"
    if now - progress_at > stalled_after_s:
        return "stalled"
    return "live"
