"""Skipped optimizer steps and the layer at which the numbers broke."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
from sqlalchemy import select as select_columns
from sqlmodel import Session, col

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import StepEvent
from floatscope_server.query.frames import summary_frames_at
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import canonical_line
from floatscope_server.query.summaries import sealed_frame
from floatscope_server.query.window import Source, State, TileReader, source_of
from floatscope_server.rules.producer import Evidence, Producer, find
from floatscope_server.rules.tensors import Block, LayerTable, Rows
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["skipped_steps"]

_COMPUTED = 200
"""Steps at either end of what the rules have not judged yet for which the layer is looked up meanwhile."""


def skipped_steps(session: Session, reader: TileReader, run_id: int) -> list[dict[str, object]]:
    """[{step, layer, rank, optimizers, scales}] of the canonical line; ``layer`` is None if every stored summary was
    finite, ``optimizers`` are the numbers of those that were skipped and ``scales`` the loss scale of each.

    The layer is the one that the alert on the step names: it was stored when the rules judged the step. Where they have
    not yet, the summaries of the step are read; those of a sealed one are what all ranks gave together.
    """
    table: LayerTable | None = None
    found: list[dict[str, object]] = []
    for stretch in canonical_line(session, run_id):
        columns = (StepEvent.step, StepEvent.rank, StepEvent.layer, StepEvent.certainty, StepEvent.detail)
        events = session.execute(
            select_columns(*map(col, columns))
            .where(
                col(StepEvent.run_id) == run_id,
                col(StepEvent.attempt) == stretch.attempt,
                col(StepEvent.kind) == "skipped",
                col(StepEvent.step) >= stretch.first,
                col(StepEvent.step) <= stretch.last,
            )
            .order_by(col(StepEvent.step), col(StepEvent.rank))
        )
        unjudged: dict[int, dict[str, object]] = {}
        for step, group in groupby(events, key=lambda event: event[0]):
            same = list(group)
            judged = [(certainty, rank, layer) for _, rank, layer, certainty, _ in same if certainty is not None]
            _, rank, layer = max(judged, key=lambda item: item[0], default=(0, same[0][1], None))
            # Several scalers may skip the same step, each the optimizers that it serves.
            scales = {detail["optimizer"]: detail.get("scale") for *_, detail in same if "optimizer" in detail}
            numbers = sorted(scales)
            told = {"optimizers": numbers, "scales": [scales[number] for number in numbers]}
            found.append({"step": step, "layer": layer, "rank": rank, **told})
            if not judged:
                unjudged[step] = found[-1]
        if unjudged:
            table = table or LayerTable(run_layers(session, run_id).layers)
            steps = list(unjudged)
            if len(steps) > 2 * _COMPUTED:
                steps = steps[:_COMPUTED] + steps[-_COMPUTED:]
            for step, (rank, producer) in _culprits(session, reader, table, run_id, stretch.attempt, steps).items():
                assert producer.first is not None
                unjudged[step] |= {"layer": table.name(producer.first), "rank": rank}
    return found


def _culprits(
    session: Session, reader: TileReader, table: LayerTable, run_id: int, attempt: int, steps: Sequence[int]
) -> dict[int, tuple[int, Producer]]:
    """(rank, producer) of the rank whose own values tell most, the lowest one of several, by step."""
    wanted = np.array(steps, np.int64)
    tensors: dict[int, dict[int, dict[str, Rows]]] = {step: {} for step in steps}
    for kind in wire.KINDS:
        source = source_of(session, run_id, f"layer/{kind}")
        if source is None:
            continue
        for rank, frame in _frames(session, reader, source, table.size, attempt, wanted):
            block = Block(kind, frame)
            low, high = np.searchsorted(wanted, (block.first_step, block.first_step + block.steps))
            for step in steps[low:high]:
                rows = block.rows(step)
                assert rows is not None
                of_rank = tensors[step].setdefault(rank, {})
                of_rank[kind] = of_rank[kind].joined(rows) if kind in of_rank else rows
    found: dict[int, tuple[int, Producer]] = {}
    for step, by_rank in tensors.items():
        for rank, parts in sorted(by_rank.items()):
            rows_of = {kind: rows.one_each() for kind, rows in parts.items()}
            evidence = Evidence(
                rows=rows_of,
                broken={kind: rows.nonfinite for kind, rows in rows_of.items()},
                weights=np.full(table.size, -1, np.int64),
                loss_nonfinite=False,
                reduced=len(by_rank) > 1,
            )
            producer = find(table, evidence)
            if producer is not None and (step not in found or producer.certainty > found[step][1].certainty):
                found[step] = (rank, producer)
    return found


def _frames(
    session: Session, reader: TileReader, source: Source, layers: int, attempt: int, steps: npt.NDArray[np.int64]
) -> Iterator[tuple[int, Frame]]:
    """(rank, frame) of what touches ``steps``; the rank of what is sealed is the one of the largest magnitude."""
    state = source.states.get(attempt, State())
    sealed = int(np.searchsorted(steps, state.sealed))
    for step in steps[:sealed].tolist():
        frame, planes = sealed_frame(session, reader, source, attempt, step, np.arange(layers))
        ranks = planes[Stat.ABSMAX, Agg.RANK]
        yield 0 if np.isnan(ranks).all() else int(np.nanmax(ranks)), frame
    if sealed < len(steps):
        for stored in summary_frames_at(session, reader.frames, source.stream, attempt, steps[sealed:]):
            yield stored.rank, stored.content
