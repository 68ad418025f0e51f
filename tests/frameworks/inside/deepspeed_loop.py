"""A loop around a DeepSpeed engine that knows nothing of us: ``torchrun deepspeed_loop.py STAGE FILE [STEP...]``.

In bf16 on the CPU; with steps given in fp16 on a card, and these overflow in the second layer. A checkpoint in the
folder FLOATSCOPE_TEST_CHECKPOINT is gone on from; where the folder is not there yet, one is written.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

STEPS = 4


def main() -> None:
    """Train with two micro-batches a step; rank 0 saves the weights."""
    stage, file = int(sys.argv[1]), sys.argv[2]
    overflows = frozenset(map(int, sys.argv[3:]))
    dtype = torch.float16 if overflows else torch.bfloat16
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # A compiler would take a minute to build it; gloo has these collectives too.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if overflows else "gloo", auto_mpi_discovery=False)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": not overflows},
        "fp16": {"enabled": bool(overflows), "initial_scale_power": 10, "hysteresis": 1},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    micro = itertools.count()
    if overflows:

        def overflow(grad: torch.Tensor) -> torch.Tensor:
            return grad * math.inf if next(micro) // 2 in overflows else grad

        model.get_parameter("2.weight").register_hook(overflow)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    checkpoint = os.environ.get("FLOATSCOPE_TEST_CHECKPOINT", "")
    resumes = checkpoint and Path(checkpoint).exists()
    if resumes:
        engine.load_checkpoint(checkpoint)
    for step in range(2 * STEPS):
        numbers = torch.Generator().manual_seed(100 * step + torch.distributed.get_rank())
        inputs = torch.randn(2, 8, generator=numbers).to(engine.device, dtype)
        loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().float().mean()
        engine.backward(loss)
        engine.step()
    if checkpoint and not resumes:
        engine.save_checkpoint(checkpoint)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        if torch.distributed.get_rank() == 0:
            torch.save({name: p.detach().clone() for name, p in model.named_parameters()}, file)
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
