"""What flight recorders held when something broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import DumpPart, Run
from floatscope_server.query.heatmap import run_layers

__all__ = ["UnknownDumpError", "dump_content", "dump_list"]

_BODIES = msgspec.msgpack.Decoder(list[bytes])
_BODY = msgspec.msgpack.Decoder(wire.Body)


class UnknownDumpError(LookupError):
    """The run has no dump of this name."""


def dump_list(session: Session, run: Run) -> list[dict[str, Any]]:
    """The dumps of ``run``, oldest first. ``complete``: every piece of every rank has arrived."""
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
        .group_by(col(DumpPart.dump), col(DumpPart.writer))
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
                "bytes": 0,
                "created_at": created,
            },
        )
        dump["first_step"], dump["last_step"] = min(dump["first_step"], first), max(dump["last_step"], last)
        dump["ranks"].append(rank)
        dump["complete"] = dump["complete"] and count == parts
        dump["bytes"] += size
    return list(dumps.values())


def dump_content(session: Session, run: Run, name: str, *, kind: str | None) -> dict[str, object]:
    """One dump: of each rank the scalars, the statistics, the histograms and the events of every step in it.

    With ``kind`` only the statistics and histograms of that kind of tensor. ``UnknownDumpError`` if there is none.
    """
    listed = next((dump for dump in dump_list(session, run) if dump["id"] == name), None)
    if listed is None:
        raise UnknownDumpError(name)
    assert run.id is not None
    names = {index: layer.name for index, layer in run_layers(session, run.id).items()}
    parts = session.exec(
        select(DumpPart)
        .where(DumpPart.run_id == run.id, DumpPart.dump == name)
        .order_by(col(DumpPart.rank), col(DumpPart.writer), col(DumpPart.part))
    )
    return {
        **listed,
        "ranks": [_rank(rank, list(pieces), names, kind) for (rank, _), pieces in groupby(parts, _writer)],
    }


def _writer(part: DumpPart) -> tuple[int, int]:
    return part.rank, part.writer


def _rank(rank: int, parts: Sequence[DumpPart], names: Mapping[int, str], kind: str | None) -> dict[str, object]:
    bodies = [_BODY.decode(data) for part in parts for data in _BODIES.decode(part.data)]
    scalars: dict[str, list[tuple[int, float]]] = {}
    for series in (series for body in bodies for series in body.scalars):
        steps, values = np.frombuffer(series.steps, "<i8"), np.frombuffer(series.values, "<f8")
        scalars.setdefault(series.name, []).extend(zip(steps.tolist(), values.tolist(), strict=True))
    return {
        "rank": rank,
        "attempt": parts[0].attempt,
        "first_step": parts[0].first_step,
        "last_step": parts[0].last_step,
        "complete": len(parts) == parts[0].parts,
        "scalars": scalars,
        "summaries": [
            _summary(summary, names)
            for body in bodies
            for summary in body.summaries
            if kind is None or summary.kind == kind
        ],
        "histograms": [
            _histogram(part, names) for body in bodies for part in body.histograms if kind is None or part.kind == kind
        ],
        "events": [msgspec.structs.asdict(event) for body in bodies for event in body.events],
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
