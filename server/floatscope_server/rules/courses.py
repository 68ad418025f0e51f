"""The slower course of one rank's series: divergence, plateaus, repeated values, clipping and speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Set

import numpy as np

from floatscope_server.rules import clip_saturation, frozen, loss_divergence, loss_plateau, tempo
from floatscope_server.rules.columns import Columns, Measured
from floatscope_server.rules.findings import Held, series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record
from floatscope_server.rules.series import RunningMedian
from floatscope_server.rules.tensors import F64, Bool, Index
from floatscope_server.rules.verdict import OK, Finding, Outcome

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

    def judge(self, now: Record, *, reward_keys: bool, watched: Set[str] | None = None) -> Iterator[Finding]:
        """Findings about ``now``, which becomes part of the past; ``watched`` as in ``ScalarWindow.judge``."""
        rules = self._rules
        level = loss_divergence.Window(best=self._best, records=len(self._losses), past=tuple(self._last_two))
        divergence = loss_divergence.judge(rules.loss_divergence, level, now)
        self._push(now)
        for kind, rule, outcome in (
            ("loss_divergence", rules.loss_divergence, divergence),
            (
                "loss_plateau",
                rules.loss_plateau,
                loss_plateau.judge(rules.loss_plateau, self._progress, now.loss, now.lr, reward_keys=reward_keys),
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
                clip_saturation.judge(rules.clip_saturation, self._clips, now.step, now.clip_coef),
            ),
            (
                "throughput_drop",
                rules.throughput_drop,
                tempo.judge_throughput(rules.throughput_drop, self._tempo, now.step, now.step_time_s),
            ),
        ):
            if outcome.verdict is None and watched is not None and kind not in watched:
                continue
            finding = series_finding(kind, rule, now.step, self._rank, outcome)
            if finding is not None:
                yield finding

    def calm(self, now: Columns, losses: Measured | None) -> Bool:
        """At which of N steps, at least one of them with sound values, divergence and repeated values are sure not to
        alert."""
        rules = self._rules
        calm = np.ones(len(now.steps), np.bool_)
        if losses is not None:
            calm[losses.at] = loss_divergence.calm(rules.loss_divergence, losses.values, self._best_before(losses))
        for field, rule, repeats, is_calm in (
            ("grad_norm", rules.grad_norm_frozen, self._norms, frozen.calm_grad_norm),
            ("lr", rules.lr_frozen, self._lrs, frozen.calm_lr),
        ):
            column = now.fields.get(field)
            if column is not None and column.present.any():
                calm[column.present] &= is_calm(rule, repeats, column.values[column.present])
        return calm

    def skim(
        self, now: Columns, losses: Measured | None, *, reward_keys: bool, watched: Set[str]
    ) -> Iterator[tuple[int, Finding]]:
        """``judge`` for steps that are all calm. Positions and findings, of the rules in order, of those that alert
        after all (which hold on for long) and of kinds in ``watched``."""
        rules = self._rules
        norm, lr = now.fields.get("grad_norm"), now.fields.get("lr")
        if losses is not None:
            if "loss_divergence" in watched:
                at = losses.at[self._best_before(losses) > 0]
                yield from self.clear("loss_divergence", rules.loss_divergence, now, at)
            yield from self._skim_losses(now, losses, reward_keys=reward_keys, watched=watched)
        if norm is not None and norm.present.any():
            known = np.flatnonzero(norm.present & (norm.values != 0))
            for kind in ("grad_norm_frozen", "stale_grad_norm"):
                if kind in watched:
                    yield from self.clear(kind, getattr(rules, kind), now, known)
            self._norms.skim(now.steps[norm.present], norm.values[norm.present])
        if lr is not None and lr.present.any():
            if "lr_frozen" in watched:
                yield from self.clear("lr_frozen", rules.lr_frozen, now, np.flatnonzero(lr.present))
            self._lrs.skim(now.steps[lr.present], lr.values[lr.present])
        yield from self._one_by_one(
            "clip_saturation", rules.clip_saturation, now, "clip_coef", self._skim_clip, watched=watched
        )
        yield from self._one_by_one(
            "throughput_drop", rules.throughput_drop, now, "step_time_s", self._skim_tempo, watched=watched
        )

    def clear(self, kind: str, rule: Held, now: Columns, at: Index) -> Iterator[tuple[int, Finding]]:
        """That a rule has data at the positions ``at`` and says OK."""
        for position, step in zip(at.tolist(), now.steps[at].tolist(), strict=True):
            finding = series_finding(kind, rule, step, self._rank, OK)
            assert finding is not None
            yield position, finding

    def _best_before(self, losses: Measured) -> F64:
        """The lowest running median before each record."""
        assert self._best is not None, "a full window has a median"
        best: F64 = np.minimum.accumulate(np.concatenate(([self._best], losses.medians[1:])))[losses.before]
        return best

    def _skim_losses(
        self, now: Columns, losses: Measured, *, reward_keys: bool, watched: Set[str]
    ) -> Iterator[tuple[int, Finding]]:
        rule, progress = self._rules.loss_plateau, self._progress
        told = "loss_plateau" in watched
        steps, lrs = now.steps[losses.at].tolist(), now.listed("lr")
        medians = losses.medians[losses.before + losses.counts].tolist()
        for position, step, value, counts, median in zip(
            losses.at.tolist(), steps, losses.values.tolist(), losses.counts.tolist(), medians, strict=True
        ):
            lr = lrs[position]
            if counts:
                progress.push(rule, step, median, lr)
            if told or progress.level is not None:
                outcome = loss_plateau.judge(rule, progress, value, lr, reward_keys=reward_keys)
                told = told or outcome.verdict is not None
                finding = series_finding("loss_plateau", rule, step, self._rank, outcome) if told else None
                if finding is not None:
                    yield position, finding
        if losses.counts.any():
            values = losses.values[losses.counts]
            self._best = min(float(losses.medians[1:].min()), self._best if self._best is not None else math.inf)
            self._losses.extend(values[-_MEDIAN_OF:].tolist())
            newest = zip(now.steps[losses.at][losses.counts][-2:].tolist(), values[-2:].tolist(), strict=True)
            self._last_two.extend(newest)

    def _one_by_one(
        self,
        kind: str,
        rule: Held,
        now: Columns,
        field: str,
        judge: Callable[[int, float | None, float | None], Outcome],
        *,
        watched: Set[str],
    ) -> Iterator[tuple[int, Finding]]:
        if field not in now.fields:
            return
        told = kind in watched
        values, norms = now.fields[field].listed(), now.listed("grad_norm")
        for position, step in enumerate(now.steps.tolist()):
            outcome = judge(step, values[position], norms[position])
            told = told or outcome.verdict is not None
            finding = series_finding(kind, rule, step, self._rank, outcome) if told else None
            if finding is not None:
                yield position, finding

    def _skim_clip(self, step: int, clip_coef: float | None, grad_norm: float | None) -> Outcome:
        self._clips.push(clip_coef, grad_norm)
        return clip_saturation.judge(self._rules.clip_saturation, self._clips, step, clip_coef)

    def _skim_tempo(self, step: int, seconds: float | None, _norm: float | None) -> Outcome:
        self._tempo.push(step, seconds)
        return tempo.judge_throughput(self._rules.throughput_drop, self._tempo, step, seconds)

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
        self._clips.push(now.clip_coef, now.grad_norm)
        self._tempo.push(now.step, now.step_time_s)
