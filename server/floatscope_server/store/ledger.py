"""What the writer thread knows of runs and writers, loaded from the store when first needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import Attempt, DeviceFacts, LayerRow, Run, ScalarSeries, Stream, Writer
from floatscope_server.store.glance import Glance
from floatscope_server.store.layermap import LayerMap
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.numbers import Numbers
from floatscope_server.store.shapes import FACTS
from floatscope_server.store.together import Together

__all__ = [
    "KnownRun",
    "KnownSeries",
    "KnownWriter",
    "Ledger",
    "layer_of",
    "operands_json",
    "writer_of",
]

_PACE = 0.1
"""Weight of the newest step in the running mean of the time per step."""


@dataclass(slots=True, kw_only=True)
class KnownWriter:
    """A writer as of the newest block of it."""

    id: str
    number: int
    rank: int
    attempt: int
    agent: str
    last_seq: int
    last_step: int
    seen_at: float
    layer_map: LayerMap | None = None
    """None until it is needed: it is loaded then."""
    bye: str | None = None
    dropped: int = 0
    declared: int = 0
    left_out: int = 0
    queue_bytes: int = 0
    spool_bytes: int = 0
    overhead_s: float = 0.0
    cost: dict[str, Any] | None = None
    damaged_seq: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Gap row of each reason for which the server left something out."""


@dataclass(slots=True, kw_only=True)
class KnownSeries:
    """As ``models.ScalarSeries``."""

    n: int
    first_step: int
    last_step: int
    last: float
    min: float
    max: float
    ordered: bool

    @classmethod
    def empty(cls) -> KnownSeries:
        """Before the first point."""
        return cls(n=0, first_step=-1, last_step=-1, last=math.nan, min=math.nan, max=math.nan, ordered=True)

    def add(self, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
        """Take in points in the order in which they came; at least one."""
        first, last = int(steps[0]), int(steps[-1])
        low, high, newest = first, last, -1
        if not (rising := bool((steps[1:] > steps[:-1]).all())):
            low, high = int(steps.min()), int(steps.max())
            # Of a step that came twice the later one.
            newest = len(steps) - 1 - int(np.argmax(steps[::-1]))
        self.ordered = self.ordered and first > self.last_step and rising
        self.first_step = low if self.n == 0 else min(self.first_step, low)
        if high >= self.last_step:
            self.last = float(values[newest])
        self.last_step = max(self.last_step, high)
        self.n += len(steps)
        self.min = float(np.fmin.reduce(values, initial=self.min))
        self.max = float(np.fmax.reduce(values, initial=self.max))


@dataclass(slots=True, kw_only=True)
class KnownRun:
    """A run; ``layers`` is replaced, never changed, so that what was handed out stays as it was."""

    id: int
    name: str
    state: str
    attempt: int
    steps: int
    layers: Mapping[int, wire.Layer]
    names: dict[str, int]
    streams: dict[str, int]
    attempts: dict[int, tuple[int | None, int | None]]
    worlds: dict[int, int]
    """By attempt: a run may go on with fewer or more ranks than it began with."""
    writers: dict[str, KnownWriter]
    glance: Glance
    progress_at: float
    seconds_per_step: float = 0.0
    began: dict[int, float] = field(default_factory=dict)
    """When the first process of each attempt began: seconds, by this clock."""
    series: dict[tuple[int, int, str], KnownSeries] = field(default_factory=dict)
    """By attempt, rank and name."""
    renewed: dict[tuple[int, int, str], KnownSeries] = field(default_factory=dict)
    """Those of them that are not written yet as they are."""
    series_in: Counter[int] = field(default_factory=Counter)
    """How many by attempt."""
    devices: dict[tuple[int, int, str, int], tuple[object, ...]] = field(default_factory=dict)
    """PCI address, name and bytes of memory by attempt, rank, backend and index."""
    opened: set[tuple[int, int]] = field(default_factory=set)
    """Streams and attempts that have their row in stream_state."""
    together: dict[int, Together] = field(default_factory=dict)
    """By attempt; made with the first block of it that is seen."""
    dump_bytes: int | None = None
    """Of all that is kept of its dumps; None before the first one that is seen."""

    def series_of(self, attempt: int, rank: int, name: str) -> KnownSeries:
        """What is known of a series that gets points, which is made with its first ones."""
        found = self.series.get((attempt, rank, name))
        if found is None:
            found = self.series[attempt, rank, name] = KnownSeries.empty()
            self.series_in[attempt] += 1
        self.renewed[attempt, rank, name] = found
        return found

    @property
    def world(self) -> int:
        """Ranks of the current attempt."""
        return self.worlds[self.attempt]

    def progressed(self, attempt: int, first: int, last: int, now: float) -> None:
        """Take note of steps ``first`` to ``last`` of ``attempt``."""
        known_first, known_last = self.attempts[attempt]
        self.attempts[attempt] = (
            first if known_first is None else min(known_first, first),
            last if known_last is None else max(known_last, last),
        )
        if attempt != self.attempt:
            return
        if known_last is None:
            self.glance.restart(first)
            self.steps = last + 1
        elif last > known_last:
            pace = max(0.0, now - self.progress_at) / (last - known_last)
            self.seconds_per_step += _PACE * (pace - self.seconds_per_step) if self.seconds_per_step else pace
            self.steps = last + 1
        # Steps that go back are progress too: a rollback trains.
        self.progress_at = now


def operands_json(layer: wire.Layer) -> list[dict[str, str]]:
    """The operands of ``layer`` for its row."""
    return [{"kind": o.kind, "format": o.format, "role": o.role, "scaling": o.scaling} for o in layer.operands]


def layer_of(row: LayerRow) -> wire.Layer:
    """The layer that ``row`` stores, with the run's index."""
    return wire.Layer(
        index=row.idx,
        name=row.name,
        module_type=row.module_type,
        parameters=row.parameters,
        order=row.order_no,
        operands=tuple(msgspec.convert(o, wire.Operand) for o in row.operands),
    )


class Ledger:
    """Runs and writers by name and id. ``clear`` after a rollback: what it knew may never have been stored."""

    def __init__(self) -> None:
        self.runs: dict[str, KnownRun] = {}
        self.numbers = Numbers()
        self._of_writer: dict[str, KnownRun] = {}

    def clear(self) -> None:
        """Forget everything; it is loaded again when needed."""
        self.runs.clear()
        self._of_writer.clear()

    def run(self, session: Session, name: str) -> KnownRun | None:
        """The run called ``name``."""
        if name not in self.runs:
            row = session.exec(select(Run).where(Run.name == name)).one_or_none()
            if row is None:
                return None
            self._load(session, row)
        return self.runs[name]

    def of_writer(self, session: Session, writer_id: str) -> tuple[KnownRun, KnownWriter] | None:
        """The run that ``writer_id`` writes to, and what is known of it."""
        if writer_id not in self._of_writer:
            row = session.exec(select(Writer).where(Writer.id == writer_id)).one_or_none()
            if row is None:
                return None
            run_row = session.get(Run, row.run_id)
            assert run_row is not None
            self._load(session, run_row)
        run = self._of_writer[writer_id]
        return run, run.writers[writer_id]

    def add(self, run: KnownRun, writer: KnownWriter) -> None:
        """A new writer of ``run``."""
        self.runs[run.name] = run
        run.writers[writer.id] = writer
        self._of_writer[writer.id] = run

    def forget_silent(self, since: float) -> None:
        """Forget ended runs, and the layer maps of writers, that have been silent ``since`` then."""
        for run in list(self.runs.values()):
            if run.state in ENDED and all(writer.seen_at < since for writer in run.writers.values()):
                del self.runs[run.name]
                for identity in run.writers:
                    del self._of_writer[identity]
                continue
            for writer in run.writers.values():
                if writer.seen_at < since:
                    writer.layer_map = None

    def _load(self, session: Session, row: Run) -> None:
        assert row.id is not None
        layers = {
            layer.idx: layer_of(layer) for layer in session.exec(select(LayerRow).where(LayerRow.run_id == row.id))
        }
        attempts = session.exec(select(Attempt).where(Attempt.run_id == row.id).order_by(col(Attempt.n))).all()
        writers = [writer_of(w) for w in session.exec(select(Writer).where(Writer.run_id == row.id))]
        run = KnownRun(
            id=row.id,
            name=row.name,
            state=row.state,
            attempt=row.attempt,
            steps=row.steps,
            layers=MappingProxyType(layers),
            names={layer.name: index for index, layer in layers.items()},
            streams={
                s.name: s.id for s in session.exec(select(Stream).where(Stream.run_id == row.id)) if s.id is not None
            },
            attempts={a.n: (a.first_step, a.last_step) for a in attempts},
            worlds={a.n: a.world for a in attempts},
            began={a.n: a.started_at.timestamp() for a in attempts},
            writers={},
            glance=Glance(row.glance),
            progress_at=row.progress_at.timestamp(),
            seconds_per_step=row.seconds_per_step,
            series={
                (s.attempt, s.rank, s.name): _series_of(s)
                for s in session.exec(
                    select(ScalarSeries).where(ScalarSeries.run_id == row.id, ScalarSeries.stream == "scalar")
                )
            },
            devices={
                (d.attempt, d.rank, d.backend, d.idx): tuple(getattr(d, fact) for fact in FACTS)
                for d in session.exec(select(DeviceFacts).where(DeviceFacts.run_id == row.id))
            },
        )
        run.series_in.update(attempt for attempt, _, _ in run.series)
        self.runs[row.name] = run
        for writer in writers:
            self.add(run, writer)


def _series_of(row: ScalarSeries) -> KnownSeries:
    last, low, high = (math.nan if value is None else value for value in (row.last, row.min, row.max))
    return KnownSeries(
        n=row.n, first_step=row.first_step, last_step=row.last_step, last=last, min=low, max=high, ordered=row.ordered
    )


def writer_of(row: Writer) -> KnownWriter:
    """A writer as its row tells; the layer map stays in the row until it is needed."""
    seen: datetime = row.last_seen_at
    assert row.number is not None
    return KnownWriter(
        id=row.id,
        number=row.number,
        rank=row.rank,
        attempt=row.attempt,
        agent=row.agent,
        last_seq=row.last_seq,
        last_step=row.last_step,
        seen_at=seen.timestamp(),
        bye=row.bye,
        dropped=row.dropped,
        declared=row.declared,
        left_out=row.left_out,
        queue_bytes=row.queue_bytes,
        spool_bytes=row.spool_bytes,
        overhead_s=row.overhead_s,
        cost=row.cost,
    )
