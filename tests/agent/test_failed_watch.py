"""watch() raises ValueError or nothing, and what it began is undone when it fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Operand
from floatscope._memory import MemorySink
from floatscope._patches import active_patches

NOWHERE = "http://127.0.0.1:9"


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return modules + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def nothing_is_left(model: nn.Module, optimizer: torch.optim.Optimizer, before: int = 0) -> bool:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("floatscope")]
    for thread in ours:
        thread.join(60.0)
    return hooks_of(model, optimizer) == before and active_patches() == [] and not any(t.is_alive() for t in ours)


class TakesNoHook(nn.Linear):
    def register_forward_hook(self, *args: object, **kwargs: object) -> torch.utils.hooks.RemovableHandle:
        raise RuntimeError("not here")


class Failing(nn.Linear):
    def floatscope_operands(self) -> Mapping[str, Operand]:
        raise AttributeError("scale is not known yet")


class Numbers(nn.Linear):
    def floatscope_operands(self) -> Mapping[str, float]:
        return {"act_in": 2.0}


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (lambda: TakesNoHook(4, 4), "cannot be watched: RuntimeError: not here"),
        (lambda: nn.LazyLinear(4), "1: its parameters have no shape yet; run one batch"),
        (lambda: Failing(4, 4), "1: floatscope_operands.. raised AttributeError: scale is not known yet"),
        (lambda: Numbers(4, 4), "1: operand act_in: expected floatscope.Operand, got float"),
    ],
)
def test_a_model_that_cannot_be_watched(last: type[nn.Module], message: str) -> None:
    first = nn.Linear(4, 4)
    model = nn.Sequential(first, last())
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = hooks_of(model, optimizer)
    with pytest.raises(ValueError, match=message):
        floatscope.watch(model, optimizer, scaler=scaler, server=NOWHERE, run="r")
    assert nothing_is_left(model, optimizer, before)


def test_arguments_of_any_type() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="a sequence of them, got int"):
        floatscope.watch(model, 5, server=NOWHERE, run="r")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_part_is_watched_as_far_as_it_goes() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2))
    sink = MemorySink()
    with floatscope.watch(model, _sink=sink, activations_every=1) as scope:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scope.step()
        assert scope.coverage["observed"] == 2
        assert scope.coverage["reasons"] == {"outputs not observed: TorchScript takes no hooks": ["0"]}
    for kind, layer in (("grad", "0"), ("grad", "1"), ("act", "1")):
        assert sink.row(0, kind, layer) is not None


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
def test_ranks_in_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    monkeypatch.setenv(variable, "")
    floatscope.watch(model, server=NOWHERE, run="r").close()
    monkeypatch.setenv(variable, "one")
    with pytest.raises(ValueError, match=f"{variable} in the environment: expected a number, got 'one'"):
        floatscope.watch(model, server=NOWHERE, run="r")
    assert active_patches() == []


@pytest.mark.parametrize("allowed", [0, 1])
def test_without_a_thread_training_goes_on_unobserved(
    allowed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_some(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    scope = floatscope.watch(model, optimizer, server=NOWHERE, run="r")
    assert nothing_is_left(model, optimizer)
    assert "can't start new thread" in caplog.text
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scope.step(loss=1.0)
    assert scope.coverage["reasons"] == {"no thread could be started": []}
    scope.close()
