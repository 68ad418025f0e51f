"""The series of one rank: what the scalar rules remember, and their findings."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

from floatscope_server.rules import grad_norm_spike, loss_scale, loss_spike, loss_zero, nonfinite
from floatscope_server.rules.courses import CourseWindow
from floatscope_server.rules.findings import series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record, has_reward_keys
from floatscope_server.rules.series import Recent
from floatscope_server.rules.verdict import Finding, Outcome, Severity, Status

__all__ = ["ScalarWindow"]

_SKIP_WINDOW = 200


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
        self._skips: deque[int] = deque(maxlen=_SKIP_WINDOW)
        self._skips_in_a_row = 0
        self._scales: deque[float] = deque(maxlen=_SKIP_WINDOW)
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

    def judge(self, now: Record) -> Iterator[Finding]:
        """Findings of the rules on series."""
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
        scale = loss_scale.judge(
            rules.loss_scale_collapse,
            loss_scale.Window(skips=self._skips, in_a_row=self._skips_in_a_row, high=max(self._scales, default=None)),
            now,
        )
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
            finding = series_finding(kind, rule, now.step, self._rank, outcome)
            if finding is not None:
                yield finding
        yield from self.course.judge(now, reward_keys=self._reward_keys)

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
            while self._skips and self._skips[0] <= now.step - _SKIP_WINDOW:
                self._skips.popleft()
        if now.loss_scale is not None and math.isfinite(now.loss_scale):
            self.last_scale = now.loss_scale
            self._scales.append(now.loss_scale)
