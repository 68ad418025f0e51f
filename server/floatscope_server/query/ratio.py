"""The update ratio: rms of what an optimizer adds to a layer over rms of the layer's weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope import wire
from floatscope_server.alerts.tuning import parameters_of
from floatscope_server.frame import Frame
from floatscope_server.query.cells import empty_plane
from floatscope_server.query.fields import METRICS, MISSING, Metric
from floatscope_server.query.line import BadQueryError, Stretch
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.tiles.statistics import Agg

__all__ = ["divided", "divisors", "healthy", "live_ratio", "others_of", "problem_of_kind", "require_kind"]

Plane = npt.NDArray[np.float32]


def problem_of_kind(metric: str, kind: str) -> str | None:
    """Why ``kind`` has no ``metric`` (both known), if so."""
    how = METRICS[metric]
    if how.of_kind in (None, kind):
        return None
    return f"{metric} is {how.of_kind} over {how.over}: ask for it with kind {how.of_kind}"


def require_kind(metric: str, kind: str, *, dump: bool = False) -> None:
    """``BadQueryError`` if ``kind``, or a ``dump`` of it, has no ``metric``."""
    problem = problem_of_kind(metric, kind)
    if problem is None and dump and METRICS[metric].over is not None:
        problem = f"{metric} is made of two kinds, and a dump is asked for one: ask for rms of each"
    if problem is not None:
        raise BadQueryError(problem)


def others_of(*metrics: str) -> tuple[str, ...]:
    """The kinds that an answer about ``metrics`` is made of beside the one that it is asked for."""
    hows = (METRICS.get(metric) for metric in metrics)
    return tuple(dict.fromkeys(how.over for how in hows if how is not None and how.over is not None))


def healthy(session: Session, run_id: int) -> tuple[float, float]:
    """Between which ratios the rule ``update_ratio`` of the run has nothing to say."""
    rule = parameters_of(session, run_id).update_ratio
    return rule.low, rule.high


def divisors(
    session: Session,
    reader: TileReader,
    run_id: int,
    line: Sequence[Stretch],
    how: Metric,
    *,
    first: int,
    last: int,
    cell: int,
    layers: npt.NDArray[np.intp],
) -> Plane:
    """What ``how`` is divided by [layers, cells]: the mean over the steps of each cell, missing where none was read.

    A weight changes by its ratio in a step, so its mean stands for each step of a cell; a cell of one step is exact.
    """
    source = source_of(session, run_id, f"layer/{how.over}")
    if source is None:
        return empty_plane((len(layers), last // cell - first // cell + 1))
    wanted = how.stat, Agg.MEAN
    window = reader.window(session, source, line, first=first, last=last, cell=cell, wanted=(wanted,), layers=layers)
    plane: Plane = window.planes[wanted]
    return plane


def divided(values: Plane, by: Plane) -> Plane:
    """``values`` over ``by``; missing where either is, and where the weight is all zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Plane = (values / by).astype(np.float32)
    ratio[np.isnan(ratio) | ~(by > 0)] = MISSING
    return ratio


def live_ratio(how: Metric, plane: Plane, frame: Frame, others: Iterable[wire.Summaries]) -> Plane:
    """``plane`` [steps, layers] of ``frame`` over what ``others`` that came with it say of the same steps."""
    by = empty_plane((len(plane), len(frame.layers)))
    for summary in others:
        if summary.kind != how.over:
            continue
        other = Frame.of(summary)
        first = max(frame.first_step, other.first_step)
        end = min(frame.first_step + frame.steps, other.first_step + other.steps)
        if first >= end:
            continue
        _, into, of = np.intersect1d(frame.layers, other.layers, return_indices=True)
        read = how.plane(other, np.full(len(other.layers), np.nan))
        rows = slice(first - other.first_step, end - other.first_step)
        by[first - frame.first_step : end - frame.first_step, into] = read[rows][:, of]
    return divided(plane, by)
