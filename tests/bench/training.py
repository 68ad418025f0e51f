"""Small trainings on a CPU, of which one may be watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import floatscope
from floatscope._demo.model import GPT

__all__ = ["MakeModel", "Training", "gpt", "mlp"]

_NOWHERE = "http://127.0.0.1:9"

MakeModel = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]
"""A model, and its loss on a batch that is always the same."""


def mlp() -> MakeModel:
    torch.manual_seed(0)
    inputs, labels = torch.randn(1024, 512), torch.randint(0, 10, (1024,))
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, lambda m: functional.cross_entropy(m(inputs), labels)


def gpt() -> MakeModel:
    torch.manual_seed(0)
    model = GPT()
    tokens = torch.randint(0, 256, (4, model.context))
    return model, lambda m: functional.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten())


class Training:
    """One of two that take turns; ``watch`` has it observed."""

    def __init__(self, make: Callable[[], MakeModel]) -> None:
        self.model, self._loss = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scope: floatscope.Scope | None = None

    def watch(self, options: dict[str, Any]) -> None:
        """Attach the agent, with options of its configuration."""
        self.scope = floatscope.watch(self.model, self.optimizer, run="bench", server=_NOWHERE, **options)

    def step(self) -> float:
        """Seconds that one step takes."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self._loss(self.model)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.scope is not None:
            self.scope.step(loss=loss)
        return time.perf_counter() - begin
