"""A layer's exponent histograms over steps."""

from __future__ import annotations

import numpy as np
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.models import LayerRow, Run
from floatscope_server.query.dump_window import DumpWindow
from floatscope_server.query.histpiece import HistPiece
from floatscope_server.query.histtails import HistTails
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id
from floatscope_server.query.pool import cell_size
from floatscope_server.store.hist_merge import merge_histograms
from floatscope_server.store.parts import MAX_STEP
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.ragged import starts_of

__all__ = ["UnknownLayerError", "layer_histogram"]

_NOTE = (
    "bin i counts finite non-zero magnitudes in (edge(i), edge(i + 1)]; edge(i) is the float32 with bits i << 22, "
    "that is 2^k and 1.5 * 2^k in turn"
)


class UnknownLayerError(LookupError):
    """The run has no layer of this name."""


def layer_histogram(
    session: Session,
    run: Run,
    *,
    layer: str,
    kind: str,
    first: int | None,
    last: int | None,
    columns: int,
    dump: DumpWindow | None = None,
    tails: HistTails | None = None,
) -> dict[str, object]:
    """At most ``columns`` columns, ``cell`` steps each; ``first`` of a column is the bin of ``counts[0]``.

    ``cell`` is 1 where every histogram is a column of its own: one for each stretch of steps of which it is stored.
    Else a column is the sum of those that begin in its cell. It adds up the ranks where their rows merge, and is
    ``complete`` when each has reported its own; else it is that of the lowest rank. A stretch that ranks have cut
    differently is one column. With ``dump`` it is what that holds. ``tails`` are those of the server.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    row = session.exec(select(LayerRow).where(LayerRow.run_id == run.id, LayerRow.name == layer)).one_or_none()
    if row is None:
        raise UnknownLayerError(layer)
    stream = stream_id(session, run.id, f"hist/{kind}")
    low, high = 0 if first is None else first, MAX_STEP if last is None else last
    pieces: list[HistPiece] = []
    for stretch in canonical_line(session, run.id) if stream is not None and dump is None else []:
        assert stream is not None
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, low), last=min(stretch.last, high))
        if part.first <= part.last:
            pieces.append(HistPiece.of(session, tails or HistTails(), run, stream, part, [row.idx]))
    if dump is None:
        cell, found = _rows(pieces, columns)
    else:
        cell, found = _rows_of(dump, row.idx, low, high, columns)
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


def _rows_of(dump: DumpWindow, layer: int, first: int, last: int, columns: int) -> tuple[int, HistRows]:
    """Those of a dump, as ``_rows``: its ranks have all that they will have."""
    found = merge_histograms(dump.histograms, MAX_STEP, layer)
    found = found.take(np.flatnonzero((found.steps >= first) & (found.steps <= last)))
    if len(found.steps) <= columns:
        return 1, found
    cell = cell_size(int(found.steps[0]), int(found.steps[-1]), columns)
    return cell, found.pooled(cell)


def _rows(pieces: list[HistPiece], columns: int) -> tuple[int, HistRows]:
    """Steps of a cell, and a row for each column."""
    if sum(piece.most_rows() for piece in pieces) <= columns * HISTOGRAM_BLOCK:
        # An attempt's last histogram may reach over the first step of the next one.
        all_rows = HistRows.concatenated([HistRows.none(), *(piece.rows() for piece in pieces)])
        if len(all_rows.steps) <= columns:
            return 1, all_rows
    spans = [span for piece in pieces if (span := piece.span()) is not None]
    cell = cell_size(min(low for low, _ in spans), max(high for _, high in spans), columns)
    return cell, HistRows.concatenated([piece.records(cell) for piece in pieces]).pooled(cell)
