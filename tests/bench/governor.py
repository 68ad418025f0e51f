"""Added time of a training step on the CPU at the default settings, against the governor's budget of 1 %.

Two equal trainings take turns, step by step, one of them watched; blocks of 25 steps of each are compared by their
sums, so that what is read every k-th step counts with its share. The first 100 steps, in which the governor finds its
intervals, are told apart. Beside it stand the governor's own figure and the intervals that it came to. The last line
of each model is the noise: the same with nobody watching either.
"""

from __future__ import annotations

import gc
import logging
from statistics import fmean

import torch
from torch import nn
from torch.nn import functional

from tests.bench.spread import spread
from tests.bench.training import MakeModel, Training, gpt, mlp

_BLOCK = 25
_SETTLING = 4
_BLOCKS = 24


def _small() -> MakeModel:
    torch.manual_seed(0)
    inputs, labels = torch.randn(256, 256), torch.randint(0, 10, (256,))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, lambda m: functional.cross_entropy(m(inputs), labels)


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
    models = {"MLP 0.4 M, batch 256": _small, "MLP 1.6 M, batch 1024": mlp, "the demo's GPT, 1.2 M": gpt}
    for name, make in models.items():
        for what, options in {"defaults": {}, "no budget": {"overhead_budget": 0}, "nobody (noise)": None}.items():
            plain, watched = Training(make), Training(make)
            if options is not None:
                watched.watch(options)
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
