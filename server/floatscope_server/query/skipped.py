"""Skipped optimizer steps and the layer at which the numbers broke, from the summaries stored at that step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import StepEvent
from floatscope_server.query.fields import Frame
from floatscope_server.query.frames import FrameCache, summary_frames
from floatscope_server.query.heatmap import run_layers
from floatscope_server.query.line import Stretch, canonical_line, stream_id

__all__ = ["skipped_steps"]

# Where a value that is not finite is seen first: forward in execution order, then backward against it. Gradients of
# parameters come last: their layer is one that the trouble has reached, not always the one that made it.
_SEARCH = (("act_in", 1), ("act", 1), ("act_grad", -1), ("grad", -1))


def skipped_steps(session: Session, cache: FrameCache, run_id: int) -> list[dict[str, object]]:
    """[{step, layer, rank}] of the canonical line; ``layer`` is None if every stored summary was finite."""
    layers = run_layers(session, run_id)
    found: list[dict[str, object]] = []
    for stretch in canonical_line(session, run_id):
        events = session.exec(
            select(StepEvent)
            .where(
                StepEvent.run_id == run_id,
                StepEvent.attempt == stretch.attempt,
                StepEvent.kind == "skipped",
                StepEvent.step >= stretch.first,
                StepEvent.step <= stretch.last,
            )
            .order_by(col(StepEvent.step), col(StepEvent.rank))
        ).all()
        for step in sorted({event.step for event in events}):
            culprit = _culprit(session, cache, run_id, stretch.attempt, step, layers)
            rank = min(event.rank for event in events if event.step == step)
            if culprit is None:
                found.append({"step": step, "layer": None, "rank": rank})
            else:
                found.append({"step": step, "layer": layers[culprit[0]].name, "rank": culprit[1]})
    return found


def _culprit(
    session: Session,
    cache: FrameCache,
    run_id: int,
    attempt: int,
    step: int,
    layers: Mapping[int, wire.Layer],
) -> tuple[int, int] | None:
    """(layer, rank) of the first non-finite summary of ``step``."""
    for kind, direction in _SEARCH:
        stream = stream_id(session, run_id, f"layer/{kind}")
        if stream is None:
            continue
        at = Stretch(attempt=attempt, first=step, last=step)
        broken = [
            (layer, stored.rank)
            for stored in summary_frames(session, cache, stream, at)
            for layer in _nonfinite(stored.content, step)
        ]
        if broken:
            return min(broken, key=lambda b: (direction * _place(layers[b[0]]), b[1]))
    return None


def _nonfinite(frame: Frame, step: int) -> Iterable[int]:
    rows = frame.nonfinite[step - frame.first_step] > 0
    broken: list[int] = frame.layers[np.flatnonzero(rows)].tolist()
    return broken


def _place(layer: wire.Layer) -> int:
    """Execution order; a layer whose order is not known goes by its index."""
    return layer.order if layer.order >= 0 else layer.index
