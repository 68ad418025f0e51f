"""On a GPU: casts whose scale follows from amax, and casts in blocks, are recorded without waiting for the device."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Config, Operand
from floatscope._blocks import block_figures
from floatscope._guard import Guard
from floatscope._memory import MemorySink

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none"),
    # torch says so the first time that the mode is set.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

EVERYTHING = Config(activations_every=1, histograms_every=1, weights_every=1, overhead_budget=0)


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    yield
    Guard.reraise = False


@pytest.fixture
def waiting() -> Iterator[Callable[[str], None]]:
    """Sets what happens when something waits for the device: "error" or "default"."""
    torch.zeros(1, device="cuda").sum().item()
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


class Dynamic(nn.Linear):
    def floatscope_operands(self) -> dict[str, Operand]:
        cast = Operand(format="e4m3fn", scale=None, scaling="dynamic")
        return {"act_in": cast, "weight": cast, "act_grad": cast}


class MXFP8Linear(nn.Linear):
    scale_calculation_mode = SimpleNamespace(name="RCEIL")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    name = "torchao.prototype.moe_training.mxfp8_linear"
    double = types.ModuleType(name)
    vars(double)["MXFP8Linear"] = MXFP8Linear
    monkeypatch.setitem(sys.modules, name, double)
    torch.manual_seed(0)
    return nn.Sequential(Dynamic(64, 64), MXFP8Linear(64, 32)).cuda()


def test_casts_are_recorded_without_waiting(model: nn.Module, waiting: Callable[[str], None]) -> None:
    sink = MemorySink()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scope = floatscope.watch(model, optimizer, _sink=sink, config=EVERYTHING)
    x = torch.randn(16, 64, device="cuda")
    for step in range(3):
        if step == 2:
            torch.cuda.synchronize()
            waiting("error")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scope.step(loss=loss)
    waiting("default")
    scope.close()
    row = sink.row(2, "act_in", "0")
    assert row is not None
    assert row["absmax"] == float(x.abs().amax())
    assert row["scale"] == pytest.approx(448 / row["absmax"], rel=1e-6)
    record = next(record for record in sink.records() if record.step == 2)
    figures = {name: value for name, value in record.scalars.items() if name.startswith("blocks/act_in/1/")}
    assert sorted(name.rpartition("/")[2] for name in figures) == ["exponent_max", "exponent_min", "worst_flushed"]


@pytest.mark.parametrize("rounds_up", [False, True])
def test_figures_of_blocks_are_those_of_the_cpu(rounds_up: bool) -> None:
    values = torch.randn(300, 64) * torch.exp(6 * torch.randn(300, 64))
    here = block_figures(values, "e4m3fn", rounds_up=rounds_up)
    there = block_figures(values.cuda(), "e4m3fn", rounds_up=rounds_up)
    assert here is not None
    assert there is not None
    assert there.tolist() == here.tolist()
