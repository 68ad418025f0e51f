"""Models that change while they are watched, and backward passes that are differentiated themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import prune

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, weights_every=1)


def train(model: nn.Module, scope: Scope) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()


def test_a_replaced_module_reports_no_weights(attach: Attach) -> None:
    old = nn.Linear(4, 2)
    model = nn.Sequential(nn.Linear(4, 4), old)
    scope, sink = attach(model, config=EVERY)
    train(model, scope)
    model[1] = nn.Linear(4, 3)
    train(model, scope)
    assert sink.row(0, "weight", "1") is not None
    assert sink.row(1, "weight", "1") is None
    assert sink.row(1, "weight", "0") is not None
    reasons = scope.coverage["reasons"]
    assert reasons["not observed: removed from the model since it is watched"] == ["1"]
    assert reasons["not observed: added to the model since it is watched"] == ["1"]
    model[1] = old


def test_replaced_parameters_are_told(attach: Attach) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4))
    scope, _ = attach(model, config=EVERY)
    model.to_empty(device="cpu")
    nn.init.ones_(model[0].weight)  # type: ignore[arg-type]
    nn.init.ones_(model[0].bias)  # type: ignore[arg-type]
    train(model, scope)
    assert scope.coverage["trainable"] == 1
    assert scope.coverage["observed"] == 0
    reasons = scope.coverage["reasons"]
    assert reasons["gradients not observed: its parameters were replaced since the model is watched"] == ["0"]


def test_parameters_that_another_module_takes_over_are_observed_on(attach: Attach) -> None:
    # As conversions to synchronised norms, quantisation-aware training and torch's pruning and parametrizations do.
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    scope, sink = attach(model, config=EVERY)
    train(model, scope)
    taking = nn.Linear(4, 4, bias=False)
    taking.weight = model[0].weight  # type: ignore[assignment]
    model[0] = taking
    prune.identity(model[1], "weight")  # type: ignore[no-untyped-call]
    train(model, scope)
    for layer in ("0", "1"):
        assert sink.row(1, "grad", layer) is not None, layer
    assert scope.coverage == {
        "trainable": 2,
        "observed": 2,
        "reasons": {"only gradients observed: its parameters are in another module since the model is watched": ["0"]},
    }
    prune.remove(model[1], "weight")  # type: ignore[no-untyped-call]


def test_a_training_in_eval_mode_is_told(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    scope, _ = attach(model, config=EVERY)
    train(model, scope)
    assert scope.coverage["reasons"] == {"outputs not observed: it ran in eval mode only": ["0"]}


def test_a_gradient_penalty_is_not_counted_as_a_second_gradient(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 1))
    scope, sink = attach(model, config=EVERY)
    x = torch.ones(3, 4, requires_grad=True)
    y = model(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (y.sum() + gradient.square().sum()).backward()
    scope.step()
    for layer, count in (("0", 12), ("2", 3)):
        row = sink.row(0, "act_grad", layer)
        assert row is not None
        assert row["count"] == count


def test_a_backward_that_keeps_its_own_graph_is_counted(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    scope, sink = attach(model, config=EVERY)
    torch.autograd.grad(model(torch.ones(3, 4)).sum(), list(model.parameters()), create_graph=True)
    scope.step()
    row = sink.row(0, "act_grad", "0")
    assert row is not None
    assert row["count"] == 12
