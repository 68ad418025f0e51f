"""Which steps are in trouble: told by the packing thread, which sees their numbers first, to the training's."""

from __future__ import annotations

import math

from floatscope._record import StepRecord, Trouble

__all__ = ["Watch", "nonfinite"]


class Watch:
    """Looks at each record in order. For one thread."""

    def __init__(self) -> None:
        self._broken = False

    def see(self, record: StepRecord) -> Trouble | None:
        """What there is to say of it: of a row of steps in trouble the first, and those that show more."""
        skipped = bool(record.scalars.get("skipped")) and not _loss_broken(record)
        before, self._broken = self._broken, skipped or _loss_broken(record) or nonfinite(record)
        shown = record.everything or any(rows.kind == "act" for rows in record.summaries)
        if not self._broken or (before and not shown):
            return None
        return Trouble(step=record.step, skipped=skipped, first=not before, shown=shown)


def _loss_broken(record: StepRecord) -> bool:
    return not math.isfinite(record.scalars.get("loss", 0.0)) or bool(record.scalars.get("raw_loss_nonfinite"))


def nonfinite(record: StepRecord) -> bool:
    """Whether the loss or a gradient of the step is not finite, though no scaler skipped it for that."""
    if record.scalars.get("skipped"):
        return False
    if not math.isfinite(record.scalars.get("loss", 0.0)):
        return True
    return any(
        rows.kind == "grad" and bool(rows.fields["nans"].any() or rows.fields["infs"].any())
        for rows in record.summaries
    )
