"""A loss that fell and then stands still although the learning rate would let it move."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope_server.rules.verdict import NO_DATA, OK, Outcome, Severity, Verdict, alert

__all__ = ["LossPlateau", "Progress", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateau:
    """The flat tail of a schedule that ends near zero is no plateau, nor is a run that never learnt."""

    records: int = 200
    """Records without progress."""
    progress: float = 0.10
    """The running median must have fallen by this share of its first value, or there was no progress to lose."""
    gain: float = 0.005
    """A fall of the running median by this share of its size is progress."""
    resumed: float = 0.05
    """A plateau is over when the running median has fallen below its level by this share of it: a noisy loss that falls
    slowly makes small gains all the time."""
    lr_share: float = 0.5
    """Learning rates below this share of the highest one excuse the loss."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 0
    """Steps without it before the alert resolves."""


class Progress:
    """The falling of the running median: its first and best value, and for how long there was no better one. ``level``:
    the best when it came to a stand, None while it falls."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.best = math.inf
        self.best_step = -1
        self.records = 0
        self.level: float | None = None
        self.highest_lr = 0.0

    def push(self, rule: LossPlateau, step: int, median: float, lr: float | None) -> None:
        """Remember one record: the median of the last 20 with it."""
        if lr is not None and math.isfinite(lr):
            self.highest_lr = max(self.highest_lr, lr)
        if not math.isfinite(median):
            return
        if self.first is None:
            self.first = median
        if median < self.best - rule.gain * abs(self.best) or not math.isfinite(self.best):
            self.best, self.best_step, self.records = median, step, 0
        else:
            self.records += 1
        if self.level is not None:
            if median < self.level - rule.resumed * abs(self.level):
                self.level = None
        elif self.records >= rule.records and self.first - self.best > rule.progress * abs(self.first):
            self.level = self.best


def judge(rule: LossPlateau, progress: Progress, loss: float | None, lr: float | None, *, reward_keys: bool) -> Outcome:
    """Info after ``records`` records without progress in a run that had made some, until there is progress again. The
    record with ``loss`` and ``lr`` is in ``progress``."""
    if loss is None or progress.first is None or reward_keys:
        return NO_DATA
    excused = lr is not None and lr < rule.lr_share * progress.highest_lr
    if progress.level is None or excused:
        return OK
    return alert(
        Verdict(
            kind="loss_plateau",
            severity=Severity.INFO,
            reason="no_progress",
            since_step=progress.best_step,
            value=progress.best,
            threshold=progress.best * (1 - rule.gain) if progress.best > 0 else None,
            detail={"first": progress.first, "records": progress.records},
        )
    )
