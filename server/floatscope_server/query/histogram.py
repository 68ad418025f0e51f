"""A layer's exponent histograms over steps."""

from __future__ import annotations

from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.models import LayerRow, Run
from floatscope_server.query.frames import stored_frames
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id
from floatscope_server.query.pool import cell_size
from floatscope_server.query.ranks import reach_of
from floatscope_server.query.sealed_histograms import SealedHistograms
from floatscope_server.store.framed import histograms_of
from floatscope_server.store.hist_merge import merge_histograms
from floatscope_server.store.parts import MAX_STEP, MAX_STEPS
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.ragged import starts_of

__all__ = ["UnknownLayerError", "layer_histogram", "tail_rows"]

_NOTE = (
    "bin i counts finite non-zero magnitudes in (edge(i), edge(i + 1)]; edge(i) is the float32 with bits i << 22, "
    "that is 2^k and 1.5 * 2^k in turn"
)


class UnknownLayerError(LookupError):
    """The run has no layer of this name."""


def layer_histogram(
    session: Session, run: Run, *, layer: str, kind: str, first: int | None, last: int | None, columns: int
) -> dict[str, object]:
    """At most ``columns`` columns, ``cell`` steps each; ``first`` of a column is the bin of ``counts[0]``.

    ``cell`` is 1 where every histogram is a column of its own: one for each stretch of steps of which it is stored.
    Else a column is the sum of those that begin in its cell. It adds up the ranks where their rows merge, and is
    ``complete`` when each has reported its own; else it is that of the lowest rank. A stretch that ranks have cut
    differently is one column.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    row = session.exec(select(LayerRow).where(LayerRow.run_id == run.id, LayerRow.name == layer)).one_or_none()
    if row is None:
        raise UnknownLayerError(layer)
    stream = stream_id(session, run.id, f"hist/{kind}")
    low, high = 0 if first is None else first, MAX_STEP if last is None else last
    pieces: list[tuple[Stretch, SealedHistograms, HistRows]] = []
    for stretch in canonical_line(session, run.id) if stream is not None else []:
        assert stream is not None
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, low), last=min(stretch.last, high))
        if part.first <= part.last:
            sealed = SealedHistograms(session, stream, part.attempt, [row.idx // HISTOGRAM_BLOCK])
            pieces.append((part, sealed, tail_rows(session, run, stream, part, row.idx)))
    cell, found = _rows(pieces, row.idx, columns)
    starts = starts_of(found.length)
    shown = [
        {
            "first_step": int(found.steps[i] + found.ahead[i]),
            "steps": int(found.span[i]),
            "first": int(found.first[i]),
            "sampled": int(found.sampled[i]),
            "counts": found.counts[starts[i] : starts[i] + found.length[i]].tolist(),
            "complete": bool(found.complete[i]),
        }
        for i in range(len(found.steps))
    ]
    return {
        "kind": kind,
        "layer": layer,
        "first_bin": int(found.first[found.length > 0].min()) if found.length.any() else None,
        "cell": cell,
        "columns": shown,
        "edges_note": _NOTE,
    }


def tail_rows(session: Session, run: Run, stream: int, part: Stretch, layer: int | None) -> HistRows:
    """What is not sealed of ``part``, merged over the ranks; of ``layer`` or of all."""
    frames = stored_frames(session, stream, part, histograms_of, longest=MAX_STEPS)
    complete_to = reach_of(session, run, part.attempt).complete_to
    return merge_histograms(((stored.rank, stored.content) for stored in frames), complete_to, layer)


def _rows(pieces: list[tuple[Stretch, SealedHistograms, HistRows]], layer: int, columns: int) -> tuple[int, HistRows]:
    """Steps of a cell, and a row for each column."""
    if sum(sealed.most_rows(part.first, part.last) for part, sealed, _ in pieces) <= columns * HISTOGRAM_BLOCK:
        single = [
            HistRows.joined([sealed.touching(part.first, part.last, layer), tail]) for part, sealed, tail in pieces
        ]
        # An attempt's last histogram may reach over the first step of the next one.
        all_rows = HistRows.concatenated([HistRows.none(), *single])
        if len(all_rows.steps) <= columns:
            return 1, all_rows
    spans = [span for part, sealed, _ in pieces if (span := sealed.span(part.first, part.last)) is not None]
    spans += [(int(tail.steps[0]), int(tail.steps[-1])) for _, _, tail in pieces if len(tail.steps)]
    first, last = min(low for low, _ in spans), max(high for _, high in spans)
    cell = cell_size(first, last, columns)
    parts = [HistRows.none()]
    for part, sealed, tail in pieces:
        parts += [sealed.records(part.first, part.last, cell, layer), tail]
    return cell, HistRows.concatenated(parts).pooled(cell)
