"""Copies, checkpoints and scripts of a watched model are those of the model alone."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from floatscope import Operand, Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class CastingLinear(nn.Linear):
    def floatscope_operands(self) -> dict[str, Operand]:
        return {"act_in": Operand(format="e4m3fn")}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))


def users_hook(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output + 1


def hooks(model: nn.Module) -> list[object]:
    return [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def pickled(model: nn.Module) -> nn.Module:
    other: nn.Module = pickle.loads(pickle.dumps(model))
    return other


def loaded_with_weights_only(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU, nn.LayerNorm, set]):
        other: nn.Module = torch.load(file, weights_only=True)
    return other


@pytest.mark.parametrize("duplicate", [copied, pickled, loaded_with_weights_only])
def test_a_duplicate_has_no_hook_of_ours(attach: Attach, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model = make_model()
    scope, sink = attach(model, activations_every=1)
    other = duplicate(model)
    assert hooks(other) == []
    assert torch.equal(other(X), model(X))
    other(X)
    scope.step()
    row = sink.row(0, "act", "0")
    assert row is not None
    assert row["count"] == 8


def test_a_copy_keeps_the_users_hooks(attach: Attach) -> None:
    model = make_model()
    model[0].register_forward_hook(users_hook)
    attach(model)
    other = copy.deepcopy(model)
    assert hooks(other) == [users_hook]
    assert torch.equal(other(X), model(X))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_watched_model_can_be_scripted_and_is_watched_on(attach: Attach) -> None:
    model = nn.Sequential(make_model(), CastingLinear(4, 4))
    scope, sink = attach(model, activations_every=1)
    before = hooks(model)
    for given in (model[0], copy.deepcopy(model[0])):
        scripted: Any = torch.jit.script(given)
        assert scripted._c._get_forward_hooks() == []
        assert torch.equal(scripted(X), given(X))
    traced: Any = torch.jit.trace(model, X, check_trace=False)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(X), model(X))
    assert hooks(model) == before
    scope.step()
    assert sink.row(0, "act", "0.0") is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_script_that_fails_leaves_the_hooks_where_they_were(attach: Attach) -> None:
    class Unscriptable(nn.Linear):
        def forward(self, input: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:  # noqa: A002
            return super().forward(input)

    model = nn.Sequential(Unscriptable(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(users_hook)
    attach(model)
    later = model[0].register_forward_hook(users_hook)
    before = hooks(model)
    with pytest.raises(Exception, match="variable number of arguments"):
        torch.jit.script(model)
    assert hooks(model) == before
    later.remove()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the call would succeed; tests/gpu has it")
def test_a_watched_module_can_be_made_a_graphed_callable(attach: Attach) -> None:
    model = make_model()
    attach(model)
    before = hooks(model)
    # Hooks on the module are refused first of all; what comes next is that this machine needs a device.
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        torch.cuda.make_graphed_callables(model, (X,))
    assert hooks(model) == before
