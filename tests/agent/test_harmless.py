"""Training gives bitwise the same result with and without the agent, whose readings all happen at every step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import floatscope
from floatscope._memory import MemorySink

OVERFLOWS = (5, 17, 150)
EVERY = floatscope.Config(
    activations_every=1, histograms_every=1, weights_every=1, updates_every=1, overhead_budget=0.0
)
Run = Callable[["Block", torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.drop(self.act(self.up(self.norm(x)))))
        return out


def directly(block: Block, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = block(x)
    return out


def reentrant(block: Block, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = checkpoint(block, x, use_reentrant=True)
    return out


def without_reentering(block: Block, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = checkpoint(block, x, use_reentrant=False)
    return out


def selectively(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Normalised values are kept, the rest is computed again."""
    kept = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.native_layer_norm.default])
    out: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=kept)
    return out


class Model(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.run = run

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(tokens)
        for block in self.blocks:
            assert isinstance(block, Block)
            x = self.run(block, x)
        logits = self.head(x[:, :-1]).flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()), "logits": logits}


@dataclass(frozen=True, kw_only=True)
class Case:
    run: Run = directly
    micro_batches: int = 1
    scaled: bool = False
    half: bool = False
    fused: bool = False
    sent: bool = False
    """Records go to a server that is not there, by way of the spool; else they stay in memory."""


CASES = {
    "plain": Case(),
    "plain, sent": Case(sent=True),
    "fused": Case(fused=True),
    "accumulated": Case(micro_batches=3),
    "reentrant": Case(run=reentrant),
    "non-reentrant": Case(run=without_reentering),
    "selective": Case(run=selectively),
    "everything": Case(run=without_reentering, micro_batches=2, scaled=True),
    "everything, fused": Case(run=reentrant, micro_batches=2, scaled=True, fused=True),
    "everything, bf16": Case(run=selectively, micro_batches=2, scaled=True, half=True),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(case: Case, steps: int, *, watched: bool) -> list[torch.Tensor]:
    """Losses, weights and the state of the random generator after a training with clipping, and overflows if scaled."""
    torch.manual_seed(3)
    model = Model(case.run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=case.fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4, enabled=case.scaled)
    sink = MemorySink()
    options: dict[str, Any] = {"server": "http://127.0.0.1:9"} if case.sent else {"_sink": sink}
    watch = functools.partial(floatscope.watch, model, optimizer, scaler=scaler, config=EVERY, **options)
    context: AbstractContextManager[floatscope.Scope | None] = watch() if watched else nullcontext()
    losses = []
    with context as scope:
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(case.micro_batches):
                tokens = torch.randint(0, 50, (4, 9))
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.half):
                    loss = model(tokens)["loss"] * (1e38 if case.scaled and step in OVERFLOWS else 1.0)
                scaler.scale(loss).backward()
                losses.append(loss.detach())
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            if scope is not None:
                scope.step(loss=loss, lr=1e-2)
    if watched and not case.sent:
        assert sink.scalar("skipped") == [float(step in OVERFLOWS) if case.scaled else None for step in range(steps)]
        for record in sink.records():
            kinds = {rows.kind for rows in record.summaries}
            if case.scaled and record.step in OVERFLOWS:
                kinds.add("update")  # of an optimizer that was not called there is none
            assert kinds == set(floatscope.wire.KINDS)
            assert all(rows.hist is not None for rows in record.summaries)
    return [torch.stack(losses), *(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 200) for name, case in CASES.items() if not case.scaled),
        *((name, 20) for name, case in CASES.items() if case.scaled),
        *(pytest.param(name, 200, marks=pytest.mark.long) for name, case in CASES.items() if case.scaled),
    ],
)
def test_weights_are_bitwise_equal(name: str, steps: int) -> None:
    baseline = train(CASES[name], steps, watched=False)
    repeated = train(CASES[name], steps, watched=False)
    assert all(map(torch.equal, baseline, repeated)), "the baseline does not repeat"
    observed = train(CASES[name], steps, watched=True)
    assert all(map(torch.equal, baseline, observed))
