"""The series of one rank: what the scalar rules remember, and their findings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules import grad_norm_spike, loss_scale, loss_spike, loss_zero, nonfinite
from floatscope_server.rules.columns import Columns, Measured
from floatscope_server.rules.courses import CourseWindow
from floatscope_server.rules.findings import series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import (
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    Record,
    has_reward_keys,
    main_value,
)
from floatscope_server.rules.series import Recent
from floatscope_server.rules.tensors import Bool
from floatscope_server.rules.verdict import Finding, Outcome, Severity, Status

__all__ = ["SKIP_WINDOW", "Calm", "ScalarWindow"]

SKIP_WINDOW = 200
"""Steps for which skips of the loss scaler are remembered."""

_SOUND = frozenset({*LOSS, *EVAL_LOSS, *GRAD_NORM, *LOSS_SCALE})
_ZERO = frozenset({"raw_loss_nonfinite", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """Which of N steps are ``calm`` [N], where no rule can alert that ``ScalarWindow.skim`` does not judge itself, and
    which are at least ``sound`` [N], where nothing says that anything is not finite."""

    calm: Bool
    sound: Bool
    losses: Measured | None = None
    norms: Measured | None = None

    def cut(self, steps: int) -> Calm:
        """Of the first ``steps`` of the N."""
        return Calm(
            calm=self.calm[:steps],
            sound=self.sound[:steps],
            losses=None if self.losses is None else self.losses.cut(steps),
            norms=None if self.norms is None else self.norms.cut(steps),
        )


class ScalarWindow:
    """What went before on one rank."""

    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self._rules = rules
        self._rank = rank
        self.names: set[str] = set()
        self.last_scale: float | None = None
        self.nonfinite_since: int | None = None
        self._reward_keys = False
        self._loss = Recent()
        self._grad_norm = Recent()
        self._last_loss_step: int | None = None
        self._loss_since: int | None = None
        self._grad_since: int | None = None
        self._grad_above_info = (False, False)
        self._gradients_in_a_row = 0
        self._skips: deque[int] = deque(maxlen=SKIP_WINDOW)
        self._skips_in_a_row = 0
        self._scales: deque[float] = deque(maxlen=SKIP_WINDOW)
        self.course = CourseWindow(rules, rank)

    def learn(self, scalars: Mapping[str, float]) -> None:
        """Take note of the names that this step logs."""
        fresh = scalars.keys() - self.names
        if fresh:
            self.names |= fresh
            self._reward_keys = self._reward_keys or has_reward_keys(fresh)

    def nonfinite(self, now: Record) -> Outcome:
        """The nonfinite rule; its layer is for the caller to name."""
        window = nonfinite.Window(
            since=self.nonfinite_since,
            in_a_row=self._gradients_in_a_row,
            reward_keys=self._reward_keys,
        )
        return nonfinite.judge(self._rules.nonfinite, window, now)

    def scaler_window(self) -> loss_scale.Window:
        """What the loss scaler did before the step to come."""
        return loss_scale.Window(skips=self._skips, in_a_row=self._skips_in_a_row, high=max(self._scales, default=None))

    def judge(self, now: Record, watched: Set[str] | None = None) -> Iterator[Finding]:
        """Findings of the rules on series; of those that say nothing only the ones of kinds in ``watched``, all where
        it is None."""
        rules = self._rules
        last = self._loss.values[-1] if len(self._loss) else None
        zero = loss_zero.judge(rules.loss_zero, loss_zero.Window(last_loss=last, reward_keys=self._reward_keys), now)
        norm = grad_norm_spike.judge(
            rules.grad_norm_spike,
            grad_norm_spike.Window(recent=self._grad_norm, since=self._grad_since, reward_keys=self._reward_keys),
            now,
        )
        self._grad_above_info = (self._grad_above_info[1], norm.severity > Severity.INFO)
        spike = loss_spike.judge(
            rules.loss_spike,
            loss_spike.Window(
                recent=self._loss,
                since=self._loss_since,
                last_step=self._last_loss_step,
                grad_norm_spike=any(self._grad_above_info),
            ),
            now,
        )
        scale = loss_scale.judge(rules.loss_scale_collapse, self.scaler_window(), now)
        if norm.status is not Status.NO_DATA:
            self._grad_since = None if norm.verdict is None else norm.verdict.since_step
        if spike.status is not Status.NO_DATA:
            self._loss_since = None if spike.verdict is None else spike.verdict.since_step
        for kind, rule, outcome in (
            ("loss_zero", rules.loss_zero, zero),
            ("grad_norm_spike", rules.grad_norm_spike, norm),
            ("loss_spike", rules.loss_spike, spike),
            ("loss_scale_collapse", rules.loss_scale_collapse, scale),
        ):
            if outcome.verdict is None and watched is not None and kind not in watched:
                continue
            finding = series_finding(kind, rule, now.step, self._rank, outcome)
            if finding is not None:
                yield finding
        yield from self.course.judge(now, reward_keys=self._reward_keys, watched=watched)

    def push(self, now: Record, outcome: Outcome) -> None:
        """Make ``now`` part of the past."""
        rules = self._rules
        if outcome.status is not Status.NO_DATA:
            self.nonfinite_since = None if outcome.verdict is None else outcome.verdict.since_step
            if nonfinite.gradients_nonfinite(now):
                self._gradients_in_a_row += now.step >= rules.nonfinite.startup_steps
            else:
                self._gradients_in_a_row = 0
        elif now.skipped is False:
            self._gradients_in_a_row = 0
        if now.grad_norm is not None:
            self._grad_norm.push(now.step, now.grad_norm)
        if now.loss is not None:
            self._last_loss_step = now.step
            self._loss.push(now.step, now.loss)
        if now.skipped is not None:
            if now.skipped:
                self._skips.append(now.step)
                self._skips_in_a_row += 1
            else:
                self._skips_in_a_row = 0
            while self._skips and self._skips[0] <= now.step - SKIP_WINDOW:
                self._skips.popleft()
        if now.loss_scale is not None and math.isfinite(now.loss_scale):
            self.last_scale = now.loss_scale
            self._scales.append(now.loss_scale)

    def calm(self, now: Columns) -> Calm:
        """What the N steps of ``now``, one after the other, look like at a glance: comparisons of whole series."""
        sound = self.sound(now)
        losses = norms = None
        calm = sound.copy()
        changes = not self._reward_keys and has_reward_keys(now.names.keys() - self.names)
        for field, recent in (("loss", self._loss), ("grad_norm", self._grad_norm)):
            column = now.fields.get(field)
            if column is None or not column.present.any():
                continue
            if not recent.full or changes:
                return Calm(calm=np.zeros(len(sound), np.bool_), sound=sound)
            measured = Measured.of(column, recent)
            medians = measured.medians[measured.before]
            if field == "loss":
                losses = measured
                calm[losses.at] &= loss_spike.calm(self._rules.loss_spike, losses.values, medians)
            else:
                norms = measured
                calm[norms.at] &= grad_norm_spike.calm(
                    self._rules.grad_norm_spike, norms.values, medians, reward_keys=self._reward_keys
                )
        calm &= self.course.calm(now, losses)
        return Calm(calm=calm, sound=sound, losses=losses, norms=norms)

    def all_sound(self, records: Iterable[Mapping[str, float]]) -> bool:
        """``sound`` of a few records by name, one after the other: whether all are."""
        scale, told = self.last_scale, "lm loss" in self.names
        seen = set(self.names)
        for values in records:
            for name, value in values.items():
                if name in _SOUND and not (
                    math.isfinite(value) and (value != 0 or self._reward_keys or name not in LOSS)
                ):
                    return False
                if name in _ZERO and value != 0:
                    return False
            now = main_value(values, LOSS_SCALE, seen)
            seen |= values.keys()
            if now is not None:
                if scale is not None and now < scale:
                    return False
                scale = now
            told = told or "lm loss" in values
            if told and "grad norm" in values and "lm loss" not in values:
                return False
        return True

    def sound(self, now: Columns) -> Bool:
        """At which of N steps nothing says that anything is not finite: neither a loss or norm, nor a skipped step, nor
        an absent loss. ``nonfinite`` has no verdict there."""
        sound = np.ones(len(now.steps), np.bool_)
        for field in ("loss", "eval_loss", "grad_norm", "loss_scale"):
            if field in now.fields:
                column = now.fields[field]
                sound &= ~column.present | np.isfinite(column.values)
        if "loss" in now.fields and not self._reward_keys:
            sound &= now.fields["loss"].values != 0
        for field in ("raw_loss_nonfinite", "skipped"):
            if field in now.fields:
                column = now.fields[field]
                sound &= ~column.present | (column.values == 0)
        if "loss_scale" in now.fields:
            scale = now.fields["loss_scale"]
            at = np.flatnonzero(scale.present)
            before = np.concatenate(([-np.inf if self.last_scale is None else self.last_scale], scale.values[at]))[:-1]
            sound[at] &= ~(scale.values[at] < before)
        if "grad norm" in now.names and ("lm loss" in self.names or "lm loss" in now.names):
            sound &= ~now.names["grad norm"] | now.names.get("lm loss", np.zeros(len(sound), np.bool_))
        return sound

    def skim(self, now: Columns, at_a_glance: Calm, watched: Set[str]) -> Iterator[tuple[int, Finding]]:
        """``learn``, ``nonfinite``, ``judge`` and ``push`` for steps that are all calm, one at least.
        ``at_a_glance`` is what ``calm`` said of them; the findings are those of ``CourseWindow.skim``."""
        rules, fields = self._rules, now.fields
        losses, norms = at_a_glance.losses, at_a_glance.norms
        self.learn(dict.fromkeys((name for name, present in now.names.items() if present.any()), 0.0))
        judged = now.grads | now.present("loss", "eval_loss", "grad_norm")
        scaled = now.present("skipped", "loss_scale")
        loss = now.present("loss")
        for kind, rule, mask in (
            ("nonfinite", rules.nonfinite, judged),
            ("loss_zero", rules.loss_zero, loss if not self._reward_keys else np.zeros_like(loss)),
            ("grad_norm_spike", rules.grad_norm_spike, now.present("grad_norm")),
            ("loss_spike", rules.loss_spike, loss),
            ("loss_scale_collapse", rules.loss_scale_collapse, scaled),
        ):
            if kind in watched:
                yield from self.course.clear(kind, rule, now, np.flatnonzero(mask))
        yield from self.course.skim(now, losses, reward_keys=self._reward_keys, watched=watched)
        if judged.any():
            self.nonfinite_since = None
        if (judged | scaled).any():
            self._gradients_in_a_row = 0
        self._grad_above_info = (self._grad_above_info[1] if len(now.steps) == 1 else False, False)
        if norms is not None and len(norms.at):
            self._grad_since = None
            self._grad_norm.extend(now.steps[norms.at][norms.counts].tolist(), norms.values[norms.counts].tolist())
        if losses is not None and len(losses.at):
            self._loss_since = None
            self._last_loss_step = int(now.steps[losses.at[-1]])
            self._loss.extend(now.steps[losses.at][losses.counts].tolist(), losses.values[losses.counts].tolist())
        if scaled.any():
            self._skips_in_a_row = 0
            newest = int(now.steps[scaled][-1])
            while self._skips and self._skips[0] <= newest - SKIP_WINDOW:
                self._skips.popleft()
        if "loss_scale" in fields and fields["loss_scale"].present.any():
            scales = fields["loss_scale"].values[fields["loss_scale"].present].tolist()
            self.last_scale = scales[-1]
            self._scales.extend(scales)
