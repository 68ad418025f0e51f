"""Trainings that shard with FSDP2 and know nothing of us: ``torchrun sharded.py NAME FILE``; the weights go to FILE."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

STEPS = 4
MICRO_BATCHES = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = inputs + self.down(self.up(inputs).relu())
        return outputs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({str(number): Block() for number in range(2)})
        self.output = nn.Linear(8, 3)  # fewer rows than one shard has elsewhere

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            inputs = layer(inputs)
        outputs: torch.Tensor = self.output(inputs)
        return outputs


def batch(step: int, micro: int) -> torch.Tensor:
    number = (step * MICRO_BATCHES + micro) * int(os.environ["WORLD_SIZE"]) + int(os.environ["RANK"])
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def titan() -> nn.Module:
    """As torchtitan does it: parallel dimensions of its own, on the meta device first, each block a group."""
    mesh = init_device_mesh("cpu", (1, int(os.environ["WORLD_SIZE"])), mesh_dim_names=("pp", "dp_shard"))
    with torch.device("meta"):
        model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh["dp_shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], mp_policy=policy)
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            (model(batch(step, micro)).float().square().mean() / MICRO_BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
    return model


def accelerate() -> nn.Module:
    """An Accelerator with the plugin's version 2, which it leaves aside where there is no card: so it is put in."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES, mixed_precision="bf16")
    plugin.set_mixed_precision("bf16")
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model: Any = Model()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(STEPS):
        for micro in range(MICRO_BATCHES):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch(step, micro)).float().square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    trained: nn.Module = model
    return trained


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = {"accelerate": accelerate, "titan": titan}[sys.argv[1]]()
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters()), "it was sharded"
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if os.environ["RANK"] == "0":
        torch.save(weights, sys.argv[2])
    torch.distributed.destroy_process_group()
