"""The slower course of one rank's series: divergence, plateaus, repeated values, clipping and speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from floatscope_server.rules import clip_saturation, frozen, loss_divergence, loss_plateau, tempo
from floatscope_server.rules.findings import series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record
from floatscope_server.rules.series import RunningMedian
from floatscope_server.rules.verdict import Finding

__all__ = ["CourseWindow"]

_MEDIAN_OF = 20


class CourseWindow:
    """What went before on one rank."""

    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self._rules = rules
        self._rank = rank
        self._losses = RunningMedian(_MEDIAN_OF)
        self._best: float | None = None
        self._last_two: deque[tuple[int, float]] = deque(maxlen=2)
        self._progress = loss_plateau.Progress()
        self._norms = frozen.Repeats()
        self._lrs = frozen.Repeats()
        self._clips = clip_saturation.Clips(rules.clip_saturation)
        self._tempo = tempo.Tempo(rules.throughput_drop)

    @property
    def step_time_s(self) -> float | None:
        """Median seconds a step of late; None before it is known."""
        median = self._tempo.median
        return None if math.isnan(median) else median

    def judge(self, now: Record, *, reward_keys: bool) -> Iterator[Finding]:
        """Findings about ``now``, which becomes part of the past."""
        rules = self._rules
        divergence = loss_divergence.judge(
            rules.loss_divergence, loss_divergence.Window(best=self._best, past=tuple(self._last_two)), now
        )
        self._push(now)
        for kind, rule, outcome in (
            ("loss_divergence", rules.loss_divergence, divergence),
            (
                "loss_plateau",
                rules.loss_plateau,
                loss_plateau.judge(rules.loss_plateau, self._progress, now, reward_keys=reward_keys),
            ),
            (
                "grad_norm_frozen",
                rules.grad_norm_frozen,
                frozen.judge_grad_norm(rules.grad_norm_frozen, self._norms, now, reward_keys=reward_keys),
            ),
            ("stale_grad_norm", rules.stale_grad_norm, frozen.judge_stale(rules.stale_grad_norm, self._norms, now)),
            (
                "lr_frozen",
                rules.lr_frozen,
                frozen.judge_lr(rules.lr_frozen, self._lrs, now, reward_keys=reward_keys),
            ),
            (
                "clip_saturation",
                rules.clip_saturation,
                clip_saturation.judge(rules.clip_saturation, self._clips, now),
            ),
            ("throughput_drop", rules.throughput_drop, tempo.judge_throughput(rules.throughput_drop, self._tempo, now)),
        ):
            finding = series_finding(kind, rule, now.step, self._rank, outcome)
            if finding is not None:
                yield finding

    def _push(self, now: Record) -> None:
        rules = self._rules
        skipped = bool(now.skipped)
        if now.loss is not None and math.isfinite(now.loss) and now.loss != 0:
            self._losses.push(now.loss)
            median = self._losses.median
            self._best = median if self._best is None else min(self._best, median)
            self._last_two.append((now.step, now.loss))
            self._progress.push(rules.loss_plateau, now.step, median, now.lr)
        self._norms.push(now.step, now.grad_norm, skipped=skipped)
        self._lrs.push(now.step, now.lr, skipped=skipped)
        self._clips.push(now)
        self._tempo.push(now.step, now.step_time_s)
