"""The statistics of one step, merged over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.merge import MERGING, merge_ranks
from floatscope_server.models import Run
from floatscope_server.query.cells import Plane, Wanted
from floatscope_server.query.frames import summary_frames
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.query.window import Source, TileReader, source_of
from floatscope_server.tiles.statistics import RAW, Agg, Stat

__all__ = ["sealed_frame", "step_summaries"]

_VALUES: tuple[Wanted, ...] = tuple((stat, Agg.VALUE) for stat in RAW)
_EXTREMES: tuple[Wanted, ...] = tuple(
    (stat, agg)
    for stat in (Stat.ABSMAX, Stat.ABSMIN, Stat.MEAN, Stat.RMS, Stat.UNDER, Stat.OVER_HIGH, Stat.FLOOR)
    for agg in (Agg.MAX, Agg.MIN)
)
_RANK = Stat.ABSMAX, Agg.RANK

_SAME = {
    "count": Stat.COUNT,
    "zeros": Stat.ZEROS,
    "nans": Stat.NANS,
    "infs": Stat.INFS,
    "absmax": Stat.ABSMAX,
    "absmin": Stat.ABSMIN,
    "scale": Stat.SCALE,
    "under": Stat.UNDER,
    "over_low": Stat.OVER_LOW,
    "over_high": Stat.OVER_HIGH,
    "floor": Stat.FLOOR,
}


def step_summaries(
    session: Session, reader: TileReader, run: Run, *, kind: str, step: int, names: Sequence[str] | None
) -> dict[str, object]:
    """One row for each layer: what merges over the ranks as one, and what does not rank by rank. Of a step that is
    ``sealed`` there is what all ranks give together, and how far they lie apart.

    ``names`` picks layers by name. Unknown kinds: ``BadQueryError``.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    source = source_of(session, run.id, f"layer/{kind}")
    stretch = next((s for s in canonical_line(session, run.id) if s.first <= step <= s.last), None)
    reach = reach_of(session, run, None if stretch is None else stretch.attempt)
    answer: dict[str, object] = {
        "kind": kind,
        "step": step,
        "sealed": False,
        "world": reach.world,
        "complete": False,
        "missing_ranks": reach.missing_from(()),
        "layers": [],
    }
    if source is None or stretch is None:
        return answer
    table = run_layers(session, run.id)
    wanted = None if names is None else set(names)
    layers = [layer for layer in table.ordered if wanted is None or layer.name in wanted]
    state = source.states.get(stretch.attempt)
    if state is not None and step < state.sealed:
        return {**answer, "sealed": True, **_sealed(session, reader, source, stretch.attempt, step, layers, reach)}
    window = Stretch(attempt=stretch.attempt, first=step, last=step)
    frames = [
        (s.rank, s.content.between(step, step)) for s in summary_frames(session, reader.frames, source.stream, window)
    ]
    merged = merge_ranks(frames, np.array([step]), len(table.layers))
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
    for layer in layers:
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


def sealed_frame(
    session: Session, reader: TileReader, source: Source, attempt: int, step: int, layers: npt.NDArray[np.intp]
) -> tuple[Frame, dict[Wanted, Plane]]:
    """What all ranks together gave at a sealed step as a frame [1, layers that were observed], and the planes [layers,
    1] of ``layers`` that it was made of."""
    window = reader.window(
        session,
        source,
        [Stretch(attempt=attempt, first=step, last=step, cut=True)],
        first=step,
        last=step,
        cell=1,
        wanted=(*_VALUES, *_EXTREMES, _RANK),
        layers=layers,
    )
    planes = window.planes
    observed = np.flatnonzero(planes[Stat.COUNT, Agg.VALUE][:, 0] > 0)
    values = {stat: planes[stat, Agg.VALUE][observed, 0].astype(np.float64) for stat in RAW}
    finite = values[Stat.COUNT] - values[Stat.NANS] - values[Stat.INFS]
    made = {name: values[stat] for name, stat in _SAME.items()}
    made["sum"] = np.where(finite > 0, values[Stat.MEAN] * finite, 0.0)
    made["sumsq"] = np.where(finite > 0, values[Stat.RMS] ** 2 * finite, 0.0)
    fields: dict[str, npt.NDArray[np.generic]] = {
        name: made[name].astype(dtype)[None] for name, dtype in FIELD_DTYPES.items()
    }
    return Frame(first_step=step, steps=1, layers=layers[observed].astype(np.int64), fields=fields), planes


def _sealed(
    session: Session,
    reader: TileReader,
    source: Source,
    attempt: int,
    step: int,
    layers: Sequence[wire.Layer],
    reach: Reach,
) -> dict[str, object]:
    numbers = np.sort(np.array([layer.index for layer in layers], np.intp))
    frame, planes = sealed_frame(session, reader, source, attempt, step, numbers)
    at = {index: place for place, index in enumerate(frame.layers.tolist())}
    rows = [
        {
            "layer": layer.name,
            "index": layer.index,
            "merged": {
                **_row(frame, at[layer.index]),
                "absmax_rank": _rank(planes, row := int(np.searchsorted(numbers, layer.index))),
            },
            "ranks": {},
            "between_ranks": _between(planes, row),
        }
        for layer in layers
        if layer.index in at
    ]
    # Which ranks had reported it when it was sealed is not kept: how far they have come is.
    missing = reach.missing_from({rank for rank, last in reach.last_step.items() if last >= step})
    return {"complete": reach.complete(step), "missing_ranks": missing, "layers": rows}


def _rank(planes: Mapping[Wanted, Plane], row: int) -> int | None:
    rank = planes[_RANK][row, 0]
    return None if np.isnan(rank) else int(rank)


def _between(planes: Mapping[Wanted, Plane], row: int) -> dict[str, list[float]]:
    """Smallest and largest of the ranks, for the statistics in which they differ."""
    found: dict[str, list[float]] = {}
    for stat in dict.fromkeys(stat for stat, _ in _EXTREMES):
        low, high = (float(planes[stat, agg][row, 0]) for agg in (Agg.MIN, Agg.MAX))
        if low < high:
            found[stat.name.lower()] = [low, high]
    return found


def _row(frame: Frame, layer: int) -> dict[str, object]:
    row: dict[str, object] = {}
    for name in FIELD_DTYPES:
        value = frame.fields[name][0, layer].item()
        row[name] = None if isinstance(value, float) and np.isnan(value) else value
    return row
