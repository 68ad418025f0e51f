"""Rows for what is captured in CUDA graphs: what a capture would launch runs at once on the CPU."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from floatscope import Config, Operand, Scope, _captured
from floatscope._backend import Backend
from floatscope._captured import CapturedPart, CapturedRows
from floatscope._memory import MemorySink
from floatscope._placement import WHOLE
from floatscope._stats import variant_for

Attach = Callable[..., tuple[Scope, MemorySink]]


def test_what_has_no_row_says_why() -> None:
    rows = CapturedRows(variant_for)
    rows.reserve(torch.device("cpu"), 1)
    part = CapturedPart("act", 0, "fp32", loss_scaled=False, placement=WHOLE)
    reasons = [rows.measure(torch.ones(1), part._replace(layer=layer)) for layer in (0, 0, 1, 2)]
    assert reasons[:3] == ["", "", ""]
    assert "more tensors than there are rows" in reasons[3]
    assert "came to this device" in rows.measure(torch.ones(1, device="meta"), part)


class Capture:
    """Says that a graph is being captured. On the host each launch runs at once: as a capture and one replay."""

    def __init__(self) -> None:
        self.under_way = False
        self.backend = Backend(capturing=lambda: self.under_way, captures=lambda device: True)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        self.under_way = True
        step(model, optimizer, x)
        self.under_way = False


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def watched(
    attach: Attach, capture: Capture, **options: int
) -> tuple[nn.Module, torch.optim.Optimizer, Scope, MemorySink]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = dataclasses.replace(Config(activations_every=2, histograms_every=2, weights_every=3), **options)  # type: ignore[arg-type]
    return model, optimizer, *attach(model, optimizer, config=config, _backend=capture.backend)


def test_a_captured_step_shows_what_an_eager_one_does(attach: Attach) -> None:
    capture = Capture()
    batches = torch.randn(4, 5, 4, generator=torch.Generator().manual_seed(1))
    model, optimizer, scope, captured = watched(attach, capture)
    for batch in batches:
        capture.step(model, optimizer, batch)
        scope.step(loss=1.0)
    model, optimizer, scope, eager = watched(attach, capture)
    for batch in batches:
        step(model, optimizer, batch)
        scope.step(loss=1.0)
    assert captured.scalar("grad_norm") == pytest.approx(eager.scalar("grad_norm"))
    assert captured.scalar("lr") == eager.scalar("lr") == [0.1] * 4
    for number in range(4):
        for kind in ("act", "act_in", "act_grad", "grad", "weight"):
            for layer in ("0", "1", "2"):
                expected = eager.row(number, kind, layer)
                got = captured.row(number, kind, layer)
                assert (got is None) == (expected is None), (number, kind, layer)
                assert got is None or kind == "weight" or got == pytest.approx(expected, nan_ok=True)
    assert [captured.row(n, "act", "0") is None for n in range(4)] == [False, True, False, True]
    assert {o.kind: o.format for o in captured.layers()["0"].operands}["act_grad"] == "fp32"


def test_several_replays_of_one_step_merge(attach: Attach) -> None:
    capture = Capture()
    model, optimizer, scope, sink = watched(attach, capture)
    for _ in range(3):
        capture.step(model, optimizer, torch.ones(5, 4))
    scope.step()
    row = sink.row(0, "act", "0")
    assert row is not None
    assert row["count"] == 3 * 5 * 8


def test_warming_up_is_a_step_of_its_own(attach: Attach) -> None:
    capture = Capture()
    model, optimizer, scope, sink = watched(attach, capture, activations_every=1)
    step(model, optimizer, torch.ones(5, 4))
    capture.step(model, optimizer, torch.ones(7, 4))
    scope.step(loss=2.0)
    capture.step(model, optimizer, torch.ones(7, 4))
    scope.step(loss=3.0)
    counts = [row["count"] for n in range(3) if (row := sink.row(n, "act", "2")) is not None]
    assert counts == [5 * 2, 7 * 2, 7 * 2]
    assert sink.scalar("loss") == [None, 2.0, 3.0]


def test_nothing_is_logged_and_no_step_ends_during_a_capture(attach: Attach) -> None:
    capture = Capture()
    _, _, scope, sink = watched(attach, capture)
    capture.under_way = True
    scope.log(loss=torch.ones(()))
    scope.step(loss=torch.ones(()))
    capture.under_way = False
    scope.step()
    assert sink.scalar("loss") == [None]


def test_what_is_not_to_be_read_is_not_captured(attach: Attach) -> None:
    capture = Capture()
    model, optimizer, scope, sink = watched(attach, capture, gradients_every=0, activations_every=0)
    capture.step(model, optimizer, torch.ones(5, 4))
    scope.step()
    assert {rows.kind for record in sink.records() for rows in record.summaries} == {"weight"}


class CastingLinear(nn.Linear):
    scale = torch.ones(())

    def floatscope_operands(self) -> dict[str, Operand]:
        return {
            "act_in": Operand(format="e4m3fn", scale=self.scale, scaling="delayed"),
            "act_grad": Operand(format="e5m2", scale=4.0, scaling="static"),
        }


def test_scales_are_those_of_the_latest_replay(attach: Attach) -> None:
    capture = Capture()
    model = CastingLinear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=1, _backend=capture.backend)
    for scale in (2.0, 8.0):
        CastingLinear.scale.fill_(scale)
        capture.step(model, optimizer, torch.ones(5, 4))
        CastingLinear.scale.fill_(0.5)
        scope.step()
    for number, scale in enumerate((2.0, 8.0)):
        given, gradient = sink.row(number, "act_in", "(model)"), sink.row(number, "act_grad", "(model)")
        assert given is not None
        assert gradient is not None
        assert (given["scale"], gradient["scale"]) == (scale, 4.0)


def test_rows_outlive_whoever_watched(attach: Attach) -> None:
    """A graph that is replayed later must not write to memory that is somebody else's by then."""
    capture = Capture()
    model, optimizer, scope, _ = watched(attach, capture)
    capture.step(model, optimizer, torch.ones(5, 4))
    written = [weakref.ref(rows.words) for rows in _captured._written_by_graphs[-1:]]
    scope.close()
    del scope, model, optimizer, capture
    gc.collect()
    assert [words() is not None for words in written] == [True]
