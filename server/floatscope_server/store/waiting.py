"""What each attempt of a run still waits for, of one rank or another."""

from __future__ import annotations

from sqlmodel import Session

from floatscope_server.store.ledger import KnownRun
from floatscope_server.store.together import SHARE, Together, stored_scalars

__all__ = ["forget_waiting", "together_of"]

_ATTEMPTS = 2
"""The present one, and one whose leftovers arrive late."""


def together_of(session: Session, run: KnownRun, attempt: int) -> Together:
    """What the ranks of ``attempt`` have in common, as it was when it was forgotten or the server was stopped."""
    found = run.together.pop(attempt, None)
    if found is None:
        found = Together()
        if any((number, name) == (attempt, SHARE) for number, _, name in run.series):
            stream, last = run.streams["scalar"], run.attempts[attempt][1]
            for rank, scalars in stored_scalars(session, stream, attempt, last):
                found.norms(rank, run.worlds[attempt], scalars)
    # The one used last comes last.
    run.together[attempt] = found
    return found


def forget_waiting(run: KnownRun) -> None:
    """Keep what the attempts used last wait for; only when everything that they were given has been written."""
    while len(run.together) > _ATTEMPTS:
        del run.together[next(iter(run.together))]
