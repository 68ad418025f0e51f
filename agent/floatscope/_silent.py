"""A scope that is attached to nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from floatscope import wire
from floatscope._config import Config
from floatscope._layers import Coverage
from floatscope._scope import Scope

__all__ = ["SilentScope"]


class SilentScope(Scope):
    """Attached to nothing, sending nothing: with FLOATSCOPE_DISABLED=1, and where no thread can be had."""

    def __init__(self, config: Config, reason: str) -> None:
        self.config = config
        self._reason = reason

    @property
    def coverage(self) -> Coverage:
        return {"trainable": 0, "observed": 0, "reasons": {self._reason: []}}

    def step(self, loss: object = None, **scalars: object) -> None:
        pass

    def log(self, **scalars: object) -> None:
        pass

    @property
    def steps(self) -> int:
        return self.config.first_step

    @property
    def steps_done(self) -> int:
        return self.config.first_step

    def end_at_forward(self) -> None:
        pass

    def time_phases(self) -> None:
        pass

    def tell(self, event: wire.Event) -> None:
        pass

    def drive(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        pass

    @property
    def closed(self) -> bool:
        return True

    def _close(self, reason: str) -> None:
        pass
