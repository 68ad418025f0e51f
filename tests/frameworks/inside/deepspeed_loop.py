"""A loop around a DeepSpeed engine that knows nothing of us: ``torchrun deepspeed_loop.py STAGE FILE``."""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
import torch
from torch import nn

STEPS = 4


def main() -> None:
    """Train with two micro-batches a step; rank 0 saves the weights."""
    stage, file = int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # A compiler would take a minute to build it; gloo has these collectives too.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    for step in range(2 * STEPS):
        numbers = torch.Generator().manual_seed(100 * step + torch.distributed.get_rank())
        inputs = torch.randn(2, 8, generator=numbers).to(torch.bfloat16)
        loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().float().mean()
        engine.backward(loss)
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        if torch.distributed.get_rank() == 0:
            torch.save({name: p.detach().clone() for name, p in model.named_parameters()}, file)
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
