"""The callback that Lightning's Trainers get by themselves. Importing it imports Lightning."""

from __future__ import annotations

from typing import Any

from floatscope.integrations._training import end_stale, take
from floatscope.integrations.lightning import FloatscopeCallback

__all__ = ["AttachedCallback"]


class AttachedCallback(FloatscopeCallback):
    """Begins at the first batch, when a callback that the user has written into the code has begun already."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
        """Nothing begins yet."""
        self._begun = False
        end_stale(pl_module)
        take(trainer.optimizers)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: object, batch_idx: int) -> None:  # noqa: ANN401
        """Begin, once for each training."""
        if not self._begun:
            self._begun = True
            self._begin(trainer, pl_module)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
