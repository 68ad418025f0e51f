"""On a GPU: rows, batches and the ring, with streams, devices and optimizers that do not make it easy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Config, Operand
from floatscope._backend import Backend
from floatscope._device_rows import Route
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._recorder import Recorder
from floatscope._ring import Ring
from floatscope._stats import Reference
from floatscope._streams import Streams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")

EVERYTHING = Config(activations_every=1, histograms_every=1, weights_every=1, overhead_budget=0)
X = torch.linspace(-3.0, 5.0, 64).reshape(8, 8)


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    yield
    Guard.reraise = False
    torch.cuda.set_sync_debug_mode("default")


class Casting(nn.Linear):
    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {"act_in": Operand(format="e4m3fn", scale=448.0 / self.weight.detach().abs().amax(), scaling="dynamic")}


class Logits(nn.Module):
    largest = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = x.detach().abs().amax()
        return x

    def floatscope_extremes(self) -> Mapping[str, torch.Tensor]:
        return {"attention_logits": self.largest}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), Casting(8, 8), nn.ReLU(inplace=True), Logits(), nn.Linear(8, 4)
    )


def close(one: MemorySink, other: MemorySink, step: int) -> None:
    """Whether two records say the same, but for the rounding of two devices' matrix products."""
    kinds = []
    for sink in (one, other):
        [record] = [record for record in sink.records() if record.step == step]
        kinds.append({rows.kind: rows for rows in record.summaries})
    assert kinds[0].keys() == kinds[1].keys()
    for kind, rows in kinds[0].items():
        assert rows.layers.tolist() == kinds[1][kind].layers.tolist(), kind
        for name in ("count", "nans", "infs"):
            assert rows.fields[name].tolist() == kinds[1][kind].fields[name].tolist(), (kind, name)
        # Adam divides by what is near zero here and there: such updates are noise.
        for name in ("absmax", "sumsq") if kind != "update" else ():
            assert rows.fields[name].tolist() == pytest.approx(kinds[1][kind].fields[name].tolist(), rel=1e-3), kind


def train(device: str, *, steps: int = 3, strict: bool = False) -> MemorySink:
    model, sink = make_model().to(device), MemorySink()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = X.to(device)
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
        for _ in range(steps):
            if strict:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scope.log(share=loss / 2)
            scope.step(loss=loss)
            torch.cuda.set_sync_debug_mode("default")
    return sink


def test_a_hundred_steps_wait_for_nothing_and_say_what_the_host_says() -> None:
    host, card = train("cpu", steps=100), train("cuda", steps=100, strict=True)
    assert [record.step for record in card.records()] == list(range(100))
    # The first step has no output of layer 2: the ReLU after it wrote into it before it was read.
    for step in (1, 2):
        close(host, card, step)
    for name in ("loss", "share", "grad_norm", "clip_coef", "attention_logits_max/4"):
        values = card.scalar(name)
        assert None not in values
        assert values[:5] == pytest.approx(host.scalar(name)[:5], rel=1e-3), name
    assert not any(event.kind == "rows_lost" for record in card.records() for event in record.events)


def test_several_streams_write_into_the_rows_of_one_step() -> None:
    model, sink = make_model().cuda(), MemorySink()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    x = X.cuda()
    with floatscope.watch(model, config=EVERYTHING, _sink=sink) as scope:
        for _ in range(20):
            torch.cuda.set_sync_debug_mode("error")
            for number in range(4):
                if number % 2:
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        # Enough work in front of it that the rows would be sent or cleared too early.
                        busy = torch.ones(512, 512, device="cuda")
                        for _ in range(20):
                            busy = busy @ busy / 512
                        model(x + busy[0, 0] - busy[0, 0])
                else:
                    model(x)
            scope.step()
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.current_stream().wait_stream(side)
    for step in range(1, 20):
        for kind, layer in (("act", "0"), ("act", "5"), ("act_in", "2")):
            row = sink.row(step, kind, layer)
            assert row is not None
            assert row["count"] == 4 * 8 * (4 if layer == "5" else 8), (step, kind)
            assert row["nans"] == 0


def test_an_optimizer_inside_the_backward_pass() -> None:
    model, sink = make_model().cuda(), MemorySink()
    optimizers = {id(p): torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[id(parameter)].step()
        optimizers[id(parameter)].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    with floatscope.watch(model, config=EVERYTHING, _sink=sink) as scope:
        for _ in range(3):
            model(X.cuda()).square().mean().backward()
            scope.step()
    for step in range(3):
        row = sink.row(step, "grad", "0")
        assert row is not None
        assert row["count"] == 72
    norms = sink.scalar("grad_norm")
    assert all(norm is not None and 0 < norm < math.inf for norm in norms)


def test_a_model_that_moves_between_devices() -> None:
    model, sink = make_model(), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
        for device in ("cpu", "cpu", "cuda", "cuda", "cuda", "cpu", "cpu", "cuda"):
            model.to(device)
            optimizer.zero_grad()
            model(X.to(device)).square().mean().backward()
            optimizer.step()
            scope.step()
    norms = sink.scalar("grad_norm")
    assert norms == pytest.approx([norms[0]] * 8, rel=1e-3)
    for step in range(8):
        row = sink.row(step, "grad", "5")
        assert row is not None
        assert row["count"] == 36


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_model_spread_over_two_devices() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, device="cuda:0")
            self.second = nn.Linear(8, 4, device="cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x).to("cuda:1", non_blocking=True))
            return out

    model, sink = Spread(), MemorySink()
    optimizer = torch.optim.AdamW(model.parameters())
    x = X.to("cuda:0")
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
    for step in range(5):
        for layer, count in (("first", 72), ("second", 36)):
            row = sink.row(step, "grad", layer)
            assert row is not None
            assert row["count"] == count
            assert sink.row(step, "act", layer) is not None
    assert None not in sink.scalar("loss")


def test_rows_of_captured_code_are_collected() -> None:
    model, sink = make_model().cuda(), MemorySink()
    words = torch.zeros(10, dtype=torch.int64, device="cuda")
    hist = torch.zeros(512, dtype=torch.int32, device="cuda")
    tensor = torch.tensor([1.0, -2.0, 0.0], device="cuda")

    def collect(recorder: Recorder) -> None:
        recorder.adopt("act", 0, words, hist, format_="fp32")

    with floatscope.watch(model, config=EVERYTHING, activations_every=0, _sink=sink) as scope:
        scope._recorder.collectors.append(collect)
        for _ in range(3):
            torch.cuda.set_sync_debug_mode("error")
            Reference().measure(tensor, words, hist)
            scope.step()
            torch.cuda.set_sync_debug_mode("default")
    for step in range(3):
        row = sink.row(step, "act", "0")
        assert row is not None
        assert (row["count"], row["absmax"], row["sum"]) == (3, 2.0, -1.0)


def test_a_full_ring_never_makes_a_step_wait() -> None:
    def small(device: torch.device) -> Route | None:
        if device.type != "cuda":
            return None
        return Route(lambda _: Ring(64 << 10, reserve=4 << 10), Streams(device))

    model, sink = make_model().cuda(), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = X.cuda()
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink, _backend=Backend(route=small)) as scope:
        for _ in range(12):
            torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            scope.step()
            torch.cuda.set_sync_debug_mode("default")
    first, *rest = (pending.resolve() for pending in sink.pending[:6])
    assert first.summaries
    assert any(event.kind == "rows_lost" for record in rest for event in record.events)


@pytest.mark.skipif(not hasattr(torch.cuda, "host_memory_stats"), reason="this torch does not count it")
def test_pinned_memory_is_allocated_when_watching_begins_and_then_no_more() -> None:
    model = make_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = X.cuda()
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=MemorySink()) as scope:
        before = torch.cuda.host_memory_stats()["num_host_alloc"]
        allocated = 0
        for step in range(30):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            scope.step()
            if step == 9:
                allocated = torch.cuda.memory_allocated()
        assert torch.cuda.host_memory_stats()["num_host_alloc"] == before
        assert torch.cuda.memory_allocated() == allocated
