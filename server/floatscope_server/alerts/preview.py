"""What rules would have done in the present attempt of a recorded run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.alerts.keys import framework_of
from floatscope_server.alerts.rehearsal import rehearse
from floatscope_server.models import Attempt, Run, ScalarSeries, StepEvent, Stream, WalFrame
from floatscope_server.observation import Observation
from floatscope_server.query.series import raw_series
from floatscope_server.rules import RuleParameters
from floatscope_server.store.replay import replay

__all__ = ["preview"]

_NEVER = 1 << 62


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
        observations = chain([_older(session, run, span.world, first, min(recent - 1, span.last_step))], observations)
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


def _older(session: Session, run: Run, world: int, first: int, last: int) -> Observation:
    """The series of steps ``first`` to ``last`` as one block of rank 0, with the events of that stretch."""
    assert run.id is not None
    scalars = tuple(
        wire.Scalars(name=name, steps=steps.astype("<i8").tobytes(), values=values.astype("<f8").tobytes())
        for name, (steps, values) in raw_series(session, run.id, None, first, last).items()
        if len(steps)
    )
    rows = session.exec(
        select(StepEvent)
        .where(
            StepEvent.run_id == run.id,
            StepEvent.attempt == run.attempt,
            StepEvent.step >= first,
            StepEvent.step <= last,
        )
        .order_by(col(StepEvent.id))
    )
    return Observation(
        run_id=run.id,
        run=run.name,
        attempt=run.attempt,
        rank=0,
        writer="",
        seq=0,
        world=world,
        body=wire.Body(
            first_step=first,
            steps=last - first + 1,
            scalars=scalars,
            events=tuple(wire.Event(step=row.step, kind=row.kind, detail=row.detail) for row in rows),
        ),
        layers={},
    )
