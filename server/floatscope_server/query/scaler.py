"""The loss scaler of a run: what the rules say of it, and the steps that it skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from floatscope_server.alerts.tuning import parameters_of
from floatscope_server.models import Run, StepEvent
from floatscope_server.query.line import Stretch, canonical_line, total_span
from floatscope_server.query.series import raw_series
from floatscope_server.query.skipped import skipped_steps
from floatscope_server.query.window import TileReader
from floatscope_server.rules.loss_scale import classify
from floatscope_server.rules.record import LOSS_SCALE, record_of
from floatscope_server.rules.scalars import SKIP_WINDOW, ScalarWindow
from floatscope_server.rules.verdict import NO_DATA

__all__ = ["scaler_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    step: int
    rank: int
    kind: str
    detail: Mapping[str, Any]


def scaler_state(
    session: Session, reader: TileReader, run: Run, *, first: int | None, last: int | None, limit: int
) -> dict[str, object]:
    """The loss scaler at the newest step of the canonical line, and what it skipped in steps ``first`` to ``last``.

    ``state`` is that of the rule loss_scale_collapse with the parameters of this run; null where neither a loss scale
    nor a skipped step is known. ``good_steps``: since the last overflow or growth, both of which set the growth tracker
    to 0. ``growth_interval``: good steps before the newest growth, null before one was seen from its beginning.
    ``skipped`` has the newest ``limit`` of the range's ``skips``, newest first.
    """
    assert run.id is not None
    line = canonical_line(session, run.id)
    span = total_span(line)
    events = [] if span is None else _events(session, run.id, line)
    low = 0 if first is None else first
    high = (span[1] if span else -1) if last is None else min(last, span[1] if span else -1)
    shown = [one for one in skipped_steps(session, reader, run.id) if low <= int(str(one["step"])) <= high]
    details: dict[int, list[_Event]] = {}
    for event in events:
        if event.kind == "skipped":
            details.setdefault(event.step, []).append(event)
    rows = [{**one, **_told(details.get(int(str(one["step"])), ()))} for one in reversed(shown[-limit:])]
    skips = [step for step in details if low <= step <= high]
    return {
        **_now(session, run, span, line, events),
        "from": low if span else None,
        "to": high if span else None,
        "skips": len(skips),
        "optimizers": sorted({index for event in events if (index := event.detail.get("optimizer")) is not None}),
        "skipped": rows,
    }


def _events(session: Session, run_id: int, line: Sequence[Stretch]) -> list[_Event]:
    found: list[_Event] = []
    for stretch in line:
        rows = session.exec(
            select(StepEvent.step, StepEvent.rank, StepEvent.kind, StepEvent.detail)
            .where(
                StepEvent.run_id == run_id,
                StepEvent.attempt == stretch.attempt,
                col(StepEvent.kind).in_(("skipped", "scale_changed")),
                StepEvent.step >= stretch.first,
                StepEvent.step <= stretch.last,
            )
            .order_by(col(StepEvent.step), col(StepEvent.id))
        )
        found += [_Event(step=step, rank=rank, kind=kind, detail=detail) for step, rank, kind, detail in rows]
    return found


def _told(events: Sequence[_Event]) -> dict[str, object]:
    """What the scaler said of a step that it skipped."""
    optimizers = sorted({event.detail["optimizer"] for event in events if "optimizer" in event.detail})
    scale = next((event.detail["scale"] for event in events if "scale" in event.detail), None)
    return {"optimizers": optimizers, "scale": scale, "ranks": sorted({event.rank for event in events})}


def _now(
    session: Session, run: Run, span: tuple[int, int] | None, line: Sequence[Stretch], events: Sequence[_Event]
) -> dict[str, object]:
    unknown: dict[str, object] = dict.fromkeys(
        (
            *("step", "state", "loss_scale", "highest_scale", "in_a_row", "window", "window_skips"),
            *("good_steps", "growth_interval"),
        )
    )
    if span is None:
        return unknown
    assert run.id is not None
    # The rules remember so many steps before each of the last ones.
    begin = max(span[0], span[1] - 2 * SKIP_WINDOW)
    series = raw_series(session, run.id, (*LOSS_SCALE, "skipped"), begin, span[1])
    by_step: dict[int, dict[str, float]] = {}
    for name, (steps, values) in series.items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            by_step.setdefault(step, {})[name] = value
    skipped = {event.step for event in events if event.kind == "skipped" and event.step >= begin}
    minimum = {event.step for event in events if event.kind == "skipped" and event.detail.get("at_minimum")}
    if not by_step and not skipped:
        return unknown
    rules = parameters_of(session, run.id)
    window = ScalarWindow(rules, 0)
    state = None
    newest = max(by_step.keys() | skipped)
    for step in sorted(by_step.keys() | skipped):
        scalars = by_step.get(step, {})
        window.learn(scalars)
        now = record_of(
            step,
            scalars,
            skip_event=step in skipped,
            at_minimum=step in minimum,
            seen=window.names,
            previous_scale=window.last_scale,
        )
        if step == newest:
            state = classify(rules.loss_scale_collapse, window.scaler_window(), now).value
        window.push(now, NO_DATA)
    after = window.scaler_window()
    return {
        "step": newest,
        "state": state,
        "loss_scale": window.last_scale,
        "highest_scale": after.high,
        "in_a_row": after.in_a_row,
        "window": SKIP_WINDOW,
        "window_skips": len(after.skips),
        **_growth(events, line, newest),
    }


def _growth(events: Sequence[_Event], line: Sequence[Stretch], newest: int) -> dict[str, object]:
    """Good steps since the tracker was last set to 0, and how many it took to grow. A scale is told at the first step
    that has it, so the tracker was set to 0 at the end of the step before."""
    reset: int | None = None
    interval: int | None = None
    for event in events:
        at = event.step if event.kind == "skipped" else event.step - 1
        grew = event.kind == "scale_changed" and _number(event, "to") > _number(event, "from")
        if grew and reset is not None and at > reset:
            interval = at - reset
        if event.kind == "skipped" or grew:
            reset = at if reset is None else max(reset, at)
    start = line[-1].first - 1 if reset is None else reset
    return {"good_steps": max(0, newest - start), "growth_interval": interval}


def _number(event: _Event, name: str) -> float:
    value = event.detail.get(name)
    return float(value) if isinstance(value, int | float) else math.nan
