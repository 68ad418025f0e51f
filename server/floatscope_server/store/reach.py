"""Steps that no training reaches: one of them would stretch every axis and every count for good."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from floatscope import wire

__all__ = ["HIGHEST_STEP", "LONGEST_JUMP", "OUT_OF_REACH", "spans", "within_reach"]

HIGHEST_STEP = 1 << 40
LONGEST_JUMP = 10**9
"""Forward, from the newest step of the attempt. Back is any distance."""

OUT_OF_REACH = "step beyond 2^40 or more than 10^9 ahead of the newest"


def spans(body: wire.Body) -> Iterator[tuple[int, int]]:
    """First and last step of each part that has steps."""
    for summary in body.summaries:
        yield summary.first_step, summary.first_step + summary.steps - 1
    for histogram in body.histograms:
        yield histogram.first_step, histogram.first_step + histogram.steps - 1
    for series in body.scalars:
        steps = np.frombuffer(series.steps, "<i8")
        yield int(steps.min()), int(steps.max())
    for event in body.events:
        yield event.step, event.step


def within_reach(body: wire.Body, newest: int | None) -> tuple[wire.Body, int, list[tuple[int, int]]]:
    """``body`` without the parts and points out of reach from step ``newest``, or from its own first one without; how
    many there were; and the ``spans`` of what is left."""
    known = list(spans(body))
    start = min((first for first, _ in known), default=0) if newest is None else newest
    furthest = min(HIGHEST_STEP, start + LONGEST_JUMP)
    if all(last <= furthest for _, last in known):
        return body, 0, known
    kept = msgspec.structs.replace(
        body,
        summaries=tuple(s for s in body.summaries if s.first_step + s.steps - 1 <= furthest),
        histograms=tuple(h for h in body.histograms if h.first_step + h.steps - 1 <= furthest),
        scalars=tuple(_points(series, furthest) for series in body.scalars),
        events=tuple(e for e in body.events if e.step <= furthest),
    )
    left_out = sum(len(a) - len(b) for a, b in ((body.summaries, kept.summaries), (body.histograms, kept.histograms)))
    left_out += len(body.events) - len(kept.events)
    left_out += sum(len(a.steps) - len(b.steps) for a, b in zip(body.scalars, kept.scalars, strict=True)) // 8
    kept = msgspec.structs.replace(kept, scalars=tuple(s for s in kept.scalars if s.steps))
    return kept, left_out, list(spans(kept))


def _points(series: wire.Scalars, furthest: int) -> wire.Scalars:
    steps = np.frombuffer(series.steps, "<i8")
    near = steps <= furthest
    if near.all():
        return series
    values = np.frombuffer(series.values, "<f8")
    return msgspec.structs.replace(series, steps=steps[near].tobytes(), values=values[near].tobytes())
