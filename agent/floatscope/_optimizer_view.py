"""A framework's optimizer as the taps take optimizers, though it is no ``torch.optim.Optimizer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["OptimizerView"]


class OptimizerView:
    """Such an optimizer with the model's parameters in ``param_groups``."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []

    def renew(self, parameters: list[torch.Tensor], rates: Sequence[Any]) -> None:
        """Take over what it has now. Frameworks divide groups further: of them only the learning rates are needed."""
        self.param_groups = [{"params": [] if at else parameters, "lr": rate} for at, rate in enumerate(rates)]
