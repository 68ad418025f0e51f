"""On a GPU: what a CUDA graph replays is observed, outside the graph and without waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Config, Scope
from floatscope._guard import Guard
from floatscope._memory import MemorySink

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none"),
    # Torch warns of gradients that are accumulated on another stream than they were captured on.
    pytest.mark.filterwarnings("default"),
]

EVERYTHING = Config(activations_every=1, histograms_every=1, weights_every=1, overhead_budget=0)
KINDS = ("act", "act_in", "act_grad", "grad", "weight")
STEPS = 5


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    yield
    torch.cuda.set_sync_debug_mode("default")
    Guard.reraise = False


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 16)).cuda()


def data(step: int) -> torch.Tensor:
    return torch.randn(32, 64, generator=torch.Generator("cuda").manual_seed(step), device="cuda")


def captured(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A whole training step in one graph. Capturing runs nothing, warming up does."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
        optimizer.step()
    return graph


def compared(got: MemorySink, expected: MemorySink, first: int, steps: int, kinds: tuple[str, ...] = KINDS) -> None:
    for step in range(steps):
        for kind in kinds:
            for layer in ("0", "2", "3"):
                row, eager = got.row(first + step, kind, layer), expected.row(first + step, kind, layer)
                assert (row is None) == (eager is None), (step, kind, layer)
                if row is None or eager is None:
                    continue
                for name in ("count", "nans", "infs"):
                    assert row[name] == eager[name], (step, kind, layer, name)
                assert row["sumsq"] == pytest.approx(eager["sumsq"], rel=1e-3), (step, kind, layer)
                assert row["absmax"] == pytest.approx(eager["absmax"], rel=1e-3), (step, kind, layer)


def test_each_replay_shows_what_an_eager_step_does() -> None:
    def trained(*, capturing: bool) -> tuple[MemorySink, list[torch.Tensor]]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        sink, x = MemorySink(), data(0)
        with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
            if capturing:
                graph = captured(model, optimizer, x)
            else:
                for _ in range(3):
                    optimizer.zero_grad(set_to_none=True)
                    model(x).square().mean().backward()
                    optimizer.step()
            for step in range(STEPS):
                x.copy_(data(step))
                if capturing:
                    graph.replay()
                else:
                    optimizer.zero_grad(set_to_none=True)
                    model(x).square().mean().backward()
                    optimizer.step()
                scope.step(loss=step)
        return sink, [p.detach().clone() for p in model.parameters()]

    (eager, expected), (replayed, weights) = trained(capturing=False), trained(capturing=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(weights, expected, strict=True))
    assert replayed.scalar("loss")[3:] == eager.scalar("loss")[3:] == [0, 1, 2, 3, 4]
    compared(replayed, eager, 3, STEPS, kinds=("act", "act_in", "act_grad", "grad"))
    assert replayed.scalar("grad_norm") == pytest.approx(eager.scalar("grad_norm"), rel=1e-3)
    assert replayed.scalar("lr")[3:] == pytest.approx([1e-3] * STEPS)


def test_replays_do_not_wait_and_rows_are_handed_on_when_due() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    sink, x = MemorySink(), data(0)
    config = Config(activations_every=10, histograms_every=10, overhead_budget=0)
    with floatscope.watch(model, optimizer, config=config, _sink=sink) as scope:
        graph = captured(model, optimizer, x)
        graph.replay()
        scope.step()
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(100):
            graph.replay()
            scope.step()
        torch.cuda.set_sync_debug_mode("default")
    read = [record.step for record in sink.records() if any(rows.kind == "act" for rows in record.summaries)]
    assert [step for step in read if step >= 10] == list(range(10, 104, 10))
    for step in read[1:]:
        row = sink.row(step, "act", "0")
        assert row is not None
        assert row["count"] == 32 * 128
    assert None not in sink.scalar("grad_norm")


def test_watching_changes_no_bit_of_a_captured_training() -> None:
    def trained(*, watching: bool) -> list[torch.Tensor]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
        scope: Scope | None = None
        if watching:
            scope = floatscope.watch(model, optimizer, config=EVERYTHING, _sink=MemorySink())
        x = data(0)
        graph = captured(model, optimizer, x)
        for step in range(24):
            x.copy_(data(step))
            graph.replay()
            if scope is not None:
                scope.step()
        if scope is not None:
            scope.close()
            graph.replay()
        else:
            graph.replay()
        return [p.detach().clone() for p in model.parameters()]

    first, repeated, watched = trained(watching=False), trained(watching=False), trained(watching=True)
    assert all(map(torch.equal, first, repeated)), "the baseline does not repeat"
    assert all(map(torch.equal, first, watched))


def test_graphed_callables_are_observed() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    sink = MemorySink()
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
        torch.cuda.make_graphed_callables(model, (data(0),))
        scope.step()
        for step in range(STEPS):
            optimizer.zero_grad()
            model(data(step)).square().mean().backward()
            optimizer.step()
            scope.step()
    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)
    expected = MemorySink()
    with floatscope.watch(plain, optimizer, config=EVERYTHING, _sink=expected) as scope:
        scope.step()
        for step in range(STEPS):
            optimizer.zero_grad()
            plain(data(step)).square().mean().backward()
            optimizer.step()
            scope.step()
    compared(sink, expected, 1, STEPS)
    assert sink.scalar("grad_norm")[1:] == pytest.approx(expected.scalar("grad_norm")[1:], rel=1e-3)
