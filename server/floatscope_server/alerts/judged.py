"""One attempt of a run while the engine judges it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlmodel import Session

from floatscope_server.alerts.book import Book, Transition
from floatscope_server.alerts.keys import framework_of
from floatscope_server.alerts.ledger import Mark, open_entries
from floatscope_server.alerts.models import Evaluated
from floatscope_server.alerts.tuning import parameters_of
from floatscope_server.models import Run
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from floatscope_server.rules.verdict import Finding

__all__ = ["Judged"]


class Judged:
    """One attempt of a run in memory: the rules' window, the open alerts, and what is not yet stored of them."""

    def __init__(self, rules: RuleParameters, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.rules = rules
        self._config = config
        self.window = RunWindow(rules)
        self.book = Book(rules.off_kinds)
        self.seqs: dict[str, int] = {}
        self.held: dict[str, Mark] = {}
        self.moved: dict[str, Mark] = {}
        self.transitions: list[Transition] = []

    @classmethod
    def stored(
        cls, session: Session, run_id: int, attempt: int, marks: Iterable[Evaluated], rules: RuleParameters
    ) -> Judged:
        """As its alerts and ``marks`` say; the window is empty. ``rules`` hold where no others were set."""
        row = session.get(Run, run_id)
        assert row is not None, "a committed block belongs to a run"
        run = cls(parameters_of(session, run_id, rules), row.name, row.config)
        for entry in open_entries(session, run_id, attempt):
            run.book.add(entry)
        run.seqs = {mark.writer: mark.seq for mark in marks}
        run.held = {mark.writer: Mark(mark.writer, mark.seq, mark.step, held=True) for mark in marks if mark.held}
        return run

    def mark(self, observation: Observation) -> None:
        """It is judged."""
        self.seqs[observation.writer] = observation.seq
        last = observation.body.first_step + max(observation.body.steps, 1) - 1
        mark = Mark(observation.writer, observation.seq, last, self.window.waits(observation.writer))
        self.moved[mark.writer] = mark
        self.held.pop(mark.writer, None)
        if mark.held:
            self.held[mark.writer] = mark

    def take(self, findings: Iterable[Finding]) -> None:
        """Move the alerts on by them."""
        for finding in findings:
            self.transitions += self.book.apply(finding)

    @property
    def framework(self) -> str:
        """Whose settings the alerts name."""
        return framework_of(self._config, self.window.names)

    @property
    def unstored(self) -> bool:
        """Whether anything has changed since ``settled``."""
        return bool(self.moved or self.transitions or self.book.changed or self.window.skips)

    def settled(self) -> None:
        """All of it is on disk."""
        self.moved, self.transitions = {}, []
        self.book.changed.clear()
        self.window.skips.clear()
