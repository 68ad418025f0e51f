"""Conversions that exchange what parameters hold, which tensors with a weak reference are refused."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from floatscope import Scope
from floatscope._memory import MemorySink
from floatscope._tensor_refs import TensorRef, step_aside

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
def test_a_model_is_converted_and_observed_on(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    for step, dtype in enumerate((torch.float32, torch.float32, torch.float64, torch.float64)):
        optimizer.zero_grad()
        model.to(dtype)
        model(torch.full((2, 4), step + 1.0, dtype=dtype)).sum().backward()
        wanted = sum(float(p.grad.double().square().sum()) for p in model[0].parameters() if p.grad is not None)
        optimizer.step()
        scope.step()
        row = sink.row(step, "grad", "0")
        assert row is not None
        assert row["sumsq"] == pytest.approx(wanted)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    assert scope.coverage == {"trainable": 2, "observed": 2, "reasons": {}}


@pytest.mark.usefixtures("swapping")
def test_a_closed_scope_that_somebody_keeps_is_in_nobodys_way(attach: Attach) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()
    scope.close()
    model.zero_grad()
    model.to(torch.float64)
    assert scope.coverage["observed"] == 1


def test_parameters_of_a_subclass_are_moved(attach: Attach) -> None:
    # As DTensors, whose conversion swaps without being told to.
    model = nn.Linear(4, 3, bias=False)
    model.weight = nn.Parameter(TwoTensor(torch.ones(3, 4), torch.ones(3, 4)))  # type: ignore[no-untyped-call]
    attach(model)
    model.to(torch.float64)
    assert model.weight.dtype == torch.float64


def test_what_refers_to_a_tensor_is_told_of_a_swap_and_refers_to_it_on() -> None:
    changes: list[int] = []
    tensor, other = torch.ones(1), torch.zeros(1)
    plain, told = TensorRef(tensor), TensorRef(tensor, lambda: changes.append(1))
    undo = step_aside()
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
    undo()
    assert plain.get() is told.get() is tensor
    assert changes == [1]
    del tensor
    assert plain.get() is told.get() is None
    assert changes == [1, 1]


def test_a_weak_reference_of_somebody_else_is_refused_as_ever() -> None:
    tensor, other = torch.ones(1), torch.zeros(1)
    ours, theirs = TensorRef(tensor), weakref.ref(tensor)
    undo = step_aside()
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
    undo()
    assert ours.get() is theirs() is tensor
