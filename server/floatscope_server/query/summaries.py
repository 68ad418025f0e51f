"""The statistics of one step, merged over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlmodel import Session

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.merge import MERGING, merge_ranks
from floatscope_server.models import Run
from floatscope_server.query.frames import FrameCache, summary_frames
from floatscope_server.query.heatmap import in_execution_order, run_layers
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id
from floatscope_server.query.ranks import reach_of

__all__ = ["step_summaries"]


def step_summaries(
    session: Session, cache: FrameCache, run: Run, *, kind: str, step: int, names: Sequence[str] | None
) -> dict[str, object]:
    """One row for each layer: what merges over the ranks as one, and what does not rank by rank.

    ``names`` picks layers by name. Unknown kinds: ``BadQueryError``.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    stream = stream_id(session, run.id, f"layer/{kind}")
    stretch = next((s for s in canonical_line(session, run.id) if s.first <= step <= s.last), None)
    reach = reach_of(session, run, None if stretch is None else stretch.attempt)
    answer: dict[str, object] = {
        "kind": kind,
        "step": step,
        "world": reach.world,
        "complete": False,
        "missing_ranks": reach.missing_from(()),
        "layers": [],
    }
    if stream is None or stretch is None:
        return answer
    table = run_layers(session, run.id)
    wanted = None if names is None else set(names)
    window = Stretch(attempt=stretch.attempt, first=step, last=step)
    frames = [(s.rank, s.content.between(step, step)) for s in summary_frames(session, cache, stream, window)]
    merged = merge_ranks(frames, np.array([step]), len(table))
    apart = {
        rank: {
            index
            for of, frame in frames
            if of == rank and frame.placement not in MERGING
            for index in frame.layers.tolist()
        }
        for rank in merged.alone
    }
    rows: list[dict[str, object]] = []
    for layer in in_execution_order(table):
        if wanted is not None and layer.name not in wanted:
            continue
        together = merged.present[0, layer.index]
        alone = {
            str(rank): _row(frame, layer.index) for rank, frame in merged.alone.items() if layer.index in apart[rank]
        }
        if together or alone:
            merged_row = None
            if together:
                rank = int(merged.argmax[0, layer.index])
                merged_row = {**_row(merged.together, layer.index), "absmax_rank": None if rank < 0 else rank}
            rows.append({"layer": layer.name, "index": layer.index, "merged": merged_row, "ranks": alone})
    # A rank may read less often than another.
    missing = reach.missing_from({rank for rank, _ in frames})
    return {**answer, "complete": not missing, "missing_ranks": missing, "layers": rows}


def _row(frame: Frame, layer: int) -> dict[str, object]:
    row: dict[str, object] = {}
    for name in FIELD_DTYPES:
        value = frame.fields[name][0, layer].item()
        row[name] = None if isinstance(value, float) and np.isnan(value) else value
    return row
