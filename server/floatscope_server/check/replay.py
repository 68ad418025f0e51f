"""The rules over what a reader finds: the same windows and the same machine as for a run that sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from floatscope import wire
from floatscope_server.alerts.rehearsal import Rehearsal, Rehearsed, view
from floatscope_server.check.extremes import LayerIndex
from floatscope_server.check.timeline import Moment
from floatscope_server.observation import Observation
from floatscope_server.readers import Happening, Reading
from floatscope_server.rules import RuleParameters, Severity

__all__ = ["Fired", "Replay"]

_BATCH = 256
"""Steps that are judged together."""
_DAY_S = 86400.0
"""No step takes longer; damaged text may say so."""
_TOLD = ("stalled", "gpu_fault")
"""Kinds whose line, and the rank that it names, are those of words in the log."""


@dataclass(frozen=True, slots=True)
class Fired:
    """An alert. ``row`` is the 0-based position of the record at which it fired, ``line`` that record's line; ``rank``
    the one that the log names."""

    alert: Rehearsed
    row: int
    line: int
    rank: int | None

    @property
    def severity(self) -> Severity:
        """How bad it became."""
        return self.alert.entry.state.severity

    def describe(self, framework: str) -> dict[str, Any]:
        """The alert as JSON; its message names settings of ``framework`` (``keys.FRAMEWORKS``)."""
        entry = self.alert.entry
        verdict = dataclasses.replace(entry.verdict, rank=self.rank)
        content = view(dataclasses.replace(self.alert, entry=dataclasses.replace(entry, verdict=verdict)), framework)
        return content | {"row": self.row, "line": self.line}


class Replay:
    """Takes moments in order; ``alerts`` grow meanwhile."""

    def __init__(self, rules: RuleParameters) -> None:
        self.alerts: list[Fired] = []
        self._rules = rules
        self._rehearsal = Rehearsal(rules)
        self._known = 0
        self._layers = LayerIndex()
        self._batch: list[Moment] = []
        self._seq = 0
        self._where: dict[int, tuple[int, int]] = {}
        self._told: dict[int, Happening] = {}
        self._clock = 0.0

    def take(self, moment: Moment) -> None:
        """The next step."""
        if moment.restart:
            self._judge()
            self._end()
            self._rehearsal, self._known = Rehearsal(self._rules), 0
        self._batch.append(moment)
        seconds = moment.meaning.get("step_time_s", 1.0)
        self._clock += seconds if 0 <= seconds < _DAY_S else 0.0
        if moment.devices or len(self._batch) >= _BATCH:
            self._judge()

    def reading(self, reading: Reading, row: int) -> None:
        """A reading of a card, its ``row``-th from 0, from the output of a tool: there are no steps beside it."""
        # Without a clock in the file a second passes from row to row.
        at = reading.device.time_ns or row * 1_000_000_000
        device = msgspec.structs.replace(reading.device, time_ns=at)
        events = tuple(
            wire.Event(step=row, kind="gpu_fault", detail={"what": fault, "device": f"card{device.index}"})
            for fault in reading.faults
        )
        self._where = {row: (row, reading.line)}
        body = wire.Body(first_step=row, steps=1, devices=(device,), events=events)
        self._observe(body)

    def finish(self) -> None:
        """The file has ended."""
        self._judge()
        self._end()

    def _judge(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        self._where = {moment.step: (moment.row, moment.line) for moment in batch}
        for moment in batch:
            for found in moment.happenings:
                self._told.setdefault(moment.step, found)
        summaries = tuple(s for m in batch if m.extremes for s in self._layers.summaries(m.step, m.extremes))
        at = int(self._clock * 1e9)
        devices = tuple(msgspec.structs.replace(d, time_ns=at) for d in batch[-1].devices)
        body = wire.Body(
            first_step=batch[0].step,
            steps=batch[-1].step - batch[0].step + 1,
            summaries=summaries,
            scalars=_scalars(batch),
            events=tuple(_events(batch)),
            devices=devices,
        )
        self._observe(body)

    def _observe(self, body: wire.Body) -> None:
        self._seq += 1
        self._rehearsal.observe(
            Observation(
                run_id=0,
                run="",
                attempt=1,
                rank=0,
                writer="",
                seq=self._seq,
                world=1,
                body=body,
                layers=self._layers.layers,
            )
        )
        self._note()

    def _end(self) -> None:
        self._rehearsal.finish()
        self._note()

    def _note(self) -> None:
        """Remember where in the file the newest alerts fired."""
        fired = self._rehearsal.fired
        self.alerts += [self._placed(alert) for alert in fired[self._known :]]
        self._known = len(fired)

    def _placed(self, alert: Rehearsed) -> Fired:
        state = alert.entry.state
        step = state.since if state.fired is None else state.fired
        row, line = self._where.get(step, (0, 0))
        told = self._told.get(step) if alert.entry.kind in _TOLD else None
        if told is None:
            return Fired(alert, row, line, None)
        rank = told.event.detail.get("rank")
        return Fired(alert, row, told.line, rank if isinstance(rank, int) else None)


def _events(batch: Iterable[Moment]) -> Iterator[wire.Event]:
    """The events at the steps that they were found to belong to."""
    for moment in batch:
        for found in moment.happenings:
            yield wire.Event(step=moment.step, kind=found.event.kind, detail=found.event.detail)


def _scalars(batch: Iterable[Moment]) -> tuple[wire.Scalars, ...]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for moment in batch:
        for name, value in moment.meaning.items():
            held = series.get(name)
            if held is None:
                held = series[name] = [], []
            held[0].append(moment.step)
            held[1].append(value)
    return tuple(
        wire.Scalars(name=name, steps=np.array(steps, "<i8").tobytes(), values=np.array(values, "<f8").tobytes())
        for name, (steps, values) in series.items()
    )
