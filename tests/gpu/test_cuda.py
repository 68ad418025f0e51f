"""On a GPU: a training step never waits for the device, and the numbers are those of the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope import Config
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._stats._reference import measure

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")

EVERYTHING = Config(activations_every=1, histograms_every=1, weights_every=1, overhead_budget=0)


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    yield
    Guard.reraise = False


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.zeros(1, device="cuda").sum().item()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()


@pytest.mark.usefixtures("waiting_is_an_error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_measuring_does_not_wait(dtype: torch.dtype) -> None:
    row = measure(torch.zeros(3, 5, device="cuda").to(dtype).t(), histogram=True)
    assert row.statistics.is_cuda
    measure(torch.empty(0, device="cuda", dtype=dtype), histogram=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_a_step_does_not_wait(fused: bool, clip: bool) -> None:
    """The fused optimizer decides about a skip inside its kernel, so that the whole step can be held to this."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    tokens = torch.randint(0, 64, (4, 16), device="cuda")
    sink = MemorySink()
    with floatscope.watch(model, optimizer, scaler=scaler, config=EVERYTHING, _sink=sink) as scope:
        for step in range(4):
            optimizer.zero_grad()
            torch.cuda.set_sync_debug_mode("error")
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(tokens).float().square().mean() * (1e38 if step == 2 else 1.0)
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.1)
            if not fused:
                # torch's own scaler reads found_inf here; everything of ours around it is still checked.
                torch.cuda.set_sync_debug_mode("default")
            scaler.step(optimizer)
            torch.cuda.set_sync_debug_mode("error")
            scaler.update()
            scope.step(loss=loss, lr=1e-3)
            torch.cuda.set_sync_debug_mode("default")
    assert sink.scalar("skipped") == [0.0, 0.0, 1.0, 0.0]
    assert sink.scalar("loss_scale") == [2.0**10] * 3 + [2.0**9]
    norms = sink.scalar("grad_norm")
    assert all(norm is not None and (step == 2) != math.isfinite(norm) for step, norm in enumerate(norms))
    for kind in ("act", "act_in", "act_grad", "grad", "weight"):
        assert sink.row(3, kind, "2") is not None
    assert all(pending.ready() for pending in sink.pending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_numbers_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    x = torch.randn(1000, 37, generator=torch.Generator().manual_seed(1)) * 1e-3
    x[3, :5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    x[5, :3] = torch.tensor([1e-41, 2.0**-149, 3e38])
    for view in (x.to(dtype), x.to(dtype).t(), x.to(dtype)[::2, 1:]):
        cpu, gpu = floatscope.summarize(view), floatscope.summarize(view.cuda())
        for name in ("count", "zeros", "nans", "infs", "absmax", "absmin", "hist_n"):
            assert getattr(cpu, name) == getattr(gpu, name), name
        assert np.array_equal(cpu.hist, gpu.hist)
        assert gpu.sumsq == pytest.approx(cpu.sumsq, rel=1e-12)
        assert gpu.sum == pytest.approx(cpu.sum, rel=1e-9, abs=1e-9 * math.sqrt(cpu.sumsq))


def test_weights_are_bitwise_equal() -> None:
    def train(*, watched: bool) -> list[torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.randint(0, 64, (4, 16), device="cuda", generator=torch.Generator("cuda").manual_seed(5))
        scope = floatscope.watch(model, optimizer, config=EVERYTHING, _sink=MemorySink()) if watched else None
        for _ in range(8):
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
            if scope is not None:
                scope.step()
        if scope is not None:
            scope.close()
        return [p.detach().clone() for p in model.parameters()]

    baseline, repeated, observed = train(watched=False), train(watched=False), train(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(baseline, repeated, strict=True)), "the baseline does not repeat"
    assert all(torch.equal(a, b) for a, b in zip(baseline, observed, strict=True))


def test_deterministic_mode_is_no_obstacle() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    torch.use_deterministic_algorithms(mode=True)
    try:
        row = measure(x.cuda(), histogram=True)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert row.hist is not None
    assert np.array_equal(row.hist.cpu().numpy(), floatscope.summarize(x).hist)


def test_temporary_memory_is_bounded() -> None:
    x = torch.randn(1 << 28, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    measure(x.view(1 << 14, 1 << 14).t(), histogram=True)
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
