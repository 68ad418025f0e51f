"""A run in pieces of bounded size, in the order of kinds and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope._client._results import Histogram
from floatscope_server.export.source import Source
from floatscope_server.export.stretches import Stretch, stretches

__all__ = ["METRICS", "SCALAR", "Piece", "Points", "Selection"]

METRICS = ("absmax", "absmin", "rms", "mean", "zeros", "underflow", "overflow", "nonfinite", "headroom")
SCALAR = "scalar"
"""The kind of a row that holds a scalar."""

_MOST_STEPS = 4000
"""Columns that the server gives at once."""
_CELLS = 1 << 18
"""Layers times steps of a piece: 1 MiB for each metric."""
_POINTS = 20_000
_HISTOGRAM_STEPS = _MOST_STEPS

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Statistics of one kind: ``metrics`` are float32 [steps, layers], ``missing`` (bool) by metric; ``attempts``
    (int64 [steps]) says which attempt each step is of."""

    kind: str
    steps: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.int64]
    layers: tuple[str, ...]
    metrics: dict[str, F32]
    missing: dict[str, npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A stretch of a scalar."""

    name: str
    steps: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class Selection:
    """What of ``run`` is exported. ``coarse``: the resolution of the steps of which single ones are not left, 1 if
    there are none, once the pieces have been read.

    ``ValueError`` says which kind, metric or layer is not known; what the source raises passes through.
    """

    def __init__(
        self,
        source: Source,
        run: str,
        *,
        kinds: Sequence[str] | None = None,
        metrics: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        self.run = run
        self.coarse = 1
        self.metrics = _known("metric", metrics, METRICS)
        self._source = source
        self._kinds = _known("kind", kinds, (*wire.KINDS, SCALAR))
        shown = source.run(run)
        indices = {layer["name"]: str(layer["index"]) for layer in shown["layers"]}
        self._layers = _known("layer", layers, tuple(indices))
        # By number: a name may hold a comma.
        self._asked = None if layers is None else tuple(indices[name] for name in self._layers)
        attempts = [each for each in shown["attempts"] if each["first_step"] is not None]
        self._attempts = _Attempts(attempts)
        low = min((each["first_step"] for each in attempts), default=0)
        high = max((each["last_step"] for each in attempts), default=-1)
        self._first = low if first is None else max(first, low)
        self._last = high if last is None else min(last, high)

    def pieces(self) -> Iterator[Piece]:
        """Statistics of all kinds."""
        width = max(1, min(_MOST_STEPS, _CELLS // max(1, len(self._layers))))
        for kind in self._kinds:
            if kind == SCALAR:
                continue
            observed = partial(self._observed, kind)
            for first, last in stretches(self._first, self._last, width, observed):
                piece = self._piece(kind, first, last)
                if piece is not None:
                    yield piece

    def points(self) -> Iterator[Points]:
        """All scalars."""
        if SCALAR not in self._kinds:
            return
        for first, last in stretches(self._first, self._last, _POINTS, self._logged):
            for series in self._source.scalars(self.run, first=first, last=last, points=_POINTS).values():
                if len(series.steps):
                    yield Points(
                        name=series.name,
                        steps=series.steps,
                        attempts=self._attempts.of(series.steps),
                        values=series.values,
                    )

    def histograms(self) -> Iterator[Histogram]:
        """Of each layer and kind, one for each stretch of which the server has one."""
        for kind in self._kinds:
            if kind == SCALAR:
                continue
            for layer in self._layers:
                ask = partial(self._source.histogram, self.run, layer, kind=kind, columns=_MOST_STEPS)

                def taken(first: int, last: int, ask: Callable[..., Histogram] = ask) -> list[Stretch]:
                    found = ask(first=first, last=last)
                    steps = zip(found.first_steps.tolist(), found.steps.tolist(), strict=True)
                    return [(start, start + number - 1) for start, number in steps]

                for first, last in stretches(self._first, self._last, _HISTOGRAM_STEPS, taken):
                    found = ask(first=first, last=last)
                    if len(found.first_steps):
                        yield found

    def _observed(self, kind: str, first: int, last: int) -> Iterator[Stretch]:
        for metric in self.metrics:
            found = self._source.heatmap(
                self.run, kind=kind, metric=metric, first=first, last=last, columns=_MOST_STEPS, layers=self._asked
            )
            for start in found.steps[~found.missing.all(axis=0)].tolist():
                yield start, start + found.cell - 1

    def _logged(self, first: int, last: int) -> Iterator[Stretch]:
        for series in self._source.scalars(self.run, first=first, last=last, points=_POINTS).values():
            for start in np.unique(series.steps // series.cell).tolist():
                yield start * series.cell, (start + 1) * series.cell - 1

    def _piece(self, kind: str, first: int, last: int) -> Piece | None:
        """None if nothing of it was observed."""
        steps = np.arange(first, last + 1)
        row_of = {name: at for at, name in enumerate(self._layers)}
        metrics: dict[str, F32] = {}
        missing: dict[str, npt.NDArray[np.bool_]] = {}
        for metric in self.metrics:
            found = self._source.heatmap(
                self.run, kind=kind, metric=metric, first=first, last=last, columns=len(steps), layers=self._asked
            )
            self.coarse = max(self.coarse, found.resolution)
            values = np.full((len(self._layers), len(steps)), np.nan, np.float32)
            absent = np.ones(values.shape, np.bool_)
            # A layer that has nothing of a metric is not in the answer; one whose name is another's number is.
            shown = [(at, row_of[name]) for at, name in enumerate(found.layers) if name in row_of]
            if shown:
                assert found.cell == 1
                source, target = (list(places) for places in zip(*shown, strict=True))
                values[target], absent[target] = found.values[source], found.missing[source]
            metrics[metric], missing[metric] = values.T, absent.T
        if all(absent.all() for absent in missing.values()):
            return None
        return Piece(
            kind=kind,
            steps=steps,
            attempts=self._attempts.of(steps),
            layers=self._layers,
            metrics=metrics,
            missing=missing,
        )


class _Attempts:
    """Which attempt a step is of: the latest one that had begun before it."""

    def __init__(self, attempts: list[dict[str, Any]]) -> None:
        begun: list[tuple[int, int]] = []
        for each in sorted(attempts, key=lambda each: -each["n"]):
            if not begun or each["first_step"] < begun[0][0]:
                begun.insert(0, (each["first_step"], each["n"]))
        self._first = np.array([first for first, _ in begun], np.int64)
        self._number = np.array([number for _, number in begun], np.int64)

    def of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._number[np.searchsorted(self._first, steps, side="right") - 1]


def _known(what: str, chosen: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    if chosen is None:
        return tuple(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        raise ValueError(f"there is no {what} {unknown[0]!r}; there are: {listed}")
    return tuple(name for name in known if name in chosen)
