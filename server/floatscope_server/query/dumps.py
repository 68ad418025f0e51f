"""What flight recorders held when something broke."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Row, Select
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, func

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import DumpPart, Run
from floatscope_server.query.layertable import run_layers
from floatscope_server.store.framed import bodies_of

__all__ = ["DumpTooLargeError", "UnknownDumpError", "dump_bodies", "dump_content", "dump_list"]

_MOST_BYTES = 48 << 20
"""Of the statistics, histograms and scalars in one answer. As text they take about three times as much."""

_ENTRY_BYTES = 256
"""What an entry takes at least."""


class UnknownDumpError(LookupError):
    """The run has no dump of this name any more, or nothing in it of the rank that was asked for."""


class DumpTooLargeError(ValueError):
    """More was asked for than one answer can hold."""


def dump_list(session: Session, run: Run) -> list[dict[str, Any]]:
    """The dumps of ``run``, oldest first. ``complete``: every piece of every rank has arrived. ``removed``: what was in
    it had to go for others."""
    rows = session.execute(
        select_columns(
            col(DumpPart.dump),
            col(DumpPart.rank),
            col(DumpPart.kind),
            col(DumpPart.alert_id),
            col(DumpPart.step),
            func.min(DumpPart.first_step),
            func.max(DumpPart.last_step),
            func.count(),
            func.max(DumpPart.parts),
            func.sum(func.length(DumpPart.data)),
            func.min(DumpPart.created_at),
        )
        .where(col(DumpPart.run_id) == run.id)
        .group_by(
            col(DumpPart.dump),
            col(DumpPart.writer),
            col(DumpPart.rank),
            col(DumpPart.kind),
            col(DumpPart.alert_id),
            col(DumpPart.step),
        )
        .order_by(func.min(DumpPart.created_at), col(DumpPart.dump), col(DumpPart.rank))
    )
    dumps: dict[str, dict[str, Any]] = {}
    for name, rank, kind, alert, step, first, last, count, parts, size, created in rows:
        dump = dumps.setdefault(
            name,
            {
                "id": name,
                "kind": kind,
                "alert": alert,
                "step": step,
                "first_step": first,
                "last_step": last,
                "ranks": [],
                "complete": True,
                "removed": True,
                "bytes": 0,
                "created_at": created,
            },
        )
        dump["first_step"], dump["last_step"] = min(dump["first_step"], first), max(dump["last_step"], last)
        if rank not in dump["ranks"]:
            dump["ranks"].append(rank)
        dump["complete"] = dump["complete"] and count == parts
        dump["bytes"] += size
        dump["removed"] = not dump["bytes"]
    return list(dumps.values())


def dump_content(
    session: Session, run: Run, name: str, *, kind: str | None, rank: int | None = None
) -> dict[str, object]:
    """One dump: of each rank the scalars, the statistics, the histograms and the events of every step in it.

    With ``kind`` only the statistics and histograms of that kind of tensor, with ``rank`` only of that rank. A damaged
    piece is left out, and its rank is not ``complete``.
    ``UnknownDumpError`` if there is none, ``DumpTooLargeError`` when it would take the server too much memory.
    """
    listed = _listed(session, run, name, rank)
    assert run.id is not None
    names = {index: layer.name for index, layer in run_layers(session, run.id).layers.items()}
    room = _Room(_MOST_BYTES)
    with session.execute(_parts(run, name, rank)) as parts:
        ranks = [_rank(of_rank, pieces, names, kind, room) for (of_rank, _), pieces in groupby(parts, _writer)]
    return {**listed, "ranks": ranks}


def dump_bodies(
    session: Session, run: Run, name: str, *, kind: str, rank: int | None, histograms: bool
) -> Iterator[tuple[int, int, wire.Body]]:
    """(rank, attempt, body) with nothing but the statistics of ``kind``, or its ``histograms``. Raises as
    ``dump_content``."""
    _listed(session, run, name, rank)
    room = _Room(_MOST_BYTES)
    with session.execute(_parts(run, name, rank)) as parts:
        for part in parts:
            for body in bodies_of(part.data) or ():
                kept = wire.Body(
                    summaries=() if histograms else tuple(one for one in body.summaries if one.kind == kind),
                    histograms=tuple(one for one in body.histograms if one.kind == kind) if histograms else (),
                )
                for summary in kept.summaries:
                    room.take(_ENTRY_BYTES + sum(len(field.data) for field in summary.fields))
                for histogram in kept.histograms:
                    room.take(_ENTRY_BYTES + len(histogram.layers) + len(histogram.counts))
                yield part.rank, part.attempt, kept


def _listed(session: Session, run: Run, name: str, rank: int | None) -> dict[str, Any]:
    listed = next((dump for dump in dump_list(session, run) if dump["id"] == name), None)
    if listed is None or listed["removed"] or (rank is not None and rank not in listed["ranks"]):
        raise UnknownDumpError(name)
    return listed


def _parts(run: Run, name: str, rank: int | None) -> Select[Any]:
    return (
        select_columns(DumpPart.__table__)  # type: ignore[attr-defined]
        .where(
            col(DumpPart.run_id) == run.id,
            col(DumpPart.dump) == name,
            *(() if rank is None else (col(DumpPart.rank) == rank,)),
        )
        .order_by(col(DumpPart.rank), col(DumpPart.writer), col(DumpPart.part))
        .execution_options(yield_per=1)
    )


class _Room:
    """What is left of an answer's bytes."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise DumpTooLargeError


def _writer(part: Row[Any]) -> tuple[int, int]:
    return part.rank, part.writer


def _rank(
    rank: int, parts: Iterable[Row[Any]], names: Mapping[int, str], kind: str | None, room: _Room
) -> dict[str, object]:
    """Piece by piece: only what is shown is in memory."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    summaries: list[dict[str, object]] = []
    histograms: list[dict[str, object]] = []
    events: list[dict[str, object]] = []
    first, count = None, 0
    for part in parts:
        first = first or part
        bodies = bodies_of(part.data)
        count += bodies is not None
        for body in bodies or ():
            for series in body.scalars:
                room.take(2 * _ENTRY_BYTES + 2 * len(series.steps))
                steps, values = np.frombuffer(series.steps, "<i8"), np.frombuffer(series.values, "<f8")
                scalars.setdefault(series.name, []).extend(zip(steps.tolist(), values.tolist(), strict=True))
            for summary in body.summaries:
                if kind is None or summary.kind == kind:
                    room.take(_ENTRY_BYTES + sum(len(field.data) for field in summary.fields))
                    summaries.append(_summary(summary, names))
            for histogram in body.histograms:
                if kind is None or histogram.kind == kind:
                    room.take(_ENTRY_BYTES * (1 + len(histogram.layers) // 4) + len(histogram.counts))
                    histograms.append(_histogram(histogram, names))
            for event in body.events:
                room.take(_ENTRY_BYTES)
                events.append(msgspec.structs.asdict(event))
    assert first is not None
    return {
        "rank": rank,
        "attempt": first.attempt,
        "first_step": first.first_step,
        "last_step": first.last_step,
        "complete": count == first.parts,
        "scalars": scalars,
        "summaries": summaries,
        "histograms": histograms,
        "events": events,
    }


def _summary(summary: wire.Summaries, names: Mapping[int, str]) -> dict[str, object]:
    frame = Frame.of(summary)
    return {
        "kind": summary.kind,
        "first_step": summary.first_step,
        "steps": summary.steps,
        "layers": [names[index] for index in frame.layers.tolist()],
        "fields": dict(frame.fields),
    }


def _histogram(part: wire.Histograms, names: Mapping[int, str]) -> dict[str, object]:
    layers, first = np.frombuffer(part.layers, "<u4").tolist(), np.frombuffer(part.first, "<u2").tolist()
    ends = np.frombuffer(part.length, "<u2").cumsum(dtype=np.int64)
    counts = np.split(np.frombuffer(part.counts, "<u8"), ends[:-1])
    sampled = np.frombuffer(part.sampled, "<i8").tolist()
    return {
        "kind": part.kind,
        "first_step": part.first_step,
        "steps": part.steps,
        "rows": [
            {"layer": names[index], "first": start, "sampled": elements, "counts": row}
            for index, start, elements, row in zip(layers, first, sampled, counts, strict=True)
        ],
    }
