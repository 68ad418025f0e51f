"""How far a step moves the parameters, and what of it their format swallows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._backend import Backend
from floatscope._memory import MemorySink
from floatscope._updates import SAMPLE, sample_of
from tests.agent.rows_on_the_host import like_a_card

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.mark.parametrize("shape", [(1,), (4096,), (4097,), (64, 1000), (8192, 3), (7, 5, 3, 2), ()])
def test_a_sample_is_bounded_and_the_same_for_the_same_strides(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    sample = sample_of(tensor)
    assert sample is not None
    assert sample.data_ptr() == tensor.data_ptr(), "a view"
    assert min(SAMPLE // 3, tensor.numel()) <= sample.numel() <= SAMPLE
    assert len(set(sample.tolist())) == sample.numel()
    turned = sample_of(tensor.reshape(shape).transpose(0, -1)) if shape else sample
    assert turned is not None
    assert torch.equal(turned, sample)


def test_a_sample_reaches_every_column() -> None:
    sample = sample_of(torch.arange(1024 * 1024).reshape(1024, 1024))
    assert sample is not None
    assert len(set((sample % 1024).tolist())) == 1024


def test_no_sample_where_memory_has_gaps() -> None:
    assert sample_of(torch.zeros(10, 10)[:, ::2]) is None


@pytest.fixture(params=[False, True], ids=["on the host", "in batches"])
def chosen(request: pytest.FixtureRequest) -> Backend | None:
    return like_a_card() if request.param else None


def test_updates_are_what_the_optimizer_did(attach: Attach, chosen: Backend | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scope, sink = attach(model, optimizer, updates_every=2, histograms_every=1, _backend=chosen)
    want = []
    for number in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 6), 1.0 + number)).square().sum().backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        scope.step()
        moved = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
        want.append([floatscope.summarize(moved[n : n + 2]) for n in (0, 2, 4)])
    for number in range(4):
        for name, summary in zip(("0", "1", "2"), want[number], strict=True):
            row = sink.row(number, "update", name)
            assert (row is not None) == (number % 2 == 0)
            if row is not None:
                assert (row["count"], row["zeros"], row["absmax"]) == (summary.count, summary.zeros, summary.absmax)
                assert row["sumsq"] == pytest.approx(summary.sumsq, rel=1e-9)
    assert sink.scalar("swallowed/0") == [0.0, None, 0.0, None]
    assert "update" not in {operand.kind for operand in sink.layers()["0"].operands}, "it is not stored anywhere"


def test_what_a_format_swallows_is_a_share_of_what_had_a_gradient(attach: Attach, chosen: Backend | None) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False)).bfloat16()
    weight = next(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    scope, sink = attach(model, optimizer, updates_every=1, _backend=chosen)
    # Next to 1 bf16 has steps of 2^-7: half of one is needed to get anywhere.
    with torch.no_grad():
        weight.fill_(1.0)
    weight.grad = torch.tensor(
        [[0.0] * 4, [1.0] * 4, [1.0, 1.0, 8.0, 8.0], [-0.0, 0.0, 8.0, 8.0]], dtype=torch.bfloat16
    )
    optimizer.step()
    scope.step()
    # Six gradients of 1 are lost, four of 8 are not, six were zero.
    assert sink.scalar("swallowed/0") == [0.6]
    row = sink.row(0, "update", "0")
    assert row is not None
    assert (row["count"], row["zeros"], row["absmax"]) == (16, 12, 2.0**-7)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_has_swallowed_nothing(attach: Attach, chosen: Backend | None, fused: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scope, sink = attach(model, optimizer, scaler=scaler, updates_every=1, _backend=chosen)
    for factor in (1.0, 1e39, 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step()
    assert sink.scalar("skipped") == [0.0, 1.0, 0.0]
    assert sink.scalar("swallowed/0") == [0.0, None, 0.0]


def test_no_rate_no_judgement(attach: Attach) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer, updates_every=1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    scope.step()
    row = sink.row(0, "update", "(model)")
    assert row is not None
    assert (row["count"], row["zeros"]) == (20, 20)
    assert not any(name.startswith("swallowed/") for name in sink.records()[0].scalars)


def test_a_closure_is_compared_from_beginning_to_end(attach: Attach) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    scope, sink = attach(model, optimizer, updates_every=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 4)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step(closure)  # type: ignore[no-untyped-call]
    scope.step()
    want = floatscope.summarize([p.detach() - b for p, b in zip(model.parameters(), before, strict=True)])
    row = sink.row(0, "update", "(model)")
    assert row is not None
    assert row["absmax"] == want.absmax


def test_sparse_gradients_and_large_parameters(attach: Attach, chosen: Backend | None) -> None:
    model = nn.Sequential(nn.Embedding(3000, 4, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scope, sink = attach(model, optimizer, updates_every=1, _backend=chosen)
    model(torch.arange(3000)).sum().backward()
    optimizer.step()
    scope.step()
    row = sink.row(0, "update", "0")
    assert row is not None
    assert row["count"] == 4000
    assert row["zeros"] == 0
    assert not any(name.startswith("swallowed/") for name in sink.records()[0].scalars), "it has no such gradient"


def test_the_interval(attach: Attach) -> None:
    seen = []
    for every in (2, 0):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope, sink = attach(model, optimizer, updates_every=every)
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scope.step()
        seen.append([n for n in range(5) if sink.row(n, "update", "(model)")])
    assert seen == [[0, 2, 4], []]
    with pytest.raises(ValueError, match="updates_every: expected an integer of at least 0"):
        floatscope.Config(updates_every=-1)
