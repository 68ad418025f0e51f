"""FSDP2: this rank's shards are measured, and nothing is gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_local_shards_are_measured_without_a_collective(attach: Attach, mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    model(torch.ones(3, 4)).sum().backward()
    want = {
        name: floatscope.summarize([p.grad.to_local() for p in module.parameters()])  # type: ignore[union-attr]
        for name, module in model.named_children()
    }
    with CommDebugMode() as communication:  # type: ignore[no-untyped-call]
        optimizer.step()
        scope.step()
    assert communication.get_total_counts() == 0
    clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    scope.step()
    for name, summary in want.items():
        row = sink.row(0, "grad", name)
        assert row is not None
        assert row["count"] == summary.count
        assert row["sumsq"] == pytest.approx(summary.sumsq)
        assert sink.row(0, "weight", name) is not None
    squares = sum(summary.sumsq for summary in want.values())
    assert sink.scalar("grad_norm") == pytest.approx([squares**0.5] * 2), "one rank has all shards"
    assert sink.scalar("grad_norm/framework") == [None, None], "it is spread over the ranks"
    assert sink.scalar("clip_coef") == [None, None]


def test_the_sharded_scaler_overrides_what_is_observed(attach: Attach, mesh: DeviceMesh) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ShardedGradScaler("cpu", init_scale=8.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    for factor in (1.0, 1e38):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step()
    assert sink.scalar("skipped") == [0.0, 1.0]
    assert sink.scalar("loss_scale") == [8.0, 8.0]
    row = sink.row(0, "grad", "(model)")
    assert row is not None
    assert row["absmax"] == 1.0
    scope.close()
    assert ShardedGradScaler._unscale_grads_.__module__ == "torch.distributed.fsdp.sharded_grad_scaler"
    assert not hasattr(ShardedGradScaler._unscale_grads_, "__wrapped__")
