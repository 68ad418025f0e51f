"""The pass over tensors on a CPU: plain reference, torch operations, C; alone, and as a share of a training step.

One thread. Each variant measures the gradients of every second step, which is compared with the mean of its two
neighbours, so a machine that drifts does not count. The last line of a model is the noise: nothing is measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from floatscope._stats import Plan, Rows, Variant
from floatscope._stats._cpu import Cpu, works
from floatscope._stats._cpu_library import Compilation
from floatscope._stats._reference import Reference
from tests.bench.spread import spread

_PAIRS = 30
_ELEMENTS = 1 << 22


def _mlp(batch: int) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    inputs, labels = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, lambda m: functional.cross_entropy(m(inputs), labels)


def _transformer() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    width, vocabulary = 256, 1000
    tokens = torch.randint(0, vocabulary, (8, 128))
    layers = (
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(4)
    )
    model = nn.Sequential(nn.Embedding(vocabulary, width), *layers, nn.Linear(width, vocabulary))
    return model, lambda m: functional.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten())


_MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]] = {
    "MLP, batch 128": lambda: _mlp(128),
    "MLP, batch 1024": lambda: _mlp(1024),
    "transformer, batch 8 x 128": _transformer,
}


def _alone(variants: dict[str, Variant]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        tensor, rows = torch.randn(_ELEMENTS).to(dtype), Rows(1, "cpu")
        print(f"  {_ELEMENTS / 1e6:.1f}M {dtype}")
        for name, variant in variants.items():
            plan = variant.plan((0,))
            for histogram in (False, True):
                times = []
                for _ in range(33):
                    begin = time.perf_counter()
                    plan.run(rows, [tensor], histogram=histogram)
                    times.append(1e3 * (time.perf_counter() - begin))
                print(f"    {name + (' with histogram' if histogram else ''):37} {spread(times[3:], 'ms')}")


def _share_of_a_step(
    make: Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]], variants: dict[str, Variant]
) -> None:
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    parameters = list(model.parameters())
    rows = Rows(len(parameters), "cpu")

    def step(measure: Callable[[], None]) -> float:
        begin = time.perf_counter()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        measure()
        optimizer.step()
        optimizer.zero_grad()
        return 1e3 * (time.perf_counter() - begin)

    def nothing() -> None:
        pass

    plain = [step(nothing) for _ in range(30)][10:]
    elements = sum(p.numel() for p in parameters)
    print(f"    a plain step takes {spread(plain, 'ms', 1)}; {elements / 1e6:.2f}M parameters")
    for name, variant in {**variants, "nothing (noise)": None}.items():
        for histogram in (False, True) if variant is not None else (False,):
            plan = variant.plan(range(len(parameters))) if variant is not None else None
            own: list[float] = []

            def measure(plan: Plan | None = plan, histogram: bool = histogram, own: list[float] = own) -> None:
                begin = time.perf_counter()
                if plan is not None:
                    rows.words.zero_()
                    rows.hist.zero_()
                    plan.run(rows, [p.grad for p in parameters if p.grad is not None], histogram=histogram)
                own.append(1e3 * (time.perf_counter() - begin))

            times = [step(measure if number % 2 else nothing) for number in range(2 * _PAIRS + 1)]
            added = [200 * times[i] / (times[i - 1] + times[i + 1]) - 100 for i in range(1, len(times), 2)]
            label = name + (" with histogram" if histogram else "")
            print(f"    {label:37} {spread(added, '%')}; by itself {spread(own, 'ms')}")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory, "cache")
        begin = time.perf_counter()
        compilation = Compilation(lambda: cache, works)
        compilation.start()
        compilation.wait(60.0)
        compilation.function()
        print(f"  compiled and checked in {time.perf_counter() - begin:.2f} s")
    variants: dict[str, Variant] = {"reference": Reference(), "cpu, torch operations": Cpu(lambda: None)}
    if compilation.function() is not None:
        variants["cpu, C"] = Cpu(compilation.function)
    _alone(variants)
    for name, make in _MODELS.items():
        print(f"  {name}, gradients in every step")
        _share_of_a_step(make, variants)
