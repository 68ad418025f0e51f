"""``llamafactory-cli train FILE`` whose steps overflow in one layer: ``overflowing_llamafactory.py FILE STEP...``."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import torch
from llamafactory.train.tuner import run_exp
from transformers import Trainer

LAYER = "model.layers.1.mlp.down_proj"


def main() -> None:
    """Train as the file says."""
    overflows = frozenset(map(int, sys.argv[2:]))
    make = Trainer.create_optimizer
    micro = itertools.count()

    def create_optimizer(self: Trainer, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        def overflow(grad: torch.Tensor) -> torch.Tensor:
            return grad * math.inf if next(micro) in overflows else grad

        self.model.get_submodule(LAYER).weight.register_hook(overflow)
        return make(self, *given, **named)

    Trainer.create_optimizer = create_optimizer
    del sys.argv[2:]
    run_exp()


if __name__ == "__main__":
    main()
