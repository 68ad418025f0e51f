"""Ctrl-C while the agent is at work: a training that goes on finds torch as it left it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from floatscope import Scope
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._own_ops import OwnOperations
from floatscope._record import LostRecord

Attach = Callable[..., tuple[Scope, MemorySink]]


def modes() -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_torch_function_enabled()


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_modes_are_put_back_though_their_exit_never_ran(around: Callable[[], torch.no_grad]) -> None:
    with around():
        before = modes()

        def interrupted() -> None:
            with Guard("interrupted"):
                OwnOperations().__enter__()
                OwnOperations().__enter__()
                assert modes() == (False, False, False)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert modes() == before


def test_an_interrupted_hook_leaves_no_mode_and_observes_again(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=1)
    before = modes()
    with monkeypatch.context() as patched:
        patched.setattr(OwnOperations, "__exit__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4))
    assert modes() == before
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()
    assert sink.row(0, "act", "(model)") is not None
    assert sink.row(0, "grad", "(model)") is not None


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_step_whose_end_is_interrupted_is_declared_with_its_names(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, sink = attach(torch.nn.Linear(4, 4))
    with monkeypatch.context() as patched:
        patched.setattr("floatscope._scope.Pending", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scope.step()
    lost = sink.pending.pop()
    assert isinstance(lost, LostRecord)
    assert (lost.step, [layer.name for layer in lost.layers]) == (0, ["(model)"])
    scope.step()
    assert [event.kind for event in sink.records()[0].events] == ["coverage"]


def test_names_that_an_interrupt_kept_from_leaving_come_with_the_next_step(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope, sink = attach(torch.nn.Linear(4, 4))
    with monkeypatch.context() as patched:
        patched.setattr(sink, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scope.step()
    scope.step()
    scope.step()
    assert [[layer.name for layer in record.layers] for record in sink.records()] == [["(model)"], []]
