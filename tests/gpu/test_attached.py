"""A loop that knows nothing of us, attached to on a card: no step waits, results are the same, skips are named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.agent.attach.conftest import waiting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")


@pytest.fixture(autouse=True)
def waits_again() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def train(*, fused: bool, strict: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    batches = torch.randn(8, 2, 32, 64, device="cuda")
    factors = torch.ones(8, device="cuda")
    factors[2] = factors[5] = 1e37
    torch.cuda.synchronize()
    for step in range(8):
        # A fused optimizer deals with overflows on the card; the scaler itself waits for it before others step.
        if strict and fused and step == 3:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        for micro in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(batches[step, micro])
            loss = out.float().square().mean() * factors[step]
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.set_sync_debug_mode("default")
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_an_attached_loop(fused: bool) -> None:
    first, again = train(fused=fused, strict=True), train(fused=fused, strict=True)
    assert all(torch.equal(first[name], again[name]) for name in first), "the training repeats itself"
    with waiting() as found:
        watched = train(fused=fused, strict=True)
        sink = found.sink
        records = sink.records()
    assert all(torch.equal(first[name], watched[name]) for name in first)
    assert [record.step for record in records] == list(range(8))
    assert [record.scalars["skipped"] for record in records] == [float(step in (2, 5)) for step in range(8)]
    assert all(loss is not None and loss >= 0 for loss in sink.scalar("loss"))
    row = sink.row(2, "grad", "4")
    assert row is not None
    assert row["infs"] + row["nans"] > 0


def test_phases_are_those_of_the_card() -> None:
    """The backward pass is long there and launched at once: the host's clock would tell next to nothing of it."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(4096, 2048, device="cuda")
    with waiting() as found:
        for step in range(6):
            if step == 3:
                torch.cuda.synchronize()
                begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begun.record()
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        ended.record()
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        sink = found.sink
        phases = {name: sink.scalar(f"phase/{name}_s") for name in ("data", "forward", "backward", "optimizer")}
    spent = {name: [value for value in values[3:] if value is not None] for name, values in phases.items()}
    assert all(len(values) == 3 for values in spent.values())
    assert all(value > 0 for name in ("forward", "backward", "optimizer") for value in spent[name])
    # They add up to the time of the card; what our own reading takes at a step's end lies between two of them.
    assert sum(map(sum, spent.values())) == pytest.approx(1e-3 * begun.elapsed_time(ended), rel=0.25)
    assert sum(spent["backward"]) > sum(spent["forward"]) / 2
