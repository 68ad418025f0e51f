"""Fixtures of the agent's tests."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from floatscope import Scope, _operators, watch
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._patches import active_patches

PATCHABLE = (
    (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
    (torch.nn.utils, "clip_grads_with_norm_"),
    (torch.amp.GradScaler, "_unscale_grads_"),
    (torch.amp.GradScaler, "update"),
    (torch.jit._recursive, "create_script_module"),
    (torch.cuda.graphs, "make_graphed_callables"),
    (torch.cuda, "make_graphed_callables"),
    (torch.utils, "swap_tensors"),
)


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    """What the guard would keep from a training fails the test instead."""
    Guard.reraise = True
    yield
    Guard.reraise = False


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After a test no function is patched, nobody is told of what torch does, and no thread of the agent runs."""
    originals = [vars(owner)[name] for owner, name in PATCHABLE]
    getstate = vars(nn.Module).get("__getstate__")  # which older versions inherit
    yield
    for thread in (t for t in threading.enumerate() if t.name.startswith("floatscope")):
        thread.join(60.0)
        assert not thread.is_alive(), thread.name
    assert active_patches() == []
    assert [vars(owner)[name] for owner, name in PATCHABLE] == originals
    assert vars(nn.Module).get("__getstate__") is getstate
    assert not torch_optimizer._global_optimizer_pre_hooks
    assert not torch_optimizer._global_optimizer_post_hooks
    readers = _operators.readers()
    assert [*readers.outputs, *readers.rows, *readers.gradients] == []
    if (compiler := sys.modules.get("torch._dynamo.callback")) is not None:
        told = compiler.callback_handler
        assert [*told.start_callbacks, *told.end_callbacks] == []


@pytest.fixture
def until() -> Callable[..., None]:
    """``until(condition)`` waits for another thread to make it true."""

    def wait(condition: Callable[[], object], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.005)

    return wait


def hooks_of(model: nn.Module, optimizers: list[Any]) -> int:
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    hooked = [o for o in optimizers if hasattr(o, "_optimizer_step_pre_hooks")]  # wrappers of libraries have none
    return modules + sum(len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks) for o in hooked)


@pytest.fixture
def attach() -> Iterator[Callable[..., tuple[Scope, MemorySink]]]:
    """``floatscope.watch`` into memory, at the intervals given: models as small as these would soon be read less often.

    Scopes are closed afterwards, and the hooks counted.
    """
    attached: list[tuple[Scope, nn.Module, list[Any], int]] = []

    def attach_(
        model: nn.Module,
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
        **options: object,
    ) -> tuple[Scope, MemorySink]:
        optimizers = optimizer if isinstance(optimizer, list) else [optimizer] if optimizer is not None else []
        before = hooks_of(model, optimizers)
        sink = MemorySink()
        options.setdefault("overhead_budget", 0.0)
        before = next((count for _, known, _, count in attached if known is model), before)
        scope = watch(model, optimizer, _sink=sink, **options)  # type: ignore[arg-type]
        attached.append((scope, model, optimizers, before))
        return scope, sink

    yield attach_
    for scope, *_ in attached:
        scope.close()
    for _, model, optimizers, before in attached:
        assert hooks_of(model, optimizers) == before
