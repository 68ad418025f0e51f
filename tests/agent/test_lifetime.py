"""A scope does not keep what it observes alive, and ends with it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Scope, _scope
from floatscope._memory import MemorySink
from floatscope._scope import scope_of

Attach = Callable[..., tuple[Scope, MemorySink]]


def train(given: bool, sink: MemorySink) -> tuple[Scope, list[weakref.ref[object]]]:
    """Three steps of a model that nobody keeps; references to it and to its optimizer."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    scope = floatscope.watch(
        model, optimizer if given else None, scaler=scaler, activations_every=1, weights_every=1, _sink=sink
    )
    for _ in range(3):
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scope.step(loss=1.0)
    scope.log(eval_loss=2.0)
    return scope, [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]


@pytest.mark.parametrize("given", [True, False])
def test_a_model_that_nobody_needs_goes_and_its_scope_closes(given: bool, until: Callable[..., None]) -> None:
    sink = MemorySink()
    scope, references = train(given, sink)
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    until(lambda: sink.reason == "finished")
    assert sink.scalar("eval_loss") == [None, None, None, 2.0]
    assert not _scope._attached
    scope.step(loss=3.0)
    scope.close()
    assert len(sink.pending) == 4
    # What is patched is restored where no hook can be running.
    other = nn.Linear(1, 1)
    floatscope.watch(other, _sink=MemorySink()).close()


def test_a_second_run_of_the_same_model_needs_the_first_to_end(attach: Attach) -> None:
    model = nn.Linear(2, 2)
    scope, _ = attach(model, run="first")
    again, _ = attach(model, run="first")
    unnamed, _ = attach(model)
    assert again is unnamed is scope
    with pytest.raises(ValueError, match="watched already, as the run first; close that scope"):
        floatscope.watch(model, run="second", _sink=MemorySink())
    scope.close()
    second, _ = attach(model, run="second")
    assert second.config.run == "second"


def test_optimizers_of_a_step_each_take_the_places_of_those_that_are_gone(attach: Attach) -> None:
    model = nn.Linear(2, 2)
    lasting = torch.optim.SGD(model.parameters(), lr=0.5)
    scope, sink = attach(model)
    for step in range(20):
        inner = [torch.optim.SGD([parameter], lr=0.1 * number) for number, parameter in enumerate(model.parameters())]
        for optimizer in (lasting, *inner):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scope.step()
            assert scope._gradients.index_of(optimizer) is not None, step
        del inner, optimizer
    assert len(scope._gradients._optimizers) == len(scope._gradients._numbers) == 3
    assert sink.scalar("lr")[::3] == [0.5] * 20
    assert sink.scalar("lr/1")[1::3] == [0.0] * 20
    assert sink.scalar("lr/2")[2::3] == [0.1] * 20


def test_layers_that_outlive_their_model_are_no_longer_observed(until: Callable[..., None]) -> None:
    head = nn.Linear(2, 2)
    sink = MemorySink()
    scope = floatscope.watch(nn.Sequential(head), activations_every=1, _sink=sink)
    gc.collect()
    until(lambda: sink.reason == "finished")
    other = nn.Sequential(head)
    records = MemorySink()
    second = floatscope.watch(other, activations_every=1, _sink=records)
    assert len(head._forward_hooks) == 1
    other(torch.ones(1, 2)).sum().backward()
    second.step()
    second.close()
    assert not head._forward_hooks
    assert scope.coverage["observed"] == 0
    assert records.row(0, "act", "0") is not None
    assert not sink.pending


def test_models_that_call_each_other_equal_are_two(attach: Attach) -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    first, second = Equal(2, 2), Equal(2, 2)
    one, _ = attach(first)
    other, _ = attach(second)
    assert one is not other
    assert scope_of(second) is other
    other.close()
    assert not one.closed
    assert scope_of(first) is one


def test_a_model_that_cannot_be_compared_is_watched_and_left(attach: Attach) -> None:
    class Incomparable(nn.Linear):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

        def __len__(self) -> int:
            return 0

        __hash__ = nn.Module.__hash__

    model = Incomparable(2, 2)
    scope, _ = attach(model)
    model(torch.ones(1, 2)).sum().backward()
    scope.step()
    assert scope_of(model) is scope
    scope.close()
    assert scope.coverage["reasons"] == {"no gradient was read": ["(model)"]}
