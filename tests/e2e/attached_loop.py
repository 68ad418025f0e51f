"""A training that knows nothing of Floatscope: fp16 with a loss scaler, two layers, an overflow where it is told to.

    python attached_loop.py WEIGHTS [STEP...]    # where to save, steps that overflow

Under torchrun it trains with DDP over gloo.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

weights, *steps = sys.argv[1:]
overflows = set(map(int, steps))
ranks = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
names = [name for name, _ in model.named_parameters()]
if ranks > 1:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
generator = torch.Generator().manual_seed(rank)
for step in range(5):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(torch.randn(8, 16, generator=generator))
        loss = out.float().sub(1.0).square().mean()
        if step in overflows:
            # Its gradient fits into float32, and with the loss scale it does not: the last layer says so first.
            loss = loss * 1e37
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
if rank == 0:
    torch.save(dict(zip(names, model.state_dict().values(), strict=True)), Path(weights))
if ranks > 1:
    # DDP holds the group. Its threads give back Python objects, and one that does so while the interpreter ends aborts
    # the process: they end before.
    del model, out, loss
    distributed.barrier()
    distributed.destroy_process_group()
