"""A layer's exponent histograms over steps."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.models import LayerRow, Run
from floatscope_server.query.frames import stored_frames
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id
from floatscope_server.store.parts import MAX_STEP, MAX_STEPS
from floatscope_server.store.replay import HISTOGRAMS

__all__ = ["UnknownLayerError", "layer_histogram"]

_NOTE = (
    "bin i counts finite non-zero magnitudes in (edge(i), edge(i + 1)]; edge(i) is the float32 with bits i << 22, "
    "that is 2^k and 1.5 * 2^k in turn"
)


class UnknownLayerError(LookupError):
    """The run has no layer of this name."""


def layer_histogram(
    session: Session, run: Run, *, layer: str, kind: str, first: int | None, last: int | None
) -> dict[str, object]:
    """One column per stored histogram, from the lowest rank that has any; ``first`` is the bin of ``counts[0]``."""
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    row = session.exec(select(LayerRow).where(LayerRow.run_id == run.id, LayerRow.name == layer)).one_or_none()
    if row is None:
        raise UnknownLayerError(layer)
    by_rank: defaultdict[int, dict[int, dict[str, object]]] = defaultdict(dict)
    stream = stream_id(session, run.id, f"hist/{kind}")
    low, high = 0 if first is None else first, MAX_STEP if last is None else last
    for stretch in canonical_line(session, run.id) if stream is not None else []:
        assert stream is not None
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, low), last=min(stretch.last, high))
        if part.first > part.last:
            continue
        for stored in stored_frames(session, stream, part, HISTOGRAMS.decode, longest=MAX_STEPS):
            column = _column(stored.content, row.idx)
            if column is not None:
                by_rank[stored.rank][stored.first] = column
    columns = [column for _, column in sorted(by_rank[min(by_rank)].items())] if by_rank else []
    firsts = [column["first"] for column in columns if isinstance(column["first"], int) and column["counts"]]
    return {
        "kind": kind,
        "layer": layer,
        "first_bin": min(firsts, default=None),
        "columns": columns,
        "edges_note": _NOTE,
    }


def _column(part: wire.Histograms, layer: int) -> dict[str, object] | None:
    rows = np.flatnonzero(np.frombuffer(part.layers, "<u4") == layer)
    if not len(rows):
        return None
    at = int(rows[0])
    length = np.frombuffer(part.length, "<u2").astype(np.int64)
    start = int(length[:at].sum())
    counts = np.frombuffer(part.counts, "<u8")[start : start + int(length[at])]
    return {
        "first_step": part.first_step,
        "steps": part.steps,
        "first": int(np.frombuffer(part.first, "<u2")[at]),
        "sampled": int(np.frombuffer(part.sampled, "<i8")[at]),
        "counts": counts.tolist(),
    }
