"""Added time of a training step on the CPU at the default settings, against the governor's budget of 1 %.

Two equal trainings take turns, step by step, one of them watched; blocks of 25 steps of each are compared by their
sums, so that what is read every k-th step counts with its share. The first 100 steps, in which the governor finds its
intervals, are told apart. Beside it stand the governor's own figure and the intervals that it came to. The last line
of each model is the noise: the same with nobody watching either.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import floatscope
from floatscope._demo.model import GPT
from tests.bench.spread import spread

_NOWHERE = "http://127.0.0.1:9"
_BLOCK = 25
_SETTLING = 4
_BLOCKS = 24


Model = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]
"""A model, and its loss on a batch that is always the same."""


def _mlp(width: int, batch: int) -> Model:
    torch.manual_seed(0)
    inputs, labels = torch.randn(batch, width // 2), torch.randint(0, 10, (batch,))
    layers = (nn.Linear(width // 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return nn.Sequential(*layers), lambda m: functional.cross_entropy(m(inputs), labels)


def _gpt() -> Model:
    torch.manual_seed(0)
    model = GPT()
    tokens = torch.randint(0, 256, (4, model.context))
    return model, lambda m: functional.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten())


_MODELS: dict[str, Callable[[], Model]] = {
    "MLP 0.4 M, batch 256": lambda: _mlp(512, 256),
    "MLP 1.6 M, batch 1024": lambda: _mlp(1024, 1024),
    "the demo's GPT, 1.2 M": _gpt,
}
_SETTINGS: dict[str, dict[str, Any] | None] = {
    "defaults": {},
    "no budget": {"overhead_budget": 0},
    "nobody (noise)": None,
}


class Training:
    """One of two that take turns; with ``options`` it is watched."""

    def __init__(self, make: Callable[[], Model], options: dict[str, Any] | None) -> None:
        self.model, self._loss = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scope: floatscope.Scope | None = None
        if options is not None:
            # In memory: the disk is the spool's bench's.
            self.scope = floatscope.watch(
                self.model, self.optimizer, run="bench", server=_NOWHERE, spool_bytes=0, **options
            )

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


def _turns(plain: Training, watched: Training) -> tuple[float, float]:
    """Seconds of a block of each."""
    sums = [0.0, 0.0]
    for number in range(_BLOCK):
        # Who goes second finds other caches than who goes first.
        for which in (0, 1) if number % 2 else (1, 0):
            sums[which] += (plain, watched)[which].step()
    return sums[0], sums[1]


def _measure(name: str, plain: Training, watched: Training) -> None:
    blocks = [_turns(plain, watched) for _ in range(_SETTLING + _BLOCKS)]
    ratios = [100 * (own / base - 1) for base, own in blocks]
    early, late = ratios[:_SETTLING], ratios[_SETTLING:]
    base = 1e3 * fmean(base for base, _ in blocks) / _BLOCK
    print(f"  {name}, {base:.1f} ms a step: mean {fmean(late):+.2f} %, of blocks {spread(late, '%')}")
    print(f"    in the first {_SETTLING * _BLOCK} steps {fmean(early):+.2f} %")


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    for name, make in _MODELS.items():
        for what, options in _SETTINGS.items():
            plain, watched = Training(make, None), Training(make, options)
            gc.collect()
            _measure(f"{name}: {what}", plain, watched)
            if watched.scope is not None:
                governor = watched.scope._sampling._governor
                every = ", ".join(f"{kind} {n}" for kind, n in governor.every.items())
                print(
                    f"    its own figure {100 * governor.share:.2f} % now, {100 * governor.mean:.2f} % of all steps; "
                    f"every {every}{'; above the budget: ' + governor.limit if governor.limit else ''}"
                )
                watched.scope.close()
