"""A loop around an Accelerator with DeepSpeed inside: ``torchrun accelerate_deepspeed.py PACKAGES FILE``.

PACKAGES is the folder of another environment that has DeepSpeed. The weights go to FILE.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4


def main() -> None:
    """Train in bf16 with ZeRO-2 and two micro-batches a step."""
    sys.path.append(sys.argv[1])  # behind what is here as well
    import deepspeed
    from accelerate import Accelerator, DeepSpeedPlugin

    torch.manual_seed(0)
    torch.set_num_threads(1)
    # A compiler would take a minute to build it; gloo has these collectives too.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings))
    inside = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(4 * STEPS * accelerator.num_processes, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(inside.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(inputs), batch_size=2)
    model, optimizer, data = accelerator.prepare(inside, optimizer, loader)
    accelerator.init_trackers("project", config={"note": "mine"})
    for (given,) in data:
        with accelerator.accumulate(model):
            batch = given.to(torch.bfloat16)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().float().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"mine": float(loss.detach())})
    accelerator.end_training()
    if os.environ["RANK"] == "0":
        torch.save(inside.state_dict(), sys.argv[2])


if __name__ == "__main__":
    main()
