"""After ``close`` a process is what it was before ``watch``: hooks, patched names, threads, files, objects, memory."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.optim import optimizer as torch_optimizer

import floatscope

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

EVERY = floatscope.Config(
    activations_every=1,
    weights_every=1,
    updates_every=1,
    histograms_every=1,
    compiled_outputs=True,
    compiled_all_outputs=True,
    compiled_operands=True,
    overhead_budget=0.0,
)
Trained = tuple[nn.Module, nn.Module, torch.optim.Optimizer]
"""A model, what is called in its place, and its optimizer."""


def functions() -> dict[tuple[str, str], object]:
    """Every function that torch's modules and classes have, and the methods that others could be given."""
    found: dict[tuple[str, str], object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch":
            continue
        for key, value in list(vars(module).items()):
            if type(value) is FunctionType:
                found[name, key] = value
            elif issubclass(type(value), type) and value.__module__ == name:
                members = vars(value).items()
                found.update(((name, f"{key}.{k}"), v) for k, v in members if isinstance(v, FunctionType))
    return found


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """How many each table of hooks has, of the model, its parameters, its optimizer, and of all modules."""
    owners: dict[str, Any] = dict(model.named_modules())
    owners |= {f"parameter {name}": parameter for name, parameter in model.named_parameters()}
    owners |= {"the optimizer": optimizer, "every module": nn.modules.module, "every optimizer": torch_optimizer}
    return {
        f"{name}.{key}": len(value)
        for name, owner in owners.items()
        for key, value in [*vars(owner).items(), ("_backward_hooks", getattr(owner, "_backward_hooks", None))]
        if key.endswith("_hooks") and isinstance(value, dict)
    }


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a training could have been left with."""
    gc.collect()
    objects = gc.get_objects()
    files = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208 (one snapshot)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return {
        "hooks": hooks(model, optimizer),
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(str(file.readlink()) for file in files if file.is_symlink()),
        "children": children.read_text() if children.exists() else "",
        "our objects": Counter(
            type(o).__qualname__ for o in objects if str(type(o).__module__).partition(".")[0] == "floatscope"
        ),
        "tensors": sum(issubclass(type(o), torch.Tensor) for o in objects),
    }


def eager() -> Trained:
    layers = [nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3), nn.Tanh()]
    model = nn.Sequential(*layers)
    return model, model, torch.optim.AdamW(model.parameters())


def compiled() -> Trained:
    model, _, optimizer = eager()
    return model, torch.compile(model, backend="aot_eager"), optimizer  # type: ignore[return-value]


def ddp() -> Trained:
    inner, _, optimizer = eager()
    model = nn.parallel.DistributedDataParallel(inner)
    return model, model, optimizer


def fsdp2() -> Trained:
    from torch.distributed.fsdp import fully_shard

    model, _, _ = eager()
    fully_shard(model)
    return model, model, torch.optim.AdamW(model.parameters())


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(called: nn.Module, optimizer: torch.optim.Optimizer, scope: floatscope.Scope | None) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(4):
        optimizer.zero_grad()
        loss = called(torch.tensor([[1, 2, 3], [4, 5, 6]])).square().mean()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(called.parameters(), 1.0)
        scaler.step(optimizer)
        if scope is not None:
            scope.step(loss=loss)
    optimizer.zero_grad()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("make", [eager, compiled, ddp, fsdp2])
def test_closing_leaves_nothing(server: IngestDouble, until: Callable[..., None], make: Callable[[], Trained]) -> None:
    torch.compiler.reset()
    model, called, optimizer = make()

    def watched() -> None:
        server.last_seq = 0
        with floatscope.watch(model, optimizer, server=server.url, run="r", config=EVERY) as scope:
            train(called, optimizer, scope)
            during = hooks(model, optimizer)
            until(lambda: len(server.steps()) == 4)  # it waits for a slow machine longer than its end does
        assert sum(during.values()) > sum(hooks(model, optimizer).values())
        assert server.steps() == [0, 1, 2, 3]
        server.kept.clear()
        server.seen.clear()

    def changed() -> dict[str, tuple[object, object]]:
        now = state(model, optimizer)
        # Fewer tensors are none of ours left: what other tests compiled in this process may go meanwhile.
        now["tensors"] = max(before["tensors"], now["tensors"])
        return {what: (before[what], now[what]) for what in now if before[what] != now[what]}

    # What happens once: modules are imported, code is compiled, the optimizer and the double make their own.
    train(called, optimizer, None)
    watched()
    train(called, optimizer, None)
    until(lambda: not server._open)
    before, names = state(model, optimizer), functions()
    watched()
    train(called, optimizer, None)  # what was compiled for watching is not kept
    with contextlib.suppress(AssertionError):  # what the double has open ends a little later
        until(lambda: not changed(), within_s=60.0)
    assert changed() == {}
    after = functions()
    assert {name: after.get(name) for name in names} == names
    torch.compiler.reset()
