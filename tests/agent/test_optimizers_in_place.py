"""Optimizers that are given and do not update themselves: another one does it in their place."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from floatscope import Scope, watch
from floatscope._guard import Guard
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]


class Prepared(torch.optim.Optimizer):
    """Of the class in name only, as Accelerate's and torch's ``PostLocalSGDOptimizer``."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        self.inside = inside

    @property
    def param_groups(self) -> Any:  # type: ignore[override]  # noqa: ANN401
        return self.inside.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        return self.inside.step(closure)


class Around(torch.optim.Optimizer):
    """Has another one update between two methods of its own, as sharpness-aware minimisation does."""

    def __init__(self, parameters: Any, lr: float) -> None:  # noqa: ANN401
        super().__init__(parameters, {"lr": lr})
        self.inside = torch.optim.SGD(self.param_groups, lr=lr)

    def update(self) -> None:
        self.inside.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401
        self.inside.step()


def made(model: nn.Module) -> dict[str, tuple[Any, Callable[[], object]]]:
    prepared = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
    around = Around(model.parameters(), 0.1)
    return {
        "a wrapper without hooks": (prepared, prepared.step),
        "a method of its own": (around, around.update),
        "in its step": (around, around.step),
    }


@pytest.mark.parametrize("how", ["a wrapper without hooks", "a method of its own", "in its step"])
def test_what_updates_in_the_place_of_the_one_given_is_observed(attach: Attach, how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer, update = made(model)[how]
    scope, sink = attach(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), step + 1.0)).sum().backward()
        wanted = sum(float(p.grad.square().sum()) for p in model[0].parameters() if p.grad is not None)
        update()
        scope.step()
        row = sink.row(step, "grad", "0")
        assert row is not None
        assert row["count"] == 15
        assert row["sumsq"] == pytest.approx(wanted)
    assert [record.step for record in sink.records()] == [0, 1, 2]
    assert sink.scalar("lr") == [0.1] * 3
    assert sink.scalar("lr/1") == [None] * 3
    assert scope.coverage["observed"] == 2


def test_a_wrapper_given_to_a_scaler_skips_as_what_it_wraps(attach: Attach) -> None:
    model = nn.Linear(4, 3)
    optimizer, scaler = Prepared(torch.optim.SGD(model.parameters(), lr=0.1)), torch.amp.GradScaler("cpu", init_scale=8)
    scope, sink = attach(model, optimizer, scaler=scaler)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step()
    assert sink.scalar("skipped") == [0.0, 1.0, 0.0]
    assert sink.scalar("loss_scale") == [8.0, 8.0, 4.0]
    assert [row["absmax"] for step in (0, 2) if (row := sink.row(step, "grad", "(model)"))] == [2.0, 2.0]


@pytest.mark.parametrize("gone", [False, True])
def test_one_that_is_made_later_takes_the_place(gone: bool) -> None:
    model, sink = nn.Linear(4, 3), MemorySink()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope = watch(model, optimizer, _sink=sink, overhead_budget=0.0)
    kept = [] if gone else [optimizer]
    for step in range(4):
        if step == 2:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            gc.collect()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scope.step()
    assert sink.scalar("lr") == [0.1, 0.1, 0.01, 0.01]
    assert all(sink.row(step, "grad", "(model)") for step in range(4))
    assert optimizer not in kept
    scope.close()


def test_one_of_other_parameters_is_left_alone(attach: Attach) -> None:
    model = nn.ModuleDict({"generator": nn.Linear(4, 4), "critic": nn.Linear(4, 1)})
    generating = torch.optim.SGD(model["generator"].parameters(), lr=0.1)
    judging = torch.optim.SGD(model["critic"].parameters(), lr=0.1)
    scope, sink = attach(model, generating)
    for _ in range(2):
        for _ in range(3):
            model["critic"](torch.ones(2, 4)).sum().backward()
            judging.step()
        model["critic"](model["generator"](torch.ones(2, 4))).sum().backward()
        generating.step()
        scope.step()
    assert [record.step for record in sink.records()] == [0, 1]
    assert scope.coverage["reasons"]["no gradient was read"] == ["critic"]


def test_an_optimizer_that_cannot_be_hashed_costs_its_own_reading_alone(attach: Attach) -> None:
    class Unhashable(torch.optim.SGD):
        __hash__ = None  # type: ignore[assignment]

    Guard.reraise = False
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    scope, sink = attach(model)
    for part in (other, model):
        optimizer = Unhashable(part.parameters(), lr=0.1)
        part(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    scope.step(loss=1.0)
    assert sink.scalar("loss") == [1.0]
    assert scope.coverage["reasons"]["no gradient was read"] == ["(model)"]


def test_an_optimizer_may_be_iterable_and_have_a_rate_of_numpy(attach: Attach) -> None:
    class Iterated(torch.optim.SGD):
        def __iter__(self) -> Iterator[int]:
            return iter((1, 2))

    model = nn.Linear(4, 3)
    optimizer = Iterated(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = np.float32(0.5)
    scope, sink = attach(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()
    assert sink.scalar("lr") == [0.5]
