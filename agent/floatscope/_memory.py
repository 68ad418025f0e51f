"""A sink that keeps its records in memory: a training is observed without a server. The tests use it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from floatscope import wire
from floatscope._record import PendingRecord, StepRecord, Trouble

__all__ = ["MemorySink"]


class MemorySink:
    """Keeps every record, without a limit. ``reason`` is that of ``finish``, None before."""

    def __init__(self) -> None:
        self.pending: list[PendingRecord] = []
        self.reason: str | None = None
        self.cost: wire.Cost | None = None
        self.cpu_s = 0.0
        self.said: list[wire.Focus | wire.Alert | Trouble] = []
        """What a server would have said, or a record shown: taken by the next step."""
        self._records: list[StepRecord] = []

    def put(self, record: PendingRecord) -> None:
        """Keep ``record``."""
        self.pending.append(record)

    def orders(self) -> Sequence[wire.Focus | wire.Alert | Trouble]:
        """All of ``said``, which is empty then."""
        said, self.said = self.said, []
        return said

    def report(self, cost: wire.Cost) -> None:
        """Keep the newest."""
        self.cost = cost

    def finish(self, reason: str) -> None:
        """Note the reason."""
        self.reason = reason

    def close(self) -> None:
        """Nothing is left to be sent."""

    def abandon(self) -> None:
        """Nothing is left to be sent."""

    def records(self) -> list[StepRecord]:
        """All records so far, in order of arrival; waits for their numbers."""
        self._records += [pending.resolve() for pending in self.pending[len(self._records) :]]
        return list(self._records)

    def layers(self) -> dict[str, wire.Layer]:
        """The latest entry of each layer, by name."""
        entries = {layer.index: layer for record in self.records() for layer in record.layers}
        return {layer.name: layer for layer in entries.values()}

    def row(self, step: int, kind: str, layer: str) -> dict[str, float] | None:
        """Fields of one layer's summary at one step; None when it was not observed."""
        index = self.layers()[layer].index
        for rows in (rows for record in self.records() if record.step == step for rows in record.summaries):
            if rows.kind == kind and index in rows.layers:
                place = rows.layers.tolist().index(index)
                return {name: values[place].item() for name, values in rows.fields.items()}
        return None

    def hist(self, step: int, kind: str, layer: str) -> NDArray[np.int64] | None:
        """Histogram (int64 [512]) of one layer at one step; None when none was taken."""
        index = self.layers()[layer].index
        for rows in (rows for record in self.records() if record.step == step for rows in record.summaries):
            if rows.kind == kind and index in rows.layers and rows.hist is not None:
                hist: NDArray[np.int64] = rows.hist[rows.layers.tolist().index(index)]
                return hist
        return None

    def scalar(self, name: str) -> list[float | None]:
        """The values of a scalar, one a record; None where it is absent."""
        return [record.scalars.get(name) for record in self.records()]
