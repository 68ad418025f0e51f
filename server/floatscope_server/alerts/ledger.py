"""Alerts in the database: everything that follows from a stretch of steps in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from floatscope_server.alerts.book import Entry, Transition
from floatscope_server.alerts.machine import Phase, State
from floatscope_server.alerts.models import Alert, AlertEvent, Endpoint, Evaluated, Silence
from floatscope_server.alerts.notices import deliver, is_silenced, new_event_id, silences_at
from floatscope_server.alerts.texts import message
from floatscope_server.alerts.views import alert_view
from floatscope_server.jsontext import number, plain, plain_number
from floatscope_server.models import StepEvent
from floatscope_server.rules.run import Skip
from floatscope_server.rules.verdict import Severity, Verdict
from floatscope_server.settings import Settings

__all__ = ["Mark", "Work", "open_entries", "store"]


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a writer has been judged; ``held``: the last step of block ``seq`` waits for its rest."""

    writer: str
    seq: int
    step: int
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the judgement of one attempt of a run has come to since the last transaction."""

    run_id: int
    run: str
    attempt: int
    entries: Iterable[Entry]
    transitions: Iterable[Transition]
    marks: Iterable[Mark]
    skips: Iterable[Skip] = ()
    framework: str = ""


def store(session: Session, settings: Settings, work: Work, now: datetime) -> list[dict[str, Any]]:
    """Write ``work``: alerts, events, outbox rows and marks. Returns the alert objects that changed."""
    rows: dict[Entry, Alert] = {}
    closed = {t.entry: t for t in work.transitions if t.kind != "firing"}
    # Those that close go first: a successor with the same key may only be added after them.
    for entry in sorted(work.entries, key=lambda entry: entry not in closed):
        rows[entry] = _row(session, work, entry, closed.get(entry), now)
        session.flush()
        entry.id = rows[entry].id
    endpoints = list(session.exec(select(Endpoint).where(Endpoint.enabled)))
    silences = silences_at(session, now)
    for transition in work.transitions:
        if transition.kind != "dropped":
            _event(session, settings, endpoints, silences, rows[transition.entry], transition, now)
    for mark in work.marks:
        known = session.get(Evaluated, mark.writer)
        if known is None:
            known = Evaluated(writer=mark.writer, run_id=work.run_id, attempt=work.attempt, seq=0, step=-1)
        known.seq, known.step, known.held = mark.seq, mark.step, mark.held
        session.add(known)
    for skip in work.skips:
        session.execute(
            update(StepEvent)
            .where(
                col(StepEvent.run_id) == work.run_id,
                col(StepEvent.step) == skip.step,
                col(StepEvent.attempt) == work.attempt,
                col(StepEvent.rank) == skip.rank,
                col(StepEvent.kind) == "skipped",
            )
            .values(layer=skip.layer, certainty=skip.certainty)
        )
    return [alert_view(row) for row in rows.values() if row.state != "pending"]


def _row(session: Session, work: Work, entry: Entry, closing: Transition | None, now: datetime) -> Alert:
    verdict, state = entry.verdict, entry.state
    first = state.since if state.fired is None else state.fired
    row = None if entry.id is None else session.get(Alert, entry.id)
    english, chinese = message(verdict, first, entry.hits, work.framework)
    detail = plain(dict(verdict.detail))
    if entry.layers:
        detail["layers"] = list(entry.layers)
    if verdict.tensor is not None:
        detail["tensor"] = verdict.tensor
    if entry.replaces is not None:
        detail["replaces"] = entry.replaces.id
    if entry.past:
        detail["imported"] = True
    if row is None:
        row = Alert(
            run_id=work.run_id,
            run=work.run,
            attempt=work.attempt,
            dedupe_key=f"{work.attempt}/{entry.dedupe_key}",
            kind=entry.kind,
            severity=state.severity.label,
            state=state.phase.value,
            first_step=first,
            last_step=state.held,
            since_step=first,
            reason=verdict.reason,
            message=english,
            message_zh=chinese,
            opened_at=now,
        )
    row.severity, row.state = state.severity.label, state.phase.value
    row.first_step, row.last_step = first, state.held
    row.since_step = min(verdict.since_step, state.since)
    row.layer, row.rank, row.device = verdict.layer, verdict.rank, verdict.device
    row.format, row.reason = verdict.format, verdict.reason
    row.message, row.message_zh = english, chinese
    row.value, row.threshold = plain_number(verdict.value), plain_number(verdict.threshold)
    row.hits, row.detail, row.machine = entry.hits, detail, _machine(entry)
    if closing is not None:
        row.state = Phase.RESOLVED.value
        row.resolved_at, row.resolved_reason = now, closing.reason or closing.kind
    session.add(row)
    return row


def _event(
    session: Session,
    settings: Settings,
    endpoints: Iterable[Endpoint],
    silences: Sequence[Silence],
    row: Alert,
    transition: Transition,
    now: datetime,
) -> None:
    assert row.id is not None
    event = AlertEvent(id=new_event_id(), alert_id=row.id, kind=transition.kind, step=transition.step, at=now)
    session.add(event)
    if transition.kind == "superseded":
        return
    view = alert_view(row)
    if transition.kind == "firing":
        # The same transaction may have closed it already; what is told is how it fired.
        view |= {"state": Phase.FIRING.value, "resolved_at": None, "resolved_reason": None}
    if not transition.entry.past and not is_silenced(silences, row.run, row.kind, row.layer, now):
        deliver(session, settings, endpoints, event, f"alert.{transition.kind}", view, now)


def _machine(entry: Entry) -> dict[str, Any]:
    return {
        "family": entry.family,
        "leader": entry.leader,
        "since": entry.state.since,
        "held": entry.state.held,
        "fired": entry.state.fired,
        "since_at": entry.state.since_at,
        "held_at": entry.state.held_at,
        "members": sorted(entry.members),
        "covered": sorted(entry.covered),
        "certainty": entry.verdict.certainty,
    }


def open_entries(session: Session, run_id: int, attempt: int) -> list[Entry]:
    """The open alerts of an attempt as they were stored last."""
    rows = session.exec(
        select(Alert)
        .where(Alert.run_id == run_id, Alert.attempt == attempt, Alert.state != Phase.RESOLVED.value)
        .order_by(col(Alert.id))
    )
    return [_entry(row) for row in rows]


def _entry(row: Alert) -> Entry:
    machine: Mapping[str, Any] = row.machine
    severity = Severity[row.severity.upper()]
    layers = [member.partition(":")[2] for member in machine["covered"] if ":" in member]
    return Entry(
        kind=row.kind,
        family=machine["family"],
        leader=machine["leader"],
        state=State(
            phase=Phase(row.state),
            severity=severity,
            since=machine["since"],
            held=machine["held"],
            fired=machine["fired"],
            since_at=machine.get("since_at"),
            held_at=machine.get("held_at"),
        ),
        verdict=Verdict(
            kind=row.kind,
            severity=severity,
            reason=row.reason,
            since_step=row.since_step,
            layer=row.layer,
            tensor=row.detail.get("tensor"),
            format=row.format,
            rank=row.rank,
            device=row.device,
            value=None if row.value is None else number(row.value),
            threshold=None if row.threshold is None else number(row.threshold),
            hits=row.hits,
            certainty=machine["certainty"],
            detail=dict(row.detail),
        ),
        members=set(machine["members"]),
        covered=set(machine["covered"]),
        layers=[] if machine["family"] == "" else list(row.detail.get("layers", [])),
        seen_layers=set(layers),
        hits=row.hits,
        id=row.id,
        past=row.detail.get("imported") is True,
    )
