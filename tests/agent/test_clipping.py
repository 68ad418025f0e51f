"""Gradients that are clipped more than once, or refused, and optimizers and scalers that are not like others."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]
Clip = Callable[[nn.Module], object]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def backward(model: nn.Module, factor: float = 100.0) -> None:
    (model(torch.ones(2, 4)).square().sum() * factor).backward()


def norm_of(model: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize(
    ("clips", "limit"),
    [
        ((1.0, 0.5), 0.5),
        ((0.5, 1.0), 0.5),
        ((1.0, math.inf), 1.0),
        ((math.inf, 1.0), 1.0),
        ((2.0, 1.0, 0.25, 3.0), 0.25),
        ((0.0,), 0.0),
    ],
    ids=str,
)
def test_clipped_again_what_is_left_is_what_the_last_one_leaves(
    attach: Attach, clips: tuple[float, ...], limit: float
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer)
    backward(model)
    before = norm_of(model)
    for clip in clips:
        clip_grad_norm_(model.parameters(), clip)
    left = norm_of(model)
    optimizer.step()
    scope.step()
    assert sink.scalar("grad_norm/framework") == [pytest.approx(before, rel=1e-5)]
    assert sink.scalar("clip_norm") == [limit]
    assert sink.scalar("grad_norm/clipped") == [pytest.approx(left, rel=1e-4)]


@pytest.mark.parametrize(
    "then",
    [lambda m: clip_grad_norm_(m[0].parameters(), 1e-3), lambda m: clip_grad_norm_(m.parameters(), 1e-3, math.inf)],
    ids=["a part", "another norm"],
)
def test_what_a_part_or_another_norm_leaves_is_not_told(attach: Attach, then: Clip) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer)
    backward(model)
    before = norm_of(model)
    clip_grad_norm_(model.parameters(), 1.0)
    then(model)
    optimizer.step()
    scope.step()
    assert sink.scalar("grad_norm/framework") == [pytest.approx(before, rel=1e-5)]
    assert sink.scalar("grad_norm/clipped") == [None]
    assert sink.scalar("clip_norm") == [None]


def test_a_closure_that_is_evaluated_again_is_clipped_anew(attach: Attach) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    norms = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        backward(model)
        norms.append(norm_of(model))
        clip_grad_norm_(model.parameters(), 1.0)
        return torch.ones(())

    scope, sink = attach(model, optimizer)
    optimizer.step(closure)  # type: ignore[no-untyped-call]
    scope.step()
    assert len(set(norms)) > 1
    assert sink.scalar("grad_norm") == [pytest.approx(norms[-1], rel=1e-6)]
    assert sink.scalar("grad_norm/framework") == [pytest.approx(norms[-1], rel=1e-5)]


@pytest.mark.parametrize("public", [False, True], ids=["clip_grad_norm_", "get_total_norm"])
def test_gradients_whose_norm_is_refused_are_read(attach: Attach, *, public: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, math.inf if step == 1 else 1.0)
        try:
            if public:
                total = nn.utils.get_total_norm(
                    [p.grad for p in model.parameters() if p.grad is not None], error_if_nonfinite=True
                )
                nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, total)
            else:
                clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        except RuntimeError:
            assert step == 1
        else:
            optimizer.step()
        scope.step()
    rows = [sink.row(step, "grad", "1") for step in range(3)]
    assert [row is not None and bool(row["nans"] + row["infs"]) for row in rows] == [False, True, False]
    assert [value is not None and math.isnan(value) for value in sink.scalar("clip_coef")] == [False, True, False]


def test_the_step_that_ends_a_program_by_its_norm_is_sent() -> None:
    model, sink = network(), MemorySink()
    with floatscope.watch(model, _sink=sink, overhead_budget=0.0):
        backward(model, math.inf)
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    row = sink.row(0, "grad", "1")
    assert row is not None
    assert row["nans"] + row["infs"] > 0


def test_a_norm_of_somebody_elses_tensors_is_none_of_ours(attach: Attach) -> None:
    model = network()
    scope, sink = attach(model)
    backward(model)
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.get_total_norm([torch.tensor([math.nan])], error_if_nonfinite=True)
    with pytest.raises(TypeError):
        nn.utils.get_total_norm(None, 2.0, True)  # type: ignore[arg-type]  # noqa: FBT003
    scope.step()
    assert sink.row(0, "grad", "0") is None


class Rateless(torch.optim.Optimizer):
    """Without a learning rate, or one that is no number, as of an optimizer that finds it by itself."""

    def __init__(self, model: nn.Module, **rate: object) -> None:
        super().__init__(model.parameters(), rate)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.01 * parameter.grad


@pytest.mark.parametrize("rate", [{}, {"lr": None}, {"lr": "auto"}, {"lr": torch.ones(2)}], ids=str)
def test_an_optimizer_without_a_rate_is_observed_as_any_other(attach: Attach, rate: dict[str, object]) -> None:
    model = network()
    optimizer = Rateless(model, **rate)
    scope, sink = attach(model, optimizer, updates_every=1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, 1.0)
        optimizer.step()
        scope.step()
    assert sink.scalar("lr") == [None, None]
    for kind in ("grad", "update"):
        assert all(sink.row(step, kind, "0") is not None for step in range(2))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["deepcopy", "pickle"])
def test_a_scaler_that_nobody_saw_being_made_skips_as_others(
    attach: Attach, copied: Callable[[torch.amp.GradScaler], torch.amp.GradScaler]
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    for step in range(4):
        if step == 2:
            scaler = copied(scaler)
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum() * (math.inf if step % 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step()
    assert sink.scalar("skipped") == [0.0, 1.0, 0.0, 1.0]
    assert sink.scalar("grad_norm")[2] == pytest.approx(sink.scalar("grad_norm")[0])


@pytest.mark.parametrize("all_of_them", [True, False])
def test_an_iterator_is_counted_by_what_the_norm_is_of(attach: Attach, *, all_of_them: bool) -> None:
    model = network()
    scope, sink = attach(model)
    backward(model)
    part = model if all_of_them else model[0]
    total = nn.utils.get_total_norm([p.grad for p in part.parameters() if p.grad is not None])
    nn.utils.clip_grads_with_norm_(part.parameters(), 1.0, total)
    scope.step()
    assert sink.scalar("clip_norm") == [1.0 if all_of_them else None]
