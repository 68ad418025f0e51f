"""What rules would have done in the present attempt of a recorded run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.alerts.keys import framework_of
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.models import Attempt, Run, ScalarSeries, StepEvent, Stream, WalFrame
from floatscope_server.observation import Observation
from floatscope_server.query.series import raw_series
from floatscope_server.rules import RuleParameters
from floatscope_server.store.replay import replay

__all__ = ["MEMORY_STEPS", "preview", "remembered"]

_NEVER = 1 << 62
_BLOCK_STEPS = 512
MEMORY_STEPS = 200_000
"""Steps of series that are taken up again at most, in a second or two."""


def preview(session: Session, run: Run, rules: RuleParameters, *, last_steps: int) -> dict[str, Any]:
    """The alerts over the last ``last_steps`` steps, and the step from which on tensors could be judged: of older ones
    the series are kept by step, the lowest rank's, and the statistics of layers only in stretches."""
    assert run.id is not None
    span = session.get(Attempt, (run.id, run.attempt))
    if span is None or span.last_step is None or span.first_step is None:
        return {"alerts": [], "from_step": None, "tensors_from_step": None}
    first = max(span.first_step, span.last_step - last_steps + 1)
    recent = max(_first_recent(session, run), first)
    names = session.exec(select(ScalarSeries.name).where(ScalarSeries.run_id == run.id).distinct()).all()
    observations: Iterator[Observation] = iter(())
    if recent <= span.last_step:
        observations = replay(session, run.id, run.attempt, last_steps=span.last_step - recent + 1)
    if recent > first:
        observations = chain(_older(session, run, span.world, first, min(recent - 1, span.last_step)), observations)
    return {
        "alerts": rehearse(rules, observations, framework=framework_of(run.config, names)),
        "from_step": first,
        "tensors_from_step": recent if recent <= span.last_step else None,
    }


def _first_recent(session: Session, run: Run) -> int:
    """The first step from which on blocks are kept as they came."""
    found = session.exec(
        select(func.coalesce(func.min(WalFrame.first), _NEVER))
        .join(Stream, col(Stream.id) == col(WalFrame.stream_id))
        .where(Stream.run_id == run.id, WalFrame.attempt == run.attempt, Stream.name == "scalar")
    ).one()
    return int(found)


def remembered(session: Session, run: Run, attempt: int, last_steps: int) -> Iterator[Observation]:
    """The series of a run of one rank from before a replay of ``last_steps`` steps: rules whose memory is longer (best
    loss, level of a plateau, baseline of the step time, own rate of clipping) have it after a restart too. At most
    ``MEMORY_STEPS`` steps; nothing of runs of several ranks, whose series are stored as one."""
    span = session.get(Attempt, (run.id, attempt))
    if span is None or span.world > 1 or span.last_step is None or span.first_step is None or run.attempt != attempt:
        return
    replayed = session.exec(
        select(func.coalesce(func.min(WalFrame.first), span.last_step + 1))
        .join(Stream, col(Stream.id) == col(WalFrame.stream_id))
        .where(
            Stream.run_id == run.id,
            WalFrame.attempt == attempt,
            Stream.name == "scalar",
            col(WalFrame.first) + col(WalFrame.n) > span.last_step - last_steps + 1,
        )
    ).one()
    last = int(replayed) - 1
    first = max(span.first_step, last - MEMORY_STEPS + 1)
    if first <= last:
        yield from _older(session, run, span.world, first, last)


def _older(session: Session, run: Run, world: int, first: int, last: int) -> Iterator[Observation]:
    """The series of steps ``first`` to ``last`` as blocks of rank 0, with the events of each stretch."""
    assert run.id is not None
    series = {name: found for name, found in raw_series(session, run.id, None, first, last).items() if len(found[0])}
    rows = session.exec(
        select(StepEvent)
        .where(
            StepEvent.run_id == run.id,
            StepEvent.attempt == run.attempt,
            StepEvent.step >= first,
            StepEvent.step <= last,
        )
        .order_by(col(StepEvent.step), col(StepEvent.id))
    ).all()
    events = [wire.Event(step=row.step, kind=row.kind, detail=row.detail) for row in rows]
    at = [event.step for event in events]
    # Short ones, since a block with a skipped step is judged step by step.
    for begin in range(first, last + 1, _BLOCK_STEPS):
        end = min(begin + _BLOCK_STEPS, last + 1)
        scalars = []
        for name, (steps, values) in series.items():
            low, high = np.searchsorted(steps, (begin, end)).tolist()
            if low < high:
                cut = slice(low, high)
                scalars.append(
                    wire.Scalars(
                        name=name, steps=steps[cut].astype("<i8").tobytes(), values=values[cut].astype("<f8").tobytes()
                    )
                )
        told = tuple(events[bisect_left(at, begin) : bisect_left(at, end)])
        if scalars or told:
            yield Observation(
                run_id=run.id,
                run=run.name,
                attempt=run.attempt,
                rank=0,
                writer="",
                seq=0,
                world=world,
                body=wire.Body(first_step=begin, steps=end - begin, scalars=tuple(scalars), events=told),
                layers={},
            )
