"""One rank of small trainings under DeepSpeed: ``python -m tests.agent.deepspeed_ranks FOLDER RANK WORLD NAME...``.

Names are STAGE-DTYPE-MICROBATCHES, and after that what is special. What each leaves lies in FOLDER as NAME.RANK.pickle.
Runs in an environment that has DeepSpeed; the rest of the tests need none.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn import functional

import floatscope
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._packing import Batch, pack
from floatscope._readable import local_part
from tests.agent.distributed_ranks import BATCH, EVERY, STEPS, Model, group, parts_of, tokens_of
from tests.agent.distributed_ranks import Training as Parts

CLIP = 0.5


def settings(name: str) -> dict[str, Any]:
    """DeepSpeed's configuration."""
    stage, dtype, micro_batches, *special = name.split("-")
    zero: dict[str, Any] = {"stage": int(stage)}
    chosen: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH // 2 // int(micro_batches),
        "gradient_accumulation_steps": int(micro_batches),
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == "bf16"},
        "zero_optimization": zero,
    }
    if "wide" in special:
        chosen["data_types"] = {"grad_accum_dtype": "fp32"}
    if "offload" in special:
        zero["offload_optimizer"] = {"device": "cpu"}
    if "robin" in special:
        zero |= {"round_robin_gradients": True, "contiguous_gradients": False}
    return chosen


def collectives() -> int:
    """How many collective operations this process has begun."""
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


def train(name: str, *, watch: bool) -> dict[str, Any]:
    """Train, and give what was recorded, DeepSpeed's norms, and the weights that this rank has."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    model = Model().float()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine, wrapped, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(name))
    scope, sink = None, MemorySink()
    if watch:
        watched = (model,) if "inner" in name else (engine, wrapped)
        scope = floatscope.watch(*watched, config=EVERY, _sink=sink)
    before, norms = collectives(), []
    for step in range(STEPS):
        parts = parts_of(tokens_of(step), Parts(model=model, micro_batches=engine.gradient_accumulation_steps()))
        for part in parts:
            logits = engine(part).float()
            loss = functional.cross_entropy(logits.flatten(0, 1), part.flatten())
            engine.backward(loss)
            engine.step()
        norms.append(float(engine.get_global_grad_norm() or float("nan")))
        if scope is not None:
            scope.step(loss=loss)
    result: dict[str, Any] = {
        "collectives": collectives() - before,
        "norms": norms,
        "optimizer": type(wrapped).__name__,
        "weights": [local_part(p).detach().clone() for p in model.parameters()],
    }
    if scope is not None:
        result["coverage"] = scope.coverage
        scope.close()
        batches = [batch for batch in pack(sink.records(), 1 << 20) if isinstance(batch, Batch)]
        result["bodies"] = [batch.body for batch in batches]
    return result


def main() -> None:
    """As the module says."""
    import deepspeed

    folder, rank, world, *names = sys.argv[1:]
    torch.set_num_threads(1)
    Guard.reraise = True
    # Collectives through shared memory, which a compiler would take a minute to build; gloo has them too.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with group(Path(folder), int(rank), int(world)):
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        for name in names:
            result = {key: train(name, watch=watch) for key, watch in (("alone", False), ("watched", True))}
            with (Path(folder) / f"{name}.{rank}.pickle").open("wb") as file:
                pickle.dump(result, file)
            dist.barrier()


if __name__ == "__main__":
    main()
