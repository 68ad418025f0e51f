"""The rules over what a reader finds: the same windows and the same machine as for a run that sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from floatscope import wire
from floatscope_server.alerts.book import Book, Entry
from floatscope_server.alerts.machine import Ended
from floatscope_server.alerts.texts import message
from floatscope_server.check.extremes import LayerIndex
from floatscope_server.check.timeline import Moment
from floatscope_server.observation import Observation
from floatscope_server.readers import Reading
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.verdict import Finding

__all__ = ["Fired", "Replay"]

_BATCH = 256
"""Steps that are judged together."""


@dataclass(slots=True)
class Fired:
    """An alert. ``row`` is the 0-based position of the record at which it fired, ``line`` that record's line."""

    entry: Entry
    first_step: int
    row: int
    line: int

    def describe(self) -> dict[str, object]:
        """The alert as JSON."""
        verdict, state = self.entry.verdict, self.entry.state
        english, chinese = message(verdict, self.first_step, self.entry.hits)
        return {
            "kind": self.entry.kind,
            "severity": state.severity.label,
            "first_step": self.first_step,
            "last_step": max(state.held, self.first_step),
            "since_step": verdict.since_step,
            "row": self.row,
            "line": self.line,
            "layer": verdict.layer,
            "rank": verdict.rank,
            "device": None,
            "format": verdict.format,
            "reason": verdict.reason,
            "message": english,
            "message_zh": chinese,
        }


class Replay:
    """Takes moments in order; ``alerts`` grow meanwhile."""

    def __init__(self, rules: RuleParameters) -> None:
        self.alerts: list[Fired] = []
        self._rules = rules
        self._window = RunWindow(rules)
        self._book = Book()
        self._layers = LayerIndex()
        self._batch: list[Moment] = []
        self._seq = 0
        self._where: dict[int, tuple[int, int]] = {}

    def take(self, moment: Moment) -> None:
        """The next step."""
        if moment.restart:
            self._judge()
            self._apply(self._window.finish())
            self._book.end(Ended.RUN_RESTARTED, moment.step)
            self._window, self._book = RunWindow(self._rules), Book()
        self._batch.append(moment)
        if len(self._batch) >= _BATCH:
            self._judge()

    def reading(self, reading: Reading, row: int) -> None:
        """A reading of a card, its ``row``-th from 0."""

    def finish(self) -> None:
        """The file has ended."""
        self._judge()
        self._apply(self._window.finish())

    def _judge(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        self._where = {moment.step: (moment.row, moment.line) for moment in batch}
        summaries = tuple(s for m in batch if m.extremes for s in self._layers.summaries(m.step, m.extremes))
        body = wire.Body(
            first_step=batch[0].step,
            steps=batch[-1].step - batch[0].step + 1,
            summaries=summaries,
            scalars=_scalars(batch),
            events=tuple(event_at(event, moment.step) for moment in batch for event in moment.events),
        )
        self._apply(self._window.judge(self._observation(body)))

    def _observation(self, body: wire.Body) -> Observation:
        self._seq += 1
        return Observation(
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

    def _apply(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            for transition in self._book.apply(finding):
                if transition.kind == "firing":
                    row, line = self._where.get(transition.step, (0, 0))
                    self.alerts.append(Fired(transition.entry, transition.step, row, line))


def event_at(event: wire.Event, step: int) -> wire.Event:
    """``event`` at the step that it was found to belong to."""
    return wire.Event(step=step, kind=event.kind, detail=event.detail)


def _scalars(batch: Iterable[Moment]) -> tuple[wire.Scalars, ...]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for moment in batch:
        for name, value in moment.meaning.items():
            held = series.setdefault(name, ([], []))
            held[0].append(moment.step)
            held[1].append(value)
    return tuple(
        wire.Scalars(name=name, steps=np.array(steps, "<i8").tobytes(), values=np.array(values, "<f8").tobytes())
        for name, (steps, values) in series.items()
    )
