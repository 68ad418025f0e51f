"""What is read of the gradients is what a plain loop without the agent has of them, whichever way the step is made.

The plain loop copies its gradients when the last backward pass of a step has ended and counts them by numpy in
float64. The watched training runs apart from it, from the same seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import clip_grad_norm_

from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]
Figures = dict[str, float]
Watch = Callable[["Model", list[torch.optim.Optimizer], torch.amp.GradScaler], Scope]

STEPS = 5
MAX_NORM = 0.05
SCALE = 2.0**12
FIRST_SKIPS, BOTH_SKIP = 1, 3
"""Steps with an overflow of the first optimizer's gradients alone, and of all."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "for-loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "nesterov, fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, fused=True),
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a step is made."""

    scaled: bool = False
    unscaled: bool = False
    clipped: bool = False


WAYS = {
    "step": Way(),
    "clip": Way(clipped=True),
    "scaler": Way(scaled=True),
    "scaler, clip": Way(scaled=True, clipped=True),
    "scaler, unscale": Way(scaled=True, unscaled=True),
    "scaler, unscale, clip": Way(scaled=True, unscaled=True, clipped=True),
}


@dataclass(kw_only=True)
class Found:
    """What the plain loop has of each step."""

    layers: list[dict[str, Figures]] = field(default_factory=list)
    clipped_at: list[float] = field(default_factory=list)
    """The smallest clip coefficient."""
    skipped: list[float | None] = field(default_factory=list)
    scales: list[float | None] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    def keep(self, model: nn.Module, scale: float, only: Sequence[str] = ("first", "norm", "last")) -> None:
        """The gradients as they are now, of a step that has none yet."""
        parts = {name: list(model.get_submodule(name).parameters()) for name in only}
        grads = {name: [p.grad for p in part if p.grad is not None] for name, part in parts.items()}
        self.layers.append({name: figures(some, scale) for name, some in grads.items()})

    def norms(self) -> list[float]:
        """NaN where something is not finite: the overflows here are NaNs, or become them in a sum."""
        bad = [any(f["nans"] + f["infs"] for f in layers.values()) for layers in self.layers]
        squares = [sum(f["sumsq"] for f in layers.values()) for layers in self.layers]
        return [math.nan if broken else math.sqrt(square) for broken, square in zip(bad, squares, strict=True)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.frozen(self.last(torch.tanh(self.norm(self.first(x)))))
        return out


def backward(model: Model, step: int, micro_batches: int, scaler: torch.amp.GradScaler) -> torch.Tensor:
    """One step's gradients, its loss summed over ``micro_batches``."""
    total = torch.zeros(())
    for number in range(micro_batches):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + number))
        overflows = scaler.is_enabled() and step == BOTH_SKIP and number == 0
        loss = model(inputs).square().mean() * (1e38 if overflows else 1.0)
        scaler.scale(loss).backward()
        total += loss.detach()
    if scaler.is_enabled() and step == FIRST_SKIPS:
        assert model.first.weight.grad is not None
        model.first.weight.grad[2, 1] = math.inf
        model.first.weight.grad[3, 0] = math.nan
    return total


def figures(tensors: Sequence[torch.Tensor], scale: float) -> Figures:
    """Counted by numpy, the gradients divided by the loss scale in float64."""
    values: NDArray[np.float64] = np.concatenate([t.detach().double().numpy().ravel() for t in tensors]) / scale
    finite = values[np.isfinite(values)]
    nonzero = np.abs(finite[finite != 0])
    return {
        "count": values.size,
        "zeros": int((values == 0).sum()),
        "nans": int(np.isnan(values).sum()),
        "infs": int(np.isinf(values).sum()),
        "absmax": nonzero.max(initial=0.0),
        "absmin": nonzero.min(initial=math.inf),
        "sum": finite.sum(),
        "sumsq": np.square(finite).sum(),
    }


def train(
    make: Callable[[Any], torch.optim.Optimizer],
    way: Way,
    *,
    micro_batches: int,
    two: bool,
    watch: Watch | None = None,
) -> Found:
    """The training, and what it has of its gradients."""
    model, found = Model(), Found()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=2, enabled=way.scaled)
    first, others = list(model.first.parameters()), [*model.norm.parameters(), *model.last.parameters()]
    parts = [first, others] if two else [[*first, *others]]
    optimizers = [make(part) for part in parts]
    scope = watch(model, optimizers, scaler) if watch is not None else None
    for step in range(STEPS):
        backward(model, step, micro_batches, scaler)
        scale = scaler.get_scale()
        found.keep(model, scale)
        found.scales.append(scale if way.scaled else None)
        found.skipped.append(float(step in (FIRST_SKIPS, BOTH_SKIP)) if way.scaled else None)
        if way.unscaled:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        if way.clipped:
            totals = [clip_grad_norm_(part, MAX_NORM).item() for part in parts]
            found.clipped_at.append(float(np.minimum(1.0, MAX_NORM / (np.array(totals) + 1e-6)).min()))
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if scope is not None:
            scope.step()
    found.weights = [p.detach().clone() for p in model.parameters()]
    return found


def assert_read(sink: MemorySink, want: list[dict[str, Figures]]) -> None:
    for step, layers in enumerate(want):
        for name, expected in layers.items():
            row = sink.row(step, "grad", name)
            assert row is not None, (step, name)
            for figure in ("count", "zeros", "nans", "infs"):
                assert row[figure] == expected[figure], (step, name, figure)
            for figure in ("absmax", "absmin"):
                assert row[figure] == np.float32(expected[figure]), (step, name, figure)
            assert row["sumsq"] == pytest.approx(expected["sumsq"], rel=1e-12), (step, name)
            cancelled = 1e-12 * math.sqrt(expected["sumsq"] * expected["count"])
            assert row["sum"] == pytest.approx(expected["sum"], rel=1e-12, abs=cancelled), (step, name)


@pytest.fixture
def watching(attach: Attach) -> Callable[[bool], tuple[Watch, list[MemorySink]]]:
    """``watching(given)`` gives what attaches, told of the optimizers or not, and where its sink will be."""

    def make(given: bool) -> tuple[Watch, list[MemorySink]]:
        sinks: list[MemorySink] = []

        def watch(model: Model, optimizers: list[torch.optim.Optimizer], scaler: torch.amp.GradScaler) -> Scope:
            scaler_ = scaler if scaler.is_enabled() else None
            scope, sink = attach(model, optimizers if given else None, scaler=scaler_, histograms_every=1)
            sinks.append(sink)
            return scope

        return watch, sinks

    return make


@pytest.mark.parametrize("given", [True, False], ids=["optimizers given", "optimizers found"])
@pytest.mark.parametrize("two", [False, True], ids=["one optimizer", "two optimizers"])
@pytest.mark.parametrize("micro_batches", [1, 3], ids=["one batch", "accumulated"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_gradients_read_are_those_of_the_plain_loop(
    watching: Callable[[bool], tuple[Watch, list[MemorySink]]],
    make: str,
    way: str,
    micro_batches: int,
    two: bool,
    given: bool,
) -> None:
    want = train(OPTIMIZERS[make], WAYS[way], micro_batches=micro_batches, two=two)
    watch, sinks = watching(given)
    got = train(OPTIMIZERS[make], WAYS[way], micro_batches=micro_batches, two=two, watch=watch)
    [sink] = sinks
    assert_read(sink, want.layers)
    assert len(sink.records()) == STEPS
    assert sink.scalar("grad_norm") == pytest.approx(want.norms(), rel=1e-9, nan_ok=True)
    assert sink.scalar("skipped") == want.skipped
    assert sink.scalar("loss_scale") == want.scales
    if want.clipped_at:
        assert sink.scalar("clip_coef") == pytest.approx(want.clipped_at, rel=1e-5, nan_ok=True)
    else:
        assert sink.scalar("clip_coef") == [None] * STEPS
    assert all(map(torch.equal, got.weights, want.weights))


def train_by_closure(
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    clipped: bool,
    micro_batches: int,
    two: bool,
    keyword: bool,
    watch: Watch | None = None,
) -> Found:
    """A training whose optimizers compute their gradients in closures."""
    model, found = Model(), Found()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    parts = [["first"], ["norm", "last"]] if two else [["first", "norm", "last"]]
    own = [[p for name in names for p in model.get_submodule(name).parameters()] for names in parts]
    optimizers = [make(parameters) for parameters in own]
    scope = watch(model, optimizers, scaler) if watch is not None else None
    for step in range(STEPS):
        step_found = Found()
        for optimizer, names, parameters in zip(optimizers, parts, own, strict=True):

            def closure(
                names: list[str] = names, parameters: list[nn.Parameter] = parameters, step: int = step
            ) -> torch.Tensor:
                model.zero_grad()
                loss = backward(model, step, micro_batches, scaler)
                step_found.keep(model, 1.0, names)  # noqa: B023 (called in this iteration)
                if clipped:
                    clip_grad_norm_(parameters, MAX_NORM)
                return loss

            step_by: Any = optimizer.step
            if keyword:
                step_by(closure=closure)
            else:
                step_by(closure)
        found.layers.append({name: row for layers in step_found.layers for name, row in layers.items()})
        if scope is not None:
            scope.step()
    found.weights = [p.detach().clone() for p in model.parameters()]
    return found


@pytest.mark.parametrize("given", [True, False], ids=["optimizers given", "optimizers found"])
@pytest.mark.parametrize("two", [False, True], ids=["one optimizer", "two optimizers"])
@pytest.mark.parametrize("micro_batches", [1, 3], ids=["one batch", "accumulated"])
@pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_closures(
    watching: Callable[[bool], tuple[Watch, list[MemorySink]]],
    make: str,
    clipped: bool,
    micro_batches: int,
    two: bool,
    given: bool,
) -> None:
    how = {"clipped": clipped, "micro_batches": micro_batches, "two": two, "keyword": given}
    want = train_by_closure(OPTIMIZERS[make], **how)  # type: ignore[arg-type]
    watch, sinks = watching(given)
    got = train_by_closure(OPTIMIZERS[make], **how, watch=watch)  # type: ignore[arg-type]
    [sink] = sinks
    assert_read(sink, want.layers)
    assert sink.scalar("grad_norm") == pytest.approx(want.norms(), rel=1e-9)
    assert all(map(torch.equal, got.weights, want.weights))
