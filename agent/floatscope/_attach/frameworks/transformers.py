"""The Trainer of transformers, and what is made of it: each gets the callback that others write into their code."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import nn

from floatscope.integrations._training import end_stale, take
from floatscope.integrations.transformers import FloatscopeCallback

__all__ = ["on_import"]


class _Attached(FloatscopeCallback):
    """Begins at the first step, when a callback that the user has written into the code has begun already."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """Nothing begins yet."""
        self._begun = False
        if isinstance(model := given.get("model"), nn.Module):
            end_stale(model)
            take([given.get("optimizer")])

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        """Begin, once for each training."""
        if not self._begun:
            self._begun = True
            if isinstance(model := given.get("model"), nn.Module):
                self._begin(model, args, state, given)
        super().on_step_begin(args, state, control, **given)


def on_import(trainer: ModuleType) -> None:
    """``transformers.trainer`` was imported."""
    trainer.DEFAULT_CALLBACKS.append(_Attached)
