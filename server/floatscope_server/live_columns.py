"""New columns of the heat maps that viewers look at, from what the ranks have just told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from floatscope import wire
from floatscope_server.blocks import pack
from floatscope_server.frame import Frame
from floatscope_server.query.fields import METRICS
from floatscope_server.query.layertable import RunLayers
from floatscope_server.query.ratio import live_ratio

__all__ = ["Heat", "Told", "heat_blocks"]

Told = tuple[wire.Summaries, RunLayers]
"""What a rank has told, and the layers of its run at that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The heat map that a viewer looks at."""

    kind: str
    metric: str
    format: str


def heat_blocks(run: str, heat: Heat, told: Iterable[Told]) -> list[bytes]:
    """New columns of ``heat`` as FSB1: of each step the worst of its ranks, neighbouring steps of the same layers
    joined."""
    metric = METRICS[heat.metric]
    worse = np.fmin if metric.worst == "min" else np.fmax
    told = list(told)
    columns: dict[bytes, dict[int, np.ndarray]] = {}
    for summary, layers in told:
        if summary.kind != heat.kind:
            continue
        frame = Frame.of(summary)
        plane = metric.plane(frame, layers.limits(heat.kind, heat.format, metric)[frame.layers])
        if metric.over is not None:
            plane = live_ratio(metric, plane, frame, (other for other, _ in told))
        steps = columns.setdefault(summary.layers, {})
        for step, values in enumerate(plane, frame.first_step):
            steps[step] = worse(steps[step], values) if step in steps else values
    return [
        pack(
            {
                "type": "heat",
                "run": run,
                "kind": heat.kind,
                "metric": heat.metric,
                "format": heat.format,
                "first_step": first,
                "layers": np.frombuffer(rows, "<u4").tolist(),
            },
            {"values": np.stack([steps[step] for step in range(first, last + 1)])},
        )
        for rows, steps in columns.items()
        for first, last in _stretches(steps)
    ]


def _stretches(steps: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of neighbouring ``steps``."""
    for _, run in groupby(enumerate(sorted(steps)), key=lambda place: place[1] - place[0]):
        found = [step for _, step in run]
        yield found[0], found[-1]
