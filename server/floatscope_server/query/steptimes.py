"""When the steps of a run were, by the clock of its cards' readings."""

from __future__ import annotations

import numpy as np
from sqlmodel import Session, col, select

from floatscope_server.models import Attempt, Run, Writer
from floatscope_server.query.series import scalar_series

__all__ = ["step_times"]


def step_times(session: Session, run: Run, *, points: int) -> list[dict[str, object]]:
    """At most about ``points`` steps of the canonical line, each with ``at``, when it ended, in seconds since 1970 by
    the clock of the lowest rank's machine, as that was when the rank connected.

    Counted back from the end of each attempt, or from the newest step's arrival, by the seconds that the steps took; a
    pause between steps counts where the trainer reports it as part of one. Empty where no step time is known.
    """
    assert run.id is not None
    attempts = session.exec(select(Attempt).where(Attempt.run_id == run.id).order_by(col(Attempt.n))).all()
    found = scalar_series(session, run, names=("step_time_s",), first=None, last=None, points=points)
    if not found or not attempts:
        return []
    series = found[0]
    starts = [attempt.first_step for attempt in attempts]
    shown: list[dict[str, object]] = []
    for place, attempt in enumerate(attempts):
        if attempt.first_step is None or attempt.last_step is None:
            continue
        later = [start for start in starts[place + 1 :] if start is not None]
        stop = min([attempt.last_step + 1, *later])
        at = (attempt.ended_at or run.progress_at) if attempt.n < run.attempt else run.progress_at
        offset = session.exec(
            select(Writer.clock_offset_ms)
            .where(Writer.run_id == run.id, Writer.attempt == attempt.n)
            .order_by(col(Writer.rank), col(Writer.number).desc())
        ).first()
        inside = (series.steps >= attempt.first_step) & (series.steps < stop)
        steps, seconds = series.steps[inside], np.nan_to_num(series.values[inside], posinf=0.0, neginf=0.0)
        if not len(steps):
            continue
        # The last cell ends with the attempt; a cell's seconds are its mean times its steps.
        ends = np.append(steps[1:], stop)
        spent = np.clip(seconds, 0.0, None) * (ends - steps)
        after = np.append(np.cumsum(spent[::-1])[::-1][1:], 0.0)
        times = at.timestamp() + (offset or 0.0) / 1000 - after
        shown += [
            {"attempt": attempt.n, "step": int(end) - 1, "at": float(time)}
            for end, time in zip(ends, times, strict=True)
        ]
    return shown
