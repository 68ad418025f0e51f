"""What is known of single layers: their series, their newest values, what came since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope import wire
from floatscope_server.models import Run
from floatscope_server.query.cells import empty_plane
from floatscope_server.query.dump_window import DumpWindow
from floatscope_server.query.fields import METRICS, Metric
from floatscope_server.query.histogram import UnknownLayerError
from floatscope_server.query.layertable import RunLayers, run_layers
from floatscope_server.query.line import BadQueryError, line_of, span_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.ratio import divided, divisors, require_kind
from floatscope_server.query.series import newest_scalars
from floatscope_server.query.tails import Tails
from floatscope_server.query.window import State, TileReader, source_of

__all__ = ["Arrays", "Reading", "latest_values", "layer_series", "tail_values"]

Arrays = dict[str, npt.NDArray[np.generic]]

_ENVELOPE = {"values": "mean", "min": "min", "max": "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An answer: what it says, and its numbers by name."""

    meta: Mapping[str, object]
    arrays: Arrays

    def content(self) -> dict[str, object]:
        """All of it for JSON: names with a slash are nested."""
        whole: dict[str, object] = dict(self.meta)
        for name, array in self.arrays.items():
            *parents, own = name.split("/")
            at = whole
            for parent in parents:
                inner = at.setdefault(parent, {})
                assert isinstance(inner, dict)
                at = inner
            at[own] = array
        return whole


def layer_series(
    session: Session,
    reader: TileReader,
    run: Run,
    *,
    layer: str,
    kind: str,
    metrics: Sequence[str] | None,
    chosen: str,
    attempt: int | None,
    first: int | None,
    last: int | None,
    points: int,
    dump: DumpWindow | None = None,
) -> Reading:
    """Metrics of one layer in at most ``points`` cells, each with the mean, the least and the largest of its steps; of
    the run, or of a ``dump`` of it."""
    assert run.id is not None
    hows = _metrics(metrics)
    _known_kind(kind)
    for name in hows:
        require_kind(name, kind, dump=dump is not None)
    table = run_layers(session, run.id)
    found = next((entry for entry in table.layers.values() if layer in (entry.name, str(entry.index))), None)
    if found is None:
        raise UnknownLayerError(layer)
    line = line_of(session, run.id, attempt)
    span = span_of(line, first, last) if dump is None else dump.span(first, last)
    source = source_of(session, run.id, f"layer/{kind}")
    meta: dict[str, object] = {
        "kind": kind,
        "layer": found.name,
        "index": found.index,
        "format": chosen,
        "attempt": attempt if dump is None else dump.attempt,
        "units": {name: how.unit for name, how in hows.items()},
        "formats": {name: table.formats(kind, chosen, how)[found.index] for name, how in hows.items()},
    }
    if span is None or (source is None and dump is None):
        return Reading(
            meta={**meta, "first_step": None, "last_step": None, "cell": 1, "resolution": 1, "damaged": 0},
            arrays={
                "steps": np.empty(0, np.int64),
                **{f"{name}/{key}": np.empty(0, np.float32) for name in hows for key in _ENVELOPE},
            },
        )
    cell = cell_size(*span, points)
    wanted = dict.fromkeys(what for how in hows.values() for agg in _ENVELOPE.values() for what in how.wanted(agg))
    layers = np.array([found.index], np.intp)
    if dump is not None:
        window = dump.window(first=span[0], last=span[1], cell=cell, wanted=wanted, layers=layers)
    else:
        assert source is not None
        window = reader.window(
            session, source, line, first=span[0], last=span[1], cell=cell, wanted=wanted, layers=layers
        )
    arrays: Arrays = {"steps": np.arange(span[0] // cell, span[1] // cell + 1) * cell}
    for name, how in hows.items():
        limits = table.limits(kind, chosen, how)[[found.index]]
        by = None
        if how.over is not None:
            by = divisors(session, reader, run.id, line, how, first=span[0], last=span[1], cell=cell, layers=layers)
        for key, agg in _ENVELOPE.items():
            values = how.of(window.planes, agg, limits)
            arrays[f"{name}/{key}"] = (values if by is None else divided(values, by))[0]
    return Reading(
        meta={
            **meta,
            "first_step": span[0],
            "last_step": span[1],
            "cell": cell,
            "resolution": window.resolution,
            "damaged": window.damaged,
        },
        arrays=arrays,
    )


def latest_values(
    session: Session,
    reader: TileReader,
    run: Run,
    *,
    kind: str,
    metrics: Sequence[str] | None,
    chosen: str,
    names: Sequence[str] | None,
    tails: Tails | None = None,
) -> Reading:
    """The newest values of each layer in the present attempt, and of each scalar; ``tails`` are those of the server."""
    assert run.id is not None
    hows = _metrics(metrics, _ALONE)
    _known_kind(kind)
    table = run_layers(session, run.id)
    listed = _listed(table, names)
    layers = np.array([layer.index for layer in listed], np.intp)
    source = source_of(session, run.id, f"layer/{kind}")
    arrays: Arrays = {"layers": layers.astype(np.int64)}
    wanted = {what for how in hows.values() for what in how.wanted("worst")}
    if source is None:
        steps, planes = np.full(len(layers), -1, np.int64), {what: empty_plane((len(layers), 1)) for what in wanted}
    else:
        latest = reader.latest(session, source, run.attempt, wanted=wanted, layers=layers)
        steps, planes = latest.steps, latest.planes
    arrays["steps"] = steps
    for name, how in hows.items():
        arrays[f"values/{name}"] = how.of(planes, "worst", table.limits(kind, chosen, how)[layers])[:, 0]
    scalars = {
        name: {"step": step, "value": value} for name, (step, value) in newest_scalars(session, run.id, tails).items()
    }
    return Reading(
        meta={
            "kind": kind,
            "format": chosen,
            "attempt": run.attempt,
            "names": [layer.name for layer in listed],
            "scalars": scalars,
        },
        arrays=arrays,
    )


def tail_values(
    session: Session,
    reader: TileReader,
    run: Run,
    *,
    kind: str,
    metric: str,
    chosen: str,
    since: int | None,
    commit: str | None,
    most: int,
    names: Sequence[str] | None,
) -> Reading:
    """What the present attempt has of the steps after ``since``, or of those that came after ``commit``."""
    assert run.id is not None
    (how,) = _metrics([metric], _ALONE).values()
    _known_kind(kind)
    table = run_layers(session, run.id)
    listed = _listed(table, names)
    layers = np.array([layer.index for layer in listed], np.intp)
    meta: dict[str, object] = {
        "kind": kind,
        "metric": metric,
        "format": chosen,
        "unit": how.unit,
        "worst": how.worst,
        "attempt": run.attempt,
        "names": [layer.name for layer in listed],
    }
    source = source_of(session, run.id, f"layer/{kind}")
    if source is None:
        return Reading(
            meta={**meta, "commit": None, "complete": True},
            arrays={
                "layers": layers.astype(np.int64),
                "steps": np.empty(0, np.int64),
                "values": np.empty((len(layers), 0), np.float32),
            },
        )
    state = source.states.get(run.attempt, State())
    after, same = _commit(commit, run.attempt, state)
    found = reader.tail(
        session,
        source,
        run.attempt,
        after_step=-1 if since is None else since,
        after_commit=after,
        most=most,
        wanted=how.wanted("worst"),
        layers=layers,
    )
    # What was sealed in the meantime is not in the tail any more.
    complete = same if commit is not None else since is None or since + 1 >= state.sealed
    return Reading(
        meta={
            **meta,
            "commit": f"{run.attempt}-{state.epoch}-{found.commit}",
            "complete": complete and not (len(found.steps) == most and (commit is not None or since is not None)),
        },
        arrays={
            "layers": layers.astype(np.int64),
            "steps": found.steps,
            "values": how.of(found.planes, "worst", table.limits(kind, chosen, how)[layers]),
        },
    )


_ALONE = {name: how for name, how in METRICS.items() if how.over is None}
"""Those that one kind has by itself."""


def _metrics(names: Sequence[str] | None, known: Mapping[str, Metric] = METRICS) -> Mapping[str, Metric]:
    if names is None:
        return _ALONE
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadQueryError(f"unknown metric {unknown[0][:40]!r}; known are {', '.join(known)}")
    return {name: known[name] for name in names}


def _known_kind(kind: str) -> None:
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind[:40]!r}; known are {', '.join(wire.KINDS)}")


def _listed(table: RunLayers, names: Sequence[str] | None) -> list[wire.Layer]:
    wanted = None if names is None else set(names)
    found = [layer for layer in table.layers.values() if wanted is None or wanted & {layer.name, str(layer.index)}]
    return sorted(found, key=lambda layer: layer.index)


def _commit(text: str | None, attempt: int, state: State) -> tuple[int | None, bool]:
    """The frame that ``text`` names, and whether nothing was sealed since."""
    if text is None:
        return None, True
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise BadQueryError("commit is what an earlier answer gave as such")
    number, epoch, frame = map(int, parts)
    if number != attempt:
        return 0, False
    return frame, epoch == state.epoch
