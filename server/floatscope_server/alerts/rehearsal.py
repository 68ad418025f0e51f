"""What rules would have said of a recording: the machine of the live alerts, without a database. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from floatscope_server.alerts.book import Book, Entry, Transition
from floatscope_server.alerts.machine import Phase
from floatscope_server.alerts.texts import message
from floatscope_server.jsontext import plain, plain_number
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.verdict import Finding

__all__ = ["Rehearsal", "Rehearsed", "rehearse", "view"]


@dataclass(slots=True)
class Rehearsed:
    """An alert that fired; ``ended`` says why it does no more, None while it does."""

    entry: Entry
    ended: str | None = None


class Rehearsal:
    """Takes the observations of one attempt in order; ``alerts`` are those that fired, in the order in which they
    did. An alert that gained severity is one of its own."""

    def __init__(self, rules: RuleParameters, *, framework: str = "") -> None:
        self._window = RunWindow(rules)
        self._book = Book(rules.off_kinds)
        self._framework = framework
        self._fired: dict[Entry, Rehearsed] = {}

    def observe(self, observation: Observation) -> None:
        """The next block."""
        self._take(self._window.judge(observation, lambda: self._book.kinds))
        self._window.skips.clear()

    def tick(self, now: float, progress_at: float) -> None:
        """A look at the clock, in seconds since 1970, while the run is going on."""
        self._take(self._window.tick(now, progress_at))

    def finish(self) -> None:
        """Nothing more comes."""
        self._take(self._window.finish())

    def alerts(self) -> list[dict[str, Any]]:
        """Each as the alert objects of the HTTP interface, without what belongs to a database."""
        return [view(fired, self._framework) for fired in self._fired.values()]

    @property
    def fired(self) -> list[Rehearsed]:
        """The alerts that fired, in the order in which they did."""
        return list(self._fired.values())

    def _take(self, findings: Iterator[Finding]) -> None:
        for finding in findings:
            for transition in self._book.apply(finding):
                self._note(transition)
        self._book.changed.clear()

    def _note(self, transition: Transition) -> None:
        if transition.kind == "firing":
            self._fired[transition.entry] = Rehearsed(transition.entry)
        elif transition.entry in self._fired:
            self._fired[transition.entry].ended = transition.reason or transition.kind


def view(fired: Rehearsed, framework: str) -> dict[str, Any]:
    """As the alert object of the HTTP interface, without what belongs to a database."""
    entry = fired.entry
    verdict, state = entry.verdict, entry.state
    first = state.since if state.fired is None else state.fired
    english, chinese = message(verdict, first, entry.hits, framework)
    return {
        "kind": entry.kind,
        "severity": state.severity.label,
        "state": Phase.RESOLVED.value if fired.ended is not None else Phase.FIRING.value,
        "first_step": first,
        "last_step": state.held,
        "since_step": min(verdict.since_step, state.since),
        "layer": verdict.layer,
        "rank": verdict.rank,
        "device": verdict.device,
        "format": verdict.format,
        "reason": verdict.reason,
        "message": english,
        "message_zh": chinese,
        "value": plain_number(verdict.value),
        "threshold": plain_number(verdict.threshold),
        "hits": entry.hits,
        "detail": plain(dict(verdict.detail)),
        "resolved_reason": fired.ended,
    }


def rehearse(
    rules: RuleParameters, observations: Iterable[Observation], *, framework: str = ""
) -> list[dict[str, Any]]:
    """The alerts that ``rules`` would have raised over ``observations`` of one attempt."""
    rehearsal = Rehearsal(rules, framework=framework)
    for observation in observations:
        rehearsal.observe(observation)
    rehearsal.finish()
    return rehearsal.alerts()
