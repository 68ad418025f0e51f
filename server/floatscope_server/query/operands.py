"""Operands that are cast under a scale of their own: the newest scale and amax of each, and their history."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.models import Run
from floatscope_server.query.layers import Reading
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import BadQueryError, canonical_line, span_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.tiles.codec import MISSING
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["operand_history", "scaled_operands"]

_OWN_SCALE = frozenset({"static", "delayed", "dynamic"})
_NEWEST = (Stat.ABSMAX, Stat.SCALE, Stat.NANS, Stat.INFS, Stat.UNDER, Stat.OVER_HIGH)


def _cast(layer: wire.Layer) -> list[wire.Operand]:
    return [o for o in layer.operands if o.role == "cast" and o.scaling in _OWN_SCALE and o.format in formats]


def scaled_operands(session: Session, reader: TileReader, run: Run) -> list[dict[str, object]]:
    """Of each operand with a scale of its own the newest step that was read: ``absmax``, the ``scale`` it is
    multiplied by, and ``share`` = absmax x scale / the format's largest number (1: at the limit).

    Layers come in execution order. What was not read is null.
    """
    assert run.id is not None
    table = run_layers(session, run.id)
    by_kind: dict[str, list[tuple[wire.Layer, wire.Operand]]] = {}
    for layer in table.ordered:
        for operand in _cast(layer):
            by_kind.setdefault(operand.kind, []).append((layer, operand))
    found: dict[tuple[int, str], dict[str, object]] = {}
    for kind, cast in by_kind.items():
        layers = np.array(sorted(layer.index for layer, _ in cast), np.intp)
        source = source_of(session, run.id, f"layer/{kind}")
        latest = None
        if source is not None:
            wanted = [(stat, Agg.VALUE) for stat in _NEWEST]
            latest = reader.latest(session, source, run.attempt, wanted=wanted, layers=layers)
        for layer, operand in cast:
            at = int(np.searchsorted(layers, layer.index))
            step = -1 if latest is None else int(latest.steps[at])
            values = {
                stat: None if latest is None or step < 0 else _known(latest.planes[stat, Agg.VALUE][at, 0])
                for stat in _NEWEST
            }
            absmax, scale = values[Stat.ABSMAX], values[Stat.SCALE]
            nans, infs = values[Stat.NANS], values[Stat.INFS]
            found[layer.index, kind] = {
                "layer": layer.name,
                "index": layer.index,
                "kind": kind,
                "format": operand.format,
                "scaling": operand.scaling,
                "step": None if step < 0 else step,
                "absmax": absmax,
                "scale": scale,
                "share": None if absmax is None or scale is None else absmax * scale / formats[operand.format].max,
                "nonfinite": None if nans is None or infs is None else int(nans + infs),
                "underflow": values[Stat.UNDER],
                "overflow": values[Stat.OVER_HIGH],
            }
    return [found[layer.index, o.kind] for layer in table.ordered for o in _cast(layer)]


def operand_history(
    session: Session,
    reader: TileReader,
    run: Run,
    *,
    layer: str,
    kind: str,
    first: int | None,
    last: int | None,
    points: int,
) -> Reading:
    """One operand over the steps in at most ``points`` cells: ``absmax`` and ``headroom`` (bits from absmax x scale to
    the format's largest number) with mean, least and largest of each cell.

    ``scale`` is there where cells are single steps: it is kept by step only. ``BadQueryError`` if the layer has no such
    operand.
    """
    assert run.id is not None
    table = run_layers(session, run.id)
    entry = next((one for one in table.layers.values() if layer in (one.name, str(one.index))), None)
    operand = None if entry is None else next((o for o in _cast(entry) if o.kind == kind), None)
    if entry is None or operand is None:
        raise BadQueryError(f"the run has no scaled operand {kind[:20]!r} of a layer {layer[:80]!r}")
    line = canonical_line(session, run.id)
    span, source = span_of(line, first, last), source_of(session, run.id, f"layer/{kind}")
    meta: dict[str, object] = {
        "layer": entry.name,
        "index": entry.index,
        "kind": kind,
        "format": operand.format,
        "scaling": operand.scaling,
        "limit": formats[operand.format].max,
        "cell": 1,
    }
    empty = np.empty(0, np.float32)
    if span is None or source is None:
        parts = {f"{name}/{key}": empty for name in ("absmax", "headroom") for key in ("values", "min", "max")}
        return Reading(meta=meta, arrays={"steps": np.empty(0, np.int64), **parts, "scale": empty})
    cell = cell_size(*span, points)
    whole = [(stat, agg) for stat in (Stat.ABSMAX, Stat.LOG2_AMAX) for agg in (Agg.MEAN, Agg.MIN, Agg.MAX)]
    window = reader.window(
        session,
        source,
        line,
        first=span[0],
        last=span[1],
        cell=cell,
        wanted=[*whole, *([(Stat.SCALE, Agg.VALUE)] if cell == 1 else [])],
        layers=np.array([entry.index], np.intp),
    )
    planes = {what: plane[0].astype(np.float32) for what, plane in window.planes.items()}
    seen = np.flatnonzero(~np.isnan(planes[Stat.ABSMAX, Agg.MAX]))
    top = np.float32(math.log2(formats[operand.format].max))

    def of(stat: Stat, agg: Agg) -> npt.NDArray[np.float32]:
        plane: npt.NDArray[np.float32] = planes[stat, agg][seen]
        return plane

    arrays: dict[str, npt.NDArray[np.generic]] = {
        "steps": (span[0] // cell + seen) * cell,
        "absmax/values": of(Stat.ABSMAX, Agg.MEAN),
        "absmax/min": of(Stat.ABSMAX, Agg.MIN),
        "absmax/max": of(Stat.ABSMAX, Agg.MAX),
        # Little headroom is a large magnitude.
        "headroom/values": top - of(Stat.LOG2_AMAX, Agg.MEAN),
        "headroom/min": top - of(Stat.LOG2_AMAX, Agg.MAX),
        "headroom/max": top - of(Stat.LOG2_AMAX, Agg.MIN),
        "scale": of(Stat.SCALE, Agg.VALUE) if cell == 1 else np.full(len(seen), MISSING, np.float32),
    }
    return Reading(meta={**meta, "cell": cell}, arrays=arrays)


def _known(value: np.generic) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
