"""TensorBoard event files, by tensorboardX."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary

from floatscope._client._results import Histogram
from floatscope_server.export.rows import Selection

__all__ = ["write_events"]

_LARGEST = float(np.finfo(np.float64).max)


def write_events(selection: Selection, folder: Path) -> None:
    """One event file in ``folder``: scalars by their names, statistics as ``KIND/METRIC/LAYER``, histograms of
    magnitudes as ``KIND/histogram/LAYER`` at the last step of their stretch. Of what was not observed there is no
    event."""
    # Not its SummaryWriter, whose thread dies of a full disk without a word.
    writer = EventsWriter(str(folder / "events"))
    try:
        now = time.time()

        def write(step: int, values: Iterable[Summary.Value]) -> None:
            writer.write_event(Event(wall_time=now, step=step, summary=Summary(value=values)))

        for points in selection.points():
            for step, value in zip(points.steps.tolist(), points.values.tolist(), strict=True):
                write(step, [Summary.Value(tag=points.name, simple_value=value)])
        for piece in selection.pieces():
            tags = {name: [f"{piece.kind}/{name}/{layer}" for layer in piece.layers] for name in piece.metrics}
            for at, step in enumerate(piece.steps.tolist()):
                values = [
                    Summary.Value(tag=tag, simple_value=value)
                    for name, of in tags.items()
                    for tag, value, missing in zip(
                        of, piece.metrics[name][at].tolist(), piece.missing[name][at].tolist(), strict=True
                    )
                    if not missing
                ]
                if values:
                    write(step, values)
        for histogram in selection.histograms():
            tag = f"{histogram.kind}/histogram/{histogram.layer}"
            for at in np.flatnonzero(histogram.counts.any(axis=1)).tolist():
                last = int(histogram.first_steps[at] + histogram.steps[at]) - 1
                write(last, [Summary.Value(tag=tag, histo=_proto(histogram, at))])
    finally:
        writer.close()


def _proto(histogram: Histogram, at: int) -> HistogramProto:
    """The bins between the first and the last that hold anything, after one of nothing that ends where they begin.

    Sums are not in a histogram: they are those of elements in the middle of their bins.
    """
    counts = histogram.counts[at]
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1]) + 1
    edges = np.minimum(histogram.edges[low : high + 1], _LARGEST)
    counts = counts[low:high].astype(np.float64)
    middle = edges[:-1] / 2 + edges[1:] / 2
    return HistogramProto(
        min=edges[0],
        max=edges[-1],
        num=counts.sum(),
        sum=float(counts @ middle),
        sum_squares=float(counts @ middle**2),
        bucket_limit=edges.tolist(),
        bucket=[0.0, *counts.tolist()],
    )
