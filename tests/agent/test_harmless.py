"""Training gives bitwise the same result with and without the agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import floatscope
from floatscope._memory import MemorySink

STEPS = 12


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


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number == 1 else block(x)
        logits = self.head(x[:, :-1]).flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()), "logits": logits}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(*, watched: bool, half: bool, fused: bool) -> list[torch.Tensor]:
    """Weights and the state of the random generator after a training with an overflow, clipping and accumulation."""
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    sink = MemorySink()
    every = floatscope.Config(activations_every=1, histograms_every=1, weights_every=1)
    context = floatscope.watch(model, optimizer, scaler=scaler, config=every, _sink=sink) if watched else nullcontext()
    with context as scope:
        for step in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                tokens = torch.randint(0, 50, (4, 9))
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                    loss = model(tokens)["loss"] * (1e38 if step == 5 else 1.0)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            if scope is not None:
                scope.step(loss=loss, lr=1e-2)
    if watched:
        assert sink.scalar("skipped") == [float(step == 5) for step in range(STEPS)]
        kinds = {rows.kind for record in sink.records() for rows in record.summaries}
        assert kinds == set(floatscope.wire.KINDS)
    return [*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16 autocast"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_weights_are_bitwise_equal(half: bool, fused: bool) -> None:
    baseline = train(watched=False, half=half, fused=fused)
    repeated = train(watched=False, half=half, fused=fused)
    assert all(torch.equal(a, b) for a, b in zip(baseline, repeated, strict=True)), "the baseline does not repeat"
    observed = train(watched=True, half=half, fused=fused)
    assert all(torch.equal(a, b) for a, b in zip(baseline, observed, strict=True))
