"""A run's recent past and its judgement, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Set
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.observation import ALL_RANKS, Observation
from floatscope_server.rules import stalled
from floatscope_server.rules.columns import Columns
from floatscope_server.rules.devices import DeviceWindow
from floatscope_server.rules.findings import series_finding
from floatscope_server.rules.layer_health import LayerHealth
from floatscope_server.rules.layers import LayerWindow
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record, has_sound_loss, record_of, scalars_by_step
from floatscope_server.rules.reports import REPORTED, ReportWindow
from floatscope_server.rules.scalars import Calm, ScalarWindow
from floatscope_server.rules.spans import Span, spans_of
from floatscope_server.rules.tempo import Arrivals
from floatscope_server.rules.tensors import Block, LayerTable, Rows
from floatscope_server.rules.verdict import NO_DATA, Finding, Outcome

__all__ = ["RunWindow", "Skip", "Watched"]

Watched = Callable[[], Set[str]]
"""Tells the kinds of the alerts that are open now."""


_LAYER_KINDS = frozenset({"limit_crossed", "limit_near", "underflow", "scale_extreme", "dead_gradient", "update_ratio"})
_FEW = 8
"""Steps from which comparing whole series is faster than one step after the other."""
_AT_A_GLANCE = 512
"""Steps that are looked at together; all that follow an alarming one are looked at again."""
_MAX_PARTS = 64
"""Blocks over which one step may be spread, 64 MiB; what comes later is judged as a step of its own."""
_APART = 20
"""Distances of steps whose median is how far apart steps come."""


@dataclass(slots=True)
class _Step:
    """What is known of one step of one rank."""

    rows: dict[str, Rows] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    skipped: bool = False
    at_minimum: bool = False

    def join(self, later: _Step) -> None:
        for kind, rows in later.rows.items():
            self.rows[kind] = self.rows[kind].joined(rows) if kind in self.rows else rows
        self.values |= later.values
        self.skipped = self.skipped or later.skipped
        self.at_minimum = self.at_minimum or later.at_minimum


@dataclass(slots=True, kw_only=True)
class _Open:
    """A step whose rest comes in the block ``seq`` + 1 of ``writer``."""

    writer: str
    seq: int
    number: int
    step: _Step
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """What was found about a skipped step: the layer that its alert names, None if everything was finite."""

    step: int
    rank: int
    layer: str | None
    certainty: int


class _Rank:
    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self.rank = rank
        self.scalars = ScalarWindow(rules, rank)
        self.layers = LayerWindow(rules, rank)
        self.health = LayerHealth(rules, rank)
        self.open: _Open | None = None


class RunWindow:
    """All that the rules remember of one attempt of one run.

    ``judge`` and ``finish`` are generators and move the window on as they are consumed: the verdicts of a finding must
    be asked for before the next one is drawn. ``skips`` collects what was found about skipped steps and is the
    caller's to clear.

    Most steps say nothing. Where a caller tells which alerts are open, blocks in which nothing is near a limit are
    passed over with comparisons of whole arrays, and only those findings come that say something or clear one of these
    alerts: the same transitions, at a fraction of the time.
    """

    def __init__(self, rules: RuleParameters) -> None:
        self.skips: list[Skip] = []
        self._rules = rules
        self._ranks: dict[int, _Rank] = {}
        self._merged = ScalarWindow(rules, ALL_RANKS)
        self._layers: Mapping[int, wire.Layer] = {}
        self._layers_sent: Mapping[int, wire.Layer] | None = None
        self._table = LayerTable({})
        self._world = 1
        self._devices = DeviceWindow(rules)
        self._reports = ReportWindow(rules)
        self._arrivals = Arrivals()
        self._steps_seen = 0
        self._formats_of: object = None
        self._apart: deque[int] = deque(maxlen=_APART)
        self.last_step = -1
        """The newest step that was judged, -1 before the first."""

    def judge(self, observation: Observation, watched: Watched | None = None) -> Iterator[Finding]:
        """The findings of every step of ``observation`` that is complete, in order. ``watched`` tells the kinds of the
        alerts that are open at the moment; without it every step is judged by itself and all findings come.

        A step that goes on in the writer's next block waits for it. If another comes instead (a gap was declared, a
        process took the rank's place) it is judged by what there is.
        """
        body = observation.body
        if observation.layers is not self._layers_sent:
            self._layers_sent = observation.layers
            if observation.layers != self._layers:
                self._layers = dict(observation.layers)
                self._table = LayerTable(self._layers)
        self._world = observation.world
        rank = self._ranks.setdefault(observation.rank, _Rank(self._rules, observation.rank))
        if watched is None or not (yield from self._pass_over(rank, body, watched)):
            yield from self._judge_steps(rank, observation, watched)
        for number, values in scalars_by_step(observation.merged).items():
            yield from self._judge_merged(number, values)
        yield from self._beside(observation)

    def remember(self, observation: Observation) -> None:
        """Make a block part of the past that was judged before."""
        for _ in self.judge(observation, frozenset):
            pass
        self.skips.clear()

    def _judge_steps(self, rank: _Rank, observation: Observation, watched: Watched | None) -> Iterator[Finding]:
        body = observation.body
        steps = _steps(body)
        before, rank.open = rank.open, None
        if before is not None:
            if (observation.writer, observation.seq) == (before.writer, before.seq + 1):
                if before.number in steps:
                    before.step.join(steps[before.number])
                steps[before.number] = before.step
            else:
                yield from self._judge(rank, before.number, before.step, watched)
        number = max(steps, default=-1)
        parts = 1 if before is None or before.number != number else before.parts + 1
        if body.continued and steps and parts < _MAX_PARTS:
            rank.open = _Open(
                writer=observation.writer, seq=observation.seq, number=number, step=steps.pop(number), parts=parts
            )
        for number in sorted(steps):
            yield from self._judge(rank, number, steps[number], watched)

    def _pass_over(self, rank: _Rank, body: wire.Body, watched: Watched) -> Generator[Finding, None, bool]:
        """The steps of a block of which the tensors say nothing; False, and nothing done, where they may."""
        if rank.open is not None or body.continued or any(event.kind == "skipped" for event in body.events):
            return False
        spans = spans_of(body.summaries)
        if spans is None or not _LAYER_KINDS.isdisjoint(watched()):
            return False
        if not spans:
            if max((len(series.steps) // 8 for series in body.scalars), default=0) < _FEW:
                return False
            now = Columns.of(body.scalars, (), (), rank.scalars.names)
            if now is None:
                return False
            yield from self._series(rank, body, now, watched, tensors=False)
            return True
        grad = spans.get("grad")
        grads = [] if grad is None else grad.steps[grad.observed.any(axis=1)].tolist()
        steps = {step for span in spans.values() for step in span.steps.tolist()}
        # The alert on a value that is not finite names its layer: such a step needs the tensors beside the series.
        if len(steps) >= _FEW:
            now = Columns.of(body.scalars, grads, steps, rank.scalars.names)
            if now is None or not rank.scalars.sound(now).all() or not self._tensors_pass(rank, spans):
                return False
            yield from self._series(rank, body, now, watched, tensors=True)
            return True
        records = scalars_by_step(body.scalars)
        if not rank.scalars.all_sound(records.values()) or not self._tensors_pass(rank, spans):
            return False
        for step in sorted(steps | records.keys()):
            yield from self._judge_series(rank, step, records.get(step, {}), watched, grads=step in grads)
        return True

    def _tensors_pass(self, rank: _Rank, spans: Mapping[str, Span]) -> bool:
        """Whether nothing in ``spans`` is near a limit; then they have become part of the past."""
        pushes = rank.layers.calm(self._table, spans)
        more = None if pushes is None else rank.health.calm(self._table, spans)
        if pushes is None or more is None:
            return False
        for push in (*pushes, *more):
            push()
        return True

    def _series(
        self, rank: _Rank, body: wire.Body, now: Columns, watched: Watched, *, tensors: bool
    ) -> Iterator[Finding]:
        """The series of many steps. Beside ``tensors`` they are sound, and the tensors have passed."""
        first, total, in_a_row = 0, len(now.steps), 0
        while first < total:
            ahead = now.cut(first, min(first + _AT_A_GLANCE, total))
            glance = rank.scalars.calm(ahead)
            alarming = np.flatnonzero(~glance.calm)
            steps = int(alarming[0]) if len(alarming) else len(ahead.steps)
            if steps:
                in_a_row = 0
                yield from self._skim(rank, ahead.cut(0, steps), glance.cut(steps), watched())
                first += steps
            if len(alarming):
                # Trouble lasts: the longer it has, the more steps are judged before the next look ahead.
                in_a_row = min(2 * in_a_row + 1, _AT_A_GLANCE)
                for at in range(first, min(first + in_a_row, total)):
                    number, values = int(now.steps[at]), now.values_at(at, body.scalars)
                    if tensors:
                        grads = bool(now.grads[at])
                        yield from self._judge_series(rank, number, values, watched, grads=grads)
                    else:
                        yield from self._judge(rank, number, _Step(values=values), watched)
                first = min(first + in_a_row, total)

    def _skim(self, rank: _Rank, now: Columns, glance: Calm, watched: Set[str]) -> Iterator[Finding]:
        """Steps of which no series alarms."""
        found = list(rank.scalars.skim(now, glance, watched))
        steps = now.steps.tolist()
        if self._world > 1 and "step_time_s" in now.fields:
            told = "straggler" in watched
            for position, seconds in enumerate(now.listed("step_time_s")):
                if seconds is not None:
                    late = list(self._late(steps[position], rank.rank, seconds))
                    told = told or any(finding.active for finding in late)
                    found += [(position, finding) for finding in late if told]
        fresh = [at for at, step in enumerate(steps) if step > self.last_step]
        reports = not watched.isdisjoint(REPORTED)
        for at in fresh if reports else fresh[-1:]:
            reported = [(at, finding) for finding in self._reports.step(steps[at])]
            found += reported if reports else []
        if fresh:
            before = [self.last_step] if self.last_step >= 0 else []
            self._apart.extend(np.diff([*before, *(steps[at] for at in fresh)]).tolist())
            self.last_step = steps[-1]
            self._steps_seen += len(fresh)
        found.sort(key=lambda item: item[0])
        for _, finding in found:
            yield finding

    def _beside(self, observation: Observation) -> Iterator[Finding]:
        """What a block holds besides the numbers of its steps: samples of cards, events, the layers' formats."""
        body = observation.body
        # The samples of a recording without a run carry their own row as step and count from the first.
        step = max(self.last_step, body.first_step + body.steps - 1)
        recorded = any(event.kind == "read" and event.detail.get("samples") is True for event in body.events)
        alone = recorded or (body.steps > 0 and not self._steps_seen)
        counts = alone or self._devices.warmed_up(self._steps_seen)
        yield from self._devices.judge(body.devices, observation.rank, step, counts=counts)
        yield from self._reports.events(body.events, observation.rank)
        formats = (id(self._layers), self._devices.fp8)
        if self._layers and formats != self._formats_of:
            self._formats_of = formats
            yield from self._reports.formats(self._layers, self._table, self._devices.fp8, max(step, 0))

    @property
    def names(self) -> set[str]:
        """The names of all series that were logged so far."""
        return set().union(*(rank.scalars.names for rank in self._ranks.values()))

    @property
    def step_time_s(self) -> float | None:
        """The median seconds a step of the slowest rank; None before it is known."""
        known = [rank.scalars.course.step_time_s for rank in self._ranks.values()]
        return max((seconds for seconds in known if seconds is not None), default=None)

    def tick(self, now: float, progress_at: float, step_time_s: float | None = None) -> Iterator[Finding]:
        """What the clock says of a run that is not over. ``now`` and ``progress_at``, when the last new step came, in
        seconds since 1970; ``step_time_s`` counts where the run itself tells of no step time."""
        known = self.step_time_s
        seconds = step_time_s if known is None else known
        if seconds is not None and self._apart:
            # A log shows every k-th step only.
            seconds *= median(self._apart)
        window = stalled.Window(last_step=self.last_step, progress_at=progress_at, step_time_s=seconds)
        yield from self._reports.tick(window, now)

    def gap(self, first: int, last: int, count: int, reason: str, rank: int) -> Iterator[Finding]:
        """What the loss of ``count`` records of the steps ``first`` to ``last`` means."""
        yield from self._reports.gap(first, last, count, reason, rank)

    def waits(self, writer: str) -> bool:
        """Whether the last step of ``writer`` is not complete."""
        return any(rank.open is not None and rank.open.writer == writer for rank in self._ranks.values())

    def finish(self) -> Iterator[Finding]:
        """The findings of steps whose rest will not come."""
        for rank in self._ranks.values():
            before, rank.open = rank.open, None
            if before is not None:
                yield from self._judge(rank, before.number, before.step)

    def _judge(self, rank: _Rank, number: int, step: _Step, watched: Watched | None = None) -> Iterator[Finding]:
        rows = {kind: found.one_each() for kind, found in step.rows.items()}
        layers = rank.layers.see(self._table, rows, reduced=self._world > 1, sound_loss=has_sound_loss(step.values))
        now: Record = record_of(
            number,
            step.values,
            skip_event=step.skipped,
            at_minimum=step.at_minimum,
            seen=rank.scalars.names,
            previous_scale=rank.scalars.last_scale,
            grad_nan=layers.grad_nan,
            grad_inf=layers.grad_inf,
        )
        rank.scalars.learn(step.values)
        nonfinite = rank.scalars.nonfinite(now)
        for finding in rank.layers.judge(layers, now, nonfinite, since=rank.scalars.nonfinite_since):
            if step.skipped and finding.kind == "nonfinite":
                verdict = finding.verdict(str(rank.rank))
                self.skips.append(Skip(step=number, rank=rank.rank, layer=verdict.layer, certainty=verdict.certainty))
            if watched is None or finding.active or finding.kind in watched():
                yield finding
        yield from rank.health.judge(self._table, rows, layers.broken, number, reduced=self._world > 1)
        yield from self._judged(rank, now, nonfinite, watched)

    def _judge_series(
        self, rank: _Rank, number: int, values: Mapping[str, float], watched: Watched, *, grads: bool
    ) -> Iterator[Finding]:
        """A sound step whose tensors have passed; ``grads``: gradients were among them."""
        now = record_of(
            number,
            values,
            seen=rank.scalars.names,
            previous_scale=rank.scalars.last_scale,
            grad_nan=False if grads else None,
            grad_inf=False if grads else None,
        )
        rank.scalars.learn(values)
        outcome = rank.scalars.nonfinite(now)
        assert outcome.verdict is None
        if "nonfinite" in watched():
            finding = series_finding("nonfinite", self._rules.nonfinite, number, rank.rank, outcome)
            if finding is not None:
                yield finding
        yield from self._judged(rank, now, outcome, watched)

    def _judged(self, rank: _Rank, now: Record, nonfinite: Outcome, watched: Watched | None) -> Iterator[Finding]:
        """The findings of the rules on series, and that a step came."""
        number, kinds = now.step, None if watched is None else watched()
        yield from rank.scalars.judge(now, kinds)
        rank.scalars.push(now, nonfinite)
        if self._world > 1 and now.step_time_s is not None:
            yield from self._late(number, rank.rank, now.step_time_s)
        if number > self.last_step:
            if self.last_step >= 0:
                self._apart.append(number - self.last_step)
            self.last_step = number
            self._steps_seen += 1
            for finding in self._reports.step(number):
                if kinds is None or finding.kind in kinds:
                    yield finding

    def _late(self, number: int, rank: int, seconds: float) -> Iterator[Finding]:
        rule = self._rules.straggler
        for member, outcome in self._arrivals.add(rule, number, rank, seconds, self._world).items():
            finding = series_finding("straggler", rule, number, member, outcome, family=f"rank{member}")
            if finding is not None:
                yield finding

    def _judge_merged(self, number: int, values: dict[str, float]) -> Iterator[Finding]:
        """A series of all ranks together. What is not finite in it was found on the rank that had it."""
        window = self._merged
        for rank in self._ranks.values():
            window.learn(dict.fromkeys(rank.scalars.names, 0.0))
        now = record_of(number, values)
        yield from window.judge(now)
        window.push(now, NO_DATA)


def _steps(body: wire.Body) -> dict[int, _Step]:
    steps: dict[int, _Step] = {}
    for number, values in scalars_by_step(body.scalars).items():
        steps.setdefault(number, _Step()).values = values
    for event in body.events:
        if event.kind == "skipped":
            skipped = steps.setdefault(event.step, _Step())
            skipped.skipped = True
            skipped.at_minimum = bool(event.detail.get("at_minimum"))
    for summaries in body.summaries:
        block = Block(summaries.kind, Frame.of(summaries))
        for number in range(block.first_step, block.first_step + block.steps):
            rows = block.rows(number)
            assert rows is not None
            steps.setdefault(number, _Step()).join(_Step(rows={block.kind: rows}))
    return steps
