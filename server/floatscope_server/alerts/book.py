"""The open alerts of one attempt of a run: which findings belong to which alert, and what that does to it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Set
from dataclasses import dataclass, field

from floatscope_server.alerts.later import with_later
from floatscope_server.alerts.machine import Change, Ended, Phase, Policy, Signal, State, advance
from floatscope_server.rules.verdict import Finding, Severity, Verdict

__all__ = ["Book", "Entry", "Transition"]

# Names kept of the layers that share a cause; the rest is counted.
_LISTED = 50
# After a NaN an agent looks closer for up to 512 steps, from a step or two later on.
_LATER_STEPS = 600
# Of a finding that was seen in outputs or in output gradients, not in gradients alone.
_SEEN = 2
# While an alert of the first kind fires above info, those of the second tell the same story again.
_INHIBITS = {
    "nonfinite": ("loss_spike", "grad_norm_spike", "grad_norm_frozen", "stale_grad_norm", "lr_frozen", "dead_gradient"),
    "stalled": ("throughput_drop", "straggler", "gpu_util_drop", "gpu_imbalance"),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An alert that is open, or was until a moment ago.

    ``members`` are those for which the condition holds now, ``covered`` all it has ever held for; ``layers`` names the
    first of them that joined the leader. ``hits`` counts layers, or records where there is no layer. ``id`` is the row
    in the database once there is one, ``replaces`` the entry that this one took over from with a greater severity.
    ``past``: it was found in what a log already held, and nobody is to be told.
    """

    kind: str
    family: str
    leader: str
    state: State
    verdict: Verdict
    members: set[str] = field(default_factory=set)
    covered: set[str] = field(default_factory=set)
    layers: list[str] = field(default_factory=list)
    seen_layers: set[str] = field(default_factory=set)
    hits: int = 1
    id: int | None = None
    replaces: Entry | None = None
    past: bool = False

    @property
    def dedupe_key(self) -> str:
        """What makes it one alert among the open ones of its attempt."""
        return f"{self.kind}/{self.family}/{self.leader}"

    def take(self, member: str, finding: Finding) -> None:
        """``member`` shares the cause."""
        self.members.add(member)
        if member in self.covered:
            return
        self.covered.add(member)
        layer = _layer(member)
        if layer is None or layer in self.seen_layers:
            return
        self.seen_layers.add(layer)
        self.hits += 1
        name = finding.verdict(member).layer
        if name is not None and len(self.layers) < _LISTED:
            self.layers.append(name)


@dataclass(frozen=True, slots=True)
class Transition:
    """``kind``: firing, resolved or superseded."""

    entry: Entry
    kind: str
    step: int
    reason: str | None = None


def _layer(member: str) -> str | None:
    _, colon, layer = member.partition(":")
    return layer if colon else None


class Book:
    """Applies findings in the order of their steps. ``changed`` collects the entries to be stored, and is the
    caller's to clear. Of the kinds in ``off`` no alert begins; those that are open go on until they resolve."""

    def __init__(self, off: frozenset[str] = frozenset()) -> None:
        self._off = off
        self._open: dict[tuple[str, str], list[Entry]] = {}
        self.past = False
        """Whether what comes next is from a log that was there already."""
        self.changed: dict[Entry, None] = {}

    def __iter__(self) -> Iterator[Entry]:
        for entries in self._open.values():
            yield from entries

    @property
    def kinds(self) -> Set[str]:
        """The kinds of the alerts that are open."""
        return {kind for kind, _ in self._open}

    def add(self, entry: Entry) -> None:
        """An entry that is open already (after a restart)."""
        self._open.setdefault((entry.kind, entry.family), []).append(entry)

    def apply(self, finding: Finding) -> list[Transition]:
        """What ``finding`` does to the open alerts."""
        entries = self._open.get((finding.kind, finding.family), [])
        if not entries and not finding.active:
            return []
        inhibited = self._inhibited(finding.kind)
        worst: dict[Entry, tuple[Severity, str]] = {}
        fresh: list[str] = []
        for member, severity in finding.active.items():
            entry = self._home(entries, member, finding)
            if entry is None:
                fresh.append(member)
                continue
            self._refine(entry, member, finding)
            entry.take(member, finding)
            if entry not in worst or severity > worst[entry][0]:
                worst[entry] = (severity, member)
        done = [t for entry in list(entries) for t in self._step(entry, finding, worst.get(entry), inhibited=inhibited)]
        fresh = [member for member in fresh if not self._explained(finding, member)]
        if fresh and finding.kind not in self._off:
            done += self._start(fresh, finding, inhibited=inhibited)
        return done

    def end(self, ended: Ended, step: int | None = None) -> list[Transition]:
        """Nothing more will be heard of this attempt: close what does not outlive it."""
        done: list[Transition] = []
        for entry in list(self):
            at = entry.state.held if step is None else step
            state, change = advance(Policy(), entry.state, Signal(ended=ended), at)
            if change is Change.NONE:
                continue
            self._close(entry)
            if change is Change.RESOLVED and state is not None:
                entry.state = state
                done.append(Transition(entry, "resolved", at, ended.value))
            else:
                done.append(Transition(entry, "dropped", at))
        return done

    def resolve(self, alerts: Container[int]) -> list[Transition]:
        """Close those that fire and have these ids, whatever their condition."""
        done: list[Transition] = []
        for entry in list(self):
            if entry.id is not None and entry.id in alerts and entry.state.phase is Phase.FIRING:
                self._close(entry)
                entry.state = dataclasses.replace(entry.state, phase=Phase.RESOLVED)
                done.append(Transition(entry, "resolved", entry.state.held, "by_hand"))
        return done

    def _inhibited(self, kind: str) -> bool:
        causes = [cause for cause, silenced in _INHIBITS.items() if kind in silenced]
        return any(
            entry.state.phase is Phase.FIRING and entry.state.severity > Severity.INFO
            for cause in causes
            for entry in self._open.get((cause, ""), [])
        )

    def _explained(self, finding: Finding, member: str) -> bool:
        """Whether a crossed limit of the same tensor is open: that it is near as well says nothing new."""
        if finding.kind != "limit_near":
            return False
        crossed = self._open.get(("limit_crossed", finding.family), [])
        return any(member in entry.covered for entry in crossed)

    def _home(self, entries: list[Entry], member: str, finding: Finding) -> Entry | None:
        layer = _layer(member)
        for entry in reversed(entries):
            if member in entry.covered or layer in entry.seen_layers:
                return entry
        for entry in reversed(entries):
            if finding.group_steps is None or 0 <= finding.step - entry.state.since <= finding.group_steps:
                return entry
        return None

    def _refine(self, entry: Entry, member: str, finding: Finding) -> None:
        """A rank that saw the cause itself names it better than the ranks that got it by reduction, and a step of which
        more was read better than one of which only gradients were."""
        if _layer(member) is not None:
            return
        if 0 < finding.step - entry.state.since <= _LATER_STEPS:
            self._learn(entry, member, finding)
            return
        if member in entry.covered or finding.step != entry.state.since:
            return
        verdict = finding.verdict(member)
        if verdict.certainty > entry.verdict.certainty:
            entry.verdict = dataclasses.replace(verdict, severity=entry.verdict.severity)
            entry.hits = max(entry.hits, verdict.hits)
            self.changed[entry] = None

    def _learn(self, entry: Entry, member: str, finding: Finding) -> None:
        if finding.kind != "nonfinite" or entry.verdict.certainty >= _SEEN:
            return
        later = finding.verdict(member)
        if later.certainty >= _SEEN:
            refined = with_later(entry.verdict, later, finding.step)
            if refined is not entry.verdict:
                entry.verdict = refined
                self.changed[entry] = None

    def _step(
        self, entry: Entry, finding: Finding, worst: tuple[Severity, str] | None, *, inhibited: bool
    ) -> list[Transition]:
        entry.members = {m for m in entry.members if m in finding.active or not finding.clear(m)}
        if worst is not None:
            signal = Signal(severity=worst[0])
        else:
            signal = Signal(clear=not entry.members and any(finding.clear(m) for m in entry.covered))
        policy = Policy(hold=finding.hold, keep=finding.keep)
        before = entry.state
        state, change = advance(policy, before, signal, finding.step, at=finding.at, inhibited=inhibited)
        if change is Change.DROPPED:
            self._close(entry)
            return [Transition(entry, "dropped", finding.step)]
        assert state is not None
        entry.state = state
        if state != before:
            self.changed[entry] = None
        if change is Change.FIRED:
            assert worst is not None
            entry.verdict, entry.past = finding.verdict(worst[1]), self.past
            return [Transition(entry, "firing", finding.step)]
        if change is Change.RESOLVED:
            self._close(entry)
            return [Transition(entry, "resolved", finding.step, "cleared")]
        if change is Change.ESCALATED:
            self._close(entry)
            members = [m for m in finding.active if m in entry.covered]
            assert worst is not None
            members.sort(key=lambda m: m != worst[1])
            superseded = Transition(entry, "superseded", finding.step)
            return [superseded, *self._start(members, finding, replaces=entry)]
        if worst is not None and entry.verdict.layer is None:
            entry.hits += 1
        return []

    def _start(
        self, members: list[str], finding: Finding, *, inhibited: bool = False, replaces: Entry | None = None
    ) -> list[Transition]:
        severity = max(finding.active[member] for member in members)
        leader = next(member for member in members if finding.active[member] is severity)
        # An entry that gains severity has waited already.
        policy = Policy(hold=0 if replaces is not None else finding.hold, keep=finding.keep)
        signal = Signal(severity=severity)
        state, change = advance(policy, None, signal, finding.step, at=finding.at, inhibited=inhibited)
        if state is None:
            return []
        verdict = finding.verdict(leader)
        layer = _layer(leader)
        entry = Entry(
            kind=finding.kind,
            family=finding.family,
            leader=layer or "",
            state=state,
            verdict=verdict,
            members={leader},
            covered={leader},
            seen_layers=set() if layer is None else {layer},
            hits=verdict.hits,
            replaces=replaces,
            past=self.past,
        )
        for member in members:
            if member != leader:
                entry.take(member, finding)
        self.add(entry)
        self.changed[entry] = None
        return [Transition(entry, "firing", finding.step)] if change is Change.FIRED else []

    def _close(self, entry: Entry) -> None:
        key = entry.kind, entry.family
        self._open[key].remove(entry)
        if not self._open[key]:
            del self._open[key]
        self.changed[entry] = None
