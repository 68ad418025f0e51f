"""Skipped optimizer steps and the layer at which the numbers broke, from the summaries stored at that step."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import StepEvent
from floatscope_server.query.frames import stored_frames
from floatscope_server.query.heatmap import run_layers
from floatscope_server.query.line import Stretch, canonical_line, stream_id
from floatscope_server.rules.producer import Evidence, Producer, find
from floatscope_server.rules.tensors import Block, LayerTable, Rows
from floatscope_server.store.parts import MAX_STEPS
from floatscope_server.store.replay import SUMMARIES

__all__ = ["skipped_steps"]


def skipped_steps(session: Session, run_id: int) -> list[dict[str, object]]:
    """[{step, layer, rank}] of the canonical line; ``layer`` is None if every stored summary was finite.

    The layer is the one that the alert on the step names (``rules.producer``).
    """
    table = LayerTable(run_layers(session, run_id))
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
        for step, same in groupby(events, key=lambda event: event.step):
            culprit = _culprit(session, table, run_id, stretch.attempt, step)
            if culprit is None:
                found.append({"step": step, "layer": None, "rank": next(same).rank})
            else:
                rank, producer = culprit
                assert producer.first is not None
                found.append({"step": step, "layer": table.name(producer.first), "rank": rank})
    return found


def _culprit(session: Session, table: LayerTable, run_id: int, attempt: int, step: int) -> tuple[int, Producer] | None:
    """(rank, producer) of the rank whose own values tell most; the lowest one of several."""
    by_rank: dict[int, dict[str, Rows]] = {}
    at = Stretch(attempt=attempt, first=step, last=step)
    for kind in wire.KINDS:
        stream = stream_id(session, run_id, f"layer/{kind}")
        if stream is None:
            continue
        for stored in stored_frames(session, stream, at, SUMMARIES.decode, longest=MAX_STEPS):
            rows = Block(stored.content).rows(step)
            if rows is not None:
                by_rank.setdefault(stored.rank, {})[kind] = rows
    found = []
    for rank, rows_of in sorted(by_rank.items()):
        evidence = Evidence(
            rows=rows_of,
            broken={kind: rows.nonfinite for kind, rows in rows_of.items()},
            weights=np.full(table.size, -1, np.int64),
            loss_nonfinite=False,
            reduced=len(by_rank) > 1,
        )
        producer = find(table, evidence)
        if producer is not None:
            found.append((rank, producer))
    return max(found, key=lambda item: item[1].certainty, default=None)
