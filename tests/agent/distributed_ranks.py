"""Small distributed trainings, each beside its plain double: ``python -m tests.agent.distributed_ranks``.

Arguments: folder, then WORLD=NAME,NAME with names of trainings. What each leaves lies in the folder WORLD of that as
NAME.RANK.pickle. Names that begin with "plain" are run by whoever calls ``run`` with a world of 1; "to_server:RUN:RANK"
is the one for a server, in which RANK reports nothing (-1: all report).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._packing import Batch, pack

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0
STEPS = 3
EVERY = floatscope.Config(
    activations_every=1, weights_every=1, updates_every=1, histograms_every=1, overhead_budget=0.0
)
CARDS = "FLOATSCOPE_TESTS_ON_CARDS"
"""In the environment: each rank has a GPU of its own, and they talk through NCCL."""
IMPORTED_LATE = (
    "floatscope._scope",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor.parallel",
)
VOCABULARY, WIDTH, INNER, BATCH = 11, 6, 10, 8


def device() -> torch.device:
    """Where this process trains."""
    return torch.device("cuda", torch.cuda.current_device()) if CARDS in os.environ else torch.device("cpu")


class Model(nn.Module):
    """Tied embedding and head, an adapter whose first factor is frozen, and an output of one feature.

    On 4 ranks some shards of ``gate`` have no element.
    """

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)
        self.frozen = nn.Linear(WIDTH, 3, bias=False).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(3, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 1)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        if unused:
            self.unused = nn.Linear(WIDTH, WIDTH)
        self.to(device(), torch.float64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        h = h + self.down(functional.relu(self.up(h))) + self.adapter(self.frozen(h))
        logits: torch.Tensor = self.head(self.norm(h * self.gate(h)))
        return logits


@dataclass(kw_only=True)
class Training:
    """A model, what is called in its place, and what is watched."""

    model: nn.Module
    called: nn.Module | None = None
    watched: nn.Module | None = None
    wrap: Callable[[], nn.Module] | None = None
    """Called after the model is watched."""
    micro_batches: int = 1
    data_parallel: bool = True
    optimizer: torch.optim.Optimizer | None = None
    """SGD when None."""


def tokens_of(step: int) -> torch.Tensor:
    """[BATCH, 5] of one step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY, (BATCH, 5), generator=generator).to(device())


def parts_of(tokens: torch.Tensor, training: Training) -> list[torch.Tensor]:
    """This rank's micro-batches."""
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    if training.data_parallel and world > 1:
        tokens = tokens.chunk(world)[rank]
    return list(tokens.chunk(training.micro_batches))


def train(training: Training, *, watch: bool = True, steps: int = STEPS, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Train, and give what was recorded, the framework's norms, and the weights that this rank has."""
    scope, sink = None, MemorySink()
    trainable = [p for p in training.model.parameters() if p.requires_grad]
    optimizer = training.optimizer or torch.optim.SGD(trainable, lr=0.1)
    if watch:
        target: dict[str, Any] = options or {"config": EVERY, "_sink": sink}
        scope = floatscope.watch(training.watched or training.model, optimizer, **target)
    called = training.wrap() if training.wrap is not None else training.called or training.model
    norms: list[float] = []
    for step in range(steps):
        optimizer.zero_grad()
        parts = parts_of(tokens_of(step), training)
        for number, part in enumerate(parts):
            with contextlib.ExitStack() as stack:
                if isinstance(called, nn.parallel.DistributedDataParallel) and number < len(parts) - 1:
                    stack.enter_context(called.no_sync())
                loss = functional.cross_entropy(called(part).flatten(0, 1), part.flatten()) / len(parts)
                loss.backward()  # type: ignore[no-untyped-call]
        norms.append(clipped(training.model))
        optimizer.step()
        if scope is not None:
            scope.step(loss=loss)
    result: dict[str, Any] = {"norms": norms, "weights": [local(p).cpu().clone() for p in training.model.parameters()]}
    if scope is not None:
        result["coverage"] = scope.coverage
        scope.close()
        if not options:
            result["kinds"] = [{rows.kind for rows in record.summaries} for record in sink.records()]
            batches = [batch for batch in pack(sink.records(), 1 << 20) if isinstance(batch, Batch)]
            result["bodies"] = [batch.body for batch in batches]
    return result


def clipped(model: nn.Module) -> float:
    """The norm by which the framework clips the gradients, NaN where it has none of all parameters."""
    gradients = [p for p in model.parameters() if p.grad is not None]
    if len({type(p) for p in gradients}) > 1:
        return float("nan")
    total = clip_grad_norm_(gradients, 0.5)
    return float(total.full_tensor() if hasattr(total, "full_tensor") else total)


def local(parameter: torch.Tensor) -> torch.Tensor:
    """What this rank has of a parameter."""
    parameter = parameter.detach()
    part: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return part


def plain() -> Training:
    """The double of most."""
    return Training(model=Model())


def plain_unused() -> Training:
    """The double of one with an unused layer."""
    return Training(model=Model(unused=True))


def fsdp2() -> Training:
    """Blocks of their own and the rest."""
    from torch.distributed.fsdp import fully_shard

    model = Model()
    for block in (model.up, model.down, model.gate):
        fully_shard(block)
    fully_shard(model)
    return Training(model=model)


def hsdp() -> Training:
    """Shards over pairs, replicas of them over pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device().type, (2, dist.get_world_size() // 2), mesh_dim_names=("replica", "shard"))
    model = Model()
    fully_shard(model.up, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Training(model=model)


def fsdp2_ignored() -> Training:
    """A bias that FSDP leaves alone, in a layer whose weight it shards."""
    from torch.distributed.fsdp import fully_shard

    model = Model()
    assert model.up.bias is not None
    fully_shard(model, ignored_params={model.up.bias})
    return Training(model=model)


def fsdp1() -> Training:
    """Flat parameters, seen as the original ones."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Model(), use_orig_params=True, device_id=device())
    return Training(model=model)


def ddp() -> Training:
    """Watched as it is called."""
    model = nn.parallel.DistributedDataParallel(Model())
    return Training(model=model)


def ddp_accumulating() -> Training:
    """Two micro-batches, the first without reduction; one layer is never used."""
    model = nn.parallel.DistributedDataParallel(Model(unused=True), find_unused_parameters=True)
    return Training(model=model, micro_batches=2)


def ddp_inner() -> Training:
    """Wrapped already when what is inside is watched."""
    model = Model()
    return Training(model=model, called=nn.parallel.DistributedDataParallel(model))


def ddp_later() -> Training:
    """Wrapped after it is watched."""
    model = Model()
    return Training(model=model, wrap=lambda: nn.parallel.DistributedDataParallel(model))


def zero_redundancy() -> Training:
    """Replicas, of whose parameters each rank updates its own and sends them to the others."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(Model())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = ZeroRedundancyOptimizer(trainable, optimizer_class=torch.optim.SGD, lr=0.1)
    return Training(model=model, optimizer=optimizer)


def tensor_parallel() -> Training:
    """Column and row parallel: the row parallel bias is a replica, its weight a shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Model()
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # What goes through lists, as on a GPU unless told otherwise, takes no mixture of DTensors and plain ones.
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1, foreach=False)
    return Training(model=model, data_parallel=False, optimizer=optimizer)


def unknown() -> Training:
    """Nobody says how its parameters are spread."""
    return Training(model=Model())


def fsdp2_whole() -> Training:
    """One group."""
    from torch.distributed.fsdp import fully_shard

    model = Model()
    fully_shard(model)
    return Training(model=model)


def start_ranks(folder: Path, worlds: Mapping[int, Sequence[str]], **environment: str) -> subprocess.Popen[str]:
    """A process whose children run the names of each world, in ``folder`` / WORLD; ``finish`` waits for it."""
    wanted = [f"{world}={','.join(names)}" for world, names in worlds.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.agent.distributed_ranks", str(folder), *wanted],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(*processes: subprocess.Popen[str], deadline_s: float = DEADLINE_S) -> None:
    """Wait until all have ended well; each leads a session of its own."""
    try:
        outputs = [process.communicate(timeout=deadline_s)[0] for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output


def run(name: str) -> dict[str, Any]:
    """The training called ``name``; of NAME:STEPS the weights after that many, watched and not, and what was read."""
    name, _, steps = name.partition(":")
    make: Callable[[], Training] = globals()[name]
    if not steps:
        return train(make())
    ways = {"once": False, "again": False, "watched": True}
    results = {key: train(make(), watch=watch, steps=int(steps)) for key, watch in ways.items()}
    return {key: result["weights"] for key, result in results.items()} | {"kinds": results["watched"]["kinds"]}


@contextlib.contextmanager
def group(folder: Path, rank: int, world: int) -> Iterator[None]:
    """A process group that meets in a file."""
    if CARDS in os.environ:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if CARDS in os.environ else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def report(run: str, silent: int) -> None:
    """Train under the name ``run`` for the server; the rank ``silent`` reports nothing."""
    os.environ["FLOATSCOPE_RUN"] = run
    os.environ["FLOATSCOPE_DISABLED"] = str(int(dist.get_rank() == silent))
    train(fsdp2(), config=EVERY)


def run_rank(folder: Path, rank: int, world: int, names: Sequence[str]) -> None:
    """All of ``names``, one after the other."""
    with group(folder, rank, world):
        for name in names:
            if name.startswith("to_server:"):
                _, run_name, silent = name.split(":")
                report(run_name, int(silent))
                continue
            try:
                result = run(name)
            except Exception as error:
                raise RuntimeError(f"{name} on rank {rank}") from error
            with (folder / f"{name}.{rank}.pickle").open("wb") as file:
                pickle.dump(result, file)
            dist.barrier()


def main() -> None:
    """As the module says. The ranks are forked once everything is imported, which takes longer than most trainings."""
    folder, *worlds = sys.argv[1:]
    torch.set_num_threads(1)
    Guard.reraise = True
    for needed in IMPORTED_LATE:
        importlib.import_module(needed)
    for wanted in worlds:
        world, names = wanted.split("=")
        fork_ranks(Path(folder, world), int(world), names.split(","))


def fork_ranks(folder: Path, world: int, names: Sequence[str]) -> None:
    """Run all of a world and wait for them."""
    folder.mkdir()
    ranks = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            # Else the autograd threads of two cards make torch's thread pool anew at once, and one finds none.
            torch.set_num_threads(1)
            try:
                run_rank(folder, rank, world, names)
                status = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        ranks.append(child)
    while ranks:
        child, status = os.wait()
        ranks.remove(child)
        if status:
            # The others would wait for it.
            sys.exit(1)


if __name__ == "__main__":
    main()
