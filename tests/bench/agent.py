"""Added time of a training step on the CPU: two equal trainings take turns, step by step, one of them watched.

Each watched step is divided by the mean of the plain steps before and after it, so a machine that drifts does not
count. One thread for torch; records go to a real sender whose server takes none, as at a server that is down.
The last line of each model is the noise: the same with nobody watching either.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import floatscope
from floatscope._demo.model import GPT
from tests.bench.spread import spread

_PAIRS = 60
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


def _measure(make: Callable[[], MakeModel], options: dict[str, Any] | None) -> tuple[list[float], list[float]]:
    """(seconds of plain steps, ratio of each watched step to its neighbours)."""
    plain, watched = Training(make), Training(make)
    if options is not None:
        # At the intervals given: what the governor makes of them is the "governor" bench's.
        watched.watch({"overhead_budget": 0, **options})
    for _ in range(10):
        plain.step()
        watched.step()
    plain_times, ratios = [plain.step()], []
    for _ in range(_PAIRS):
        own = watched.step()
        plain_times.append(plain.step())
        ratios.append(own / (plain_times[-2] + plain_times[-1]) * 2)
    if watched.scope is not None:
        watched.scope.close()
    return plain_times, ratios


_SETTINGS: dict[str, dict[str, Any] | None] = {
    "gradients, every step": {"activations_every": 0, "weights_every": 0, "histograms_every": 0},
    "gradients with histograms, every step": {"activations_every": 0, "weights_every": 0, "histograms_every": 1},
    "the default intervals (mean)": {},
    "everything, every step": {"activations_every": 1, "weights_every": 1, "histograms_every": 1},
    "nobody (noise)": None,
}


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    for name, make in {"MLP, 1.6 M parameters, batch 1024": mlp, "the demo's GPT, 1.2 M parameters": gpt}.items():
        for number, (setting, options) in enumerate(_SETTINGS.items()):
            times, ratios = _measure(make, options)
            if number == 0:
                print(f"  {name}: a plain step takes {spread([t * 1e3 for t in times], 'ms', 1)}")
            mean = 100 * (sum(ratios) / len(ratios) - 1)
            print(f"    {setting:40} {spread([100 * (r - 1) for r in ratios], '%', 1)}, mean {mean:.1f} %")
