"""Gradients are read once a step, before clipping and before the optimizer, whichever way the step is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink
from floatscope._summary import Summary

Attach = Callable[..., tuple[Scope, MemorySink]]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "for-loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    # Its foreach implementation changes the gradients in place.
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.5, foreach=True),
}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def backward(model: nn.Module, seed: int = 1, factor: float = 1.0) -> None:
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    loss: torch.Tensor = model(inputs).square().mean() * factor
    loss.backward()  # type: ignore[no-untyped-call]


def by_hand(model: nn.Module, *, scale: float = 1.0) -> dict[str, Summary]:
    """Summaries of the gradients as they are now, by layer."""
    return {
        name: floatscope.summarize([p.grad for p in module.parameters() if p.grad is not None], scale=scale)
        for name, module in model.named_children()
        if any(True for _ in module.parameters())
    }


def norm_by_hand(model: nn.Module, *, scale: float = 1.0) -> float:
    return math.sqrt(sum(s.sumsq for s in by_hand(model, scale=scale).values()))


def assert_read(sink: MemorySink, step: int, want: dict[str, Summary]) -> None:
    for name, summary in want.items():
        row = sink.row(step, "grad", name)
        assert row is not None, name
        for field in ("count", "zeros", "nans", "infs"):
            assert row[field] == getattr(summary, field), (name, field)
        assert row["absmax"] == np.float32(summary.absmax), name
        assert row["absmin"] == np.float32(summary.absmin), name
        assert row["sumsq"] == pytest.approx(summary.sumsq, rel=1e-12), name
        assert row["sum"] == pytest.approx(summary.sum, rel=1e-9, abs=1e-12), name
        hist = sink.hist(step, "grad", name)
        assert hist is None or hist.tolist() == summary.hist.tolist(), name


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_plain_step(attach: Attach, make: MakeOptimizer, clip: bool) -> None:
    model = make_model()
    optimizer = make(model.parameters())
    scope, sink = attach(model, optimizer, histograms_every=1)
    want, norms = [], []
    for step in range(3):
        optimizer.zero_grad()
        backward(model, seed=step)
        want.append(by_hand(model))
        norms.append(norm_by_hand(model))
        if clip:
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        scope.step()
    for step in range(3):
        assert_read(sink, step, want[step])
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-9)
    coefficients = [0.01 / (norm + 1e-6) for norm in norms] if clip else [None] * 3
    assert sink.scalar("clip_coef") == (pytest.approx(coefficients, rel=1e-5) if clip else coefficients)
    assert sink.scalar("grad_norm/framework") == (pytest.approx(norms, rel=1e-5) if clip else [None] * 3)
    assert sink.scalar("clip_norm") == [0.01 if clip else None] * 3
    assert sink.scalar("grad_norm/clipped") == (pytest.approx([0.01] * 3, rel=1e-3) if clip else [None] * 3)
    assert sink.scalar("lr") == [0.01] * 3
    assert sink.scalar("skipped") == [None] * 3


def scaled(model: nn.Module, scaler: torch.amp.GradScaler, seed: int, factor: float = 1.0) -> None:
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    scaler.scale(model(inputs).square().mean() * factor).backward()


@pytest.mark.parametrize("unscale", ["not", "unscaled", "clipped"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_scaled_step_with_an_overflow(attach: Attach, make: MakeOptimizer, unscale: str) -> None:
    model = make_model()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    scope, sink = attach(model, optimizer, scaler=scaler, histograms_every=1)
    want, scales = [], []
    for step in range(4):
        optimizer.zero_grad()
        scaled(model, scaler, seed=step, factor=1e38 if step == 2 else 1.0)
        scales.append(scaler.get_scale())
        want.append(by_hand(model, scale=scales[-1]))
        before = [p.detach().clone() for p in model.parameters()]
        if unscale != "not":
            scaler.unscale_(optimizer)
        if unscale == "clipped":
            clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        scope.step()
        moved = any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        assert moved == (step != 2)
    for step in range(4):
        assert_read(sink, step, want[step])
    assert any(summary.nans + summary.infs for summary in want[2].values())
    framework = sink.scalar("grad_norm/framework")
    if unscale == "clipped":
        assert framework == pytest.approx(sink.scalar("grad_norm"), rel=1e-5, nan_ok=True)
    else:
        assert framework == [None] * 4
    assert sink.scalar("loss_scale") == scales == [2.0**14, 2.0**14, 2.0**14, 2.0**13]
    assert sink.scalar("skipped") == [0.0, 0.0, 1.0, 0.0]
    events = [e for record in sink.records() for e in record.events if e.kind != "coverage"]
    assert [(e.step, e.kind, e.detail) for e in events] == [
        (2, "skipped", {"optimizer": 0, "scale": 2.0**14}),
        (3, "scale_changed", {"from": 2.0**14, "to": 2.0**13}),
    ]
    norms = sink.scalar("grad_norm")
    assert norms[2] is not None
    assert not math.isfinite(norms[2])
    assert norms[3] == pytest.approx(math.sqrt(sum(s.sumsq for s in want[3].values())), rel=1e-9)
    assert {o.kind: o.scaling for o in sink.layers()["0"].operands} == {
        "act": "none",
        "act_in": "none",
        "act_grad": "loss",
        "grad": "loss",
        "weight": "none",
    }


def test_underflow_is_judged_as_scaled_and_stored_as_unscaled(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    scaler.scale(torch.zeros(()))
    weight = next(model.parameters())
    # In the two lowest octaves of fp16: 1, 2 and 3 times 2^-24. Beyond them: 4 times, and 2.
    weight.grad = (
        (torch.tensor([1, 2, 3, 4, 2.0**25, 0], dtype=torch.float64) * 2.0**-24).repeat(3)[:16].reshape(4, 4).half()
    )
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)
    scope.step()
    row = sink.row(0, "grad", "0")
    assert row is not None
    assert row["scale"] == 1024.0
    assert row["absmax"] == 2.0 / 1024
    assert row["absmin"] == 2.0**-34
    hist = sink.hist(0, "grad", "0")
    assert hist is not None
    assert hist.sum() == row["count"] - row["zeros"]
    assert row["under"] == 0.0
    assert row["floor"] == np.float32(9 / 14)
    assert row["over_high"] == 0.0


def test_accumulation_reads_once_and_everything(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    for seed in range(3):
        backward(model, seed)
    want = by_hand(model)
    optimizer.step()
    scope.step()
    assert_read(sink, 0, want)


def test_two_optimizers_one_of_which_skips(attach: Attach) -> None:
    model = make_model()
    first = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
    second = torch.optim.AdamW([*model[3].parameters(), *model[4].parameters()], lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scope, sink = attach(model, [first, second], scaler=scaler)
    for step in range(2):
        first.zero_grad()
        second.zero_grad()
        scaled(model, scaler, step)
        if step == 1:
            bad = next(iter(model[4].parameters()))
            assert bad.grad is not None
            bad.grad[0, 0] = math.inf
        want = by_hand(model, scale=scaler.get_scale())
        for optimizer in (first, second):
            scaler.step(optimizer)
        scaler.update()
        scope.step()
        assert_read(sink, step, want)
    assert [e.detail for r in sink.records() for e in r.events if e.kind == "skipped"] == [
        {"optimizer": 1, "scale": 4.0}
    ]
    assert sink.scalar("skipped") == [0.0, 1.0]
    assert sink.scalar("lr") == [0.1, 0.1]
    assert sink.scalar("lr/1") == [0.2, 0.2]


def test_scaler_that_is_never_updated_still_reports_its_skip(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    scaled(model, scaler, 0, factor=1e38)
    scaler.step(optimizer)
    scope.step()
    assert sink.scalar("skipped") == [1.0]


def test_disabled_scaler(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scope, sink = attach(model, optimizer, scaler=scaler)
    backward(model)
    want = by_hand(model)
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1e-3)
    scaler.step(optimizer)
    scaler.update()
    scope.step()
    assert_read(sink, 0, want)
    assert sink.scalar("loss_scale") == sink.scalar("skipped") == [None]


def test_closure(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    scope, sink = attach(model, optimizer, histograms_every=1)
    evaluations: list[dict[str, Summary]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 6)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        evaluations.append(by_hand(model))
        return loss

    returned = optimizer.step(closure)  # type: ignore[no-untyped-call]
    scope.step(returned)
    assert len(evaluations) > 1
    # LBFGS keeps its gradients as they are: all evaluations are in the summary, the last one is the norm.
    assert_read(sink, 0, {name: Summary.merged(e[name] for e in evaluations) for name in evaluations[0]})
    assert sink.scalar("grad_norm") == pytest.approx([math.sqrt(sum(s.sumsq for s in evaluations[-1].values()))])
    assert sink.scalar("loss") == [returned.item()]


def test_keyword_closure(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)

    def closure() -> float:
        optimizer.zero_grad()
        backward(model)
        return 7.0

    assert optimizer.step(closure=closure) == 7.0
    scope.step()
    assert_read(sink, 0, by_hand(model))


def test_without_an_optimizer_all_of_the_models_are_followed(attach: Attach) -> None:
    model, stranger = make_model(), make_model()
    scope, sink = attach(model)
    other = torch.optim.SGD(stranger.parameters(), lr=9.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(stranger)
    other.step()
    backward(model)
    want = by_hand(model)
    clip_grad_norm_((p for p in model.parameters()), 1e-3)
    optimizer.step()
    scope.step()
    assert_read(sink, 0, want)
    assert sink.scalar("lr") == [0.1]


def test_clipping_in_parts_and_by_the_public_name(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    backward(model)
    want = by_hand(model)
    clip_grad_norm_(model[0].parameters(), 1e-3)
    rest = [p for part in list(model)[1:] for p in part.parameters()]
    total = torch.nn.utils.get_total_norm([p.grad for p in rest if p.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(iter(rest), 1e3, total)
    clip_grad_norm_(make_model().parameters(), 1e-9)
    optimizer.step()
    scope.step()
    assert_read(sink, 0, want)
    coefficient = sink.scalar("clip_coef")[0]
    assert coefficient == pytest.approx(1e-3 / (want["0"].norm + 1e-6), rel=1e-5)
    for name in ("grad_norm/framework", "grad_norm/clipped", "clip_norm"):
        assert sink.scalar(name) == [None], "there is none of all"


@pytest.mark.parametrize("limit", [1e3, math.inf])
def test_a_limit_that_is_not_reached_leaves_the_norm_as_it_is(attach: Attach, limit: float) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    backward(model)
    clip_grad_norm_(model.parameters(), limit)
    after = norm_by_hand(model)
    optimizer.step()
    scope.step()
    # Who clips at infinity wants to know the norm, and has no limit.
    limited = limit < math.inf
    assert sink.scalar("clip_norm") == [limit if limited else None]
    assert sink.scalar("grad_norm/clipped") == [pytest.approx(after, rel=1e-5) if limited else None]


def test_the_norm_of_clipping_scaled_gradients(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    scope, sink = attach(model, optimizer, scaler=scaler)
    scaled(model, scaler, seed=0)
    clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(optimizer)
    scaler.update()
    scope.step()
    assert sink.scalar("grad_norm/framework") == pytest.approx(sink.scalar("grad_norm"), rel=1e-5)
    assert sink.scalar("clip_norm") == [1e9 / 2.0**14], "in units of the gradients without the scale"


def test_tied_frozen_and_unused_parameters(attach: Attach) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
            self.unused = nn.Linear(2, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.frozen(self.embed(tokens)))
            return logits

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    scope.step()
    row = sink.row(0, "grad", "embed")
    assert row is not None
    assert row["count"] == 20
    assert sink.row(0, "grad", "head") is None
    assert sink.row(0, "act_in", "head") is not None
    assert scope.coverage == {
        "trainable": 2,
        "observed": 1,
        "reasons": {
            "frozen": ["frozen"],
            "no gradient was read": ["unused"],
            "outputs not observed: its forward was never called": ["unused"],
        },
    }


def test_sparse_gradients(attach: Attach) -> None:
    model = nn.Sequential(nn.Embedding(100, 4, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters())
    scope, sink = attach(model, optimizer)
    model(torch.tensor([3, 4])).sum().backward()
    optimizer.step()  # type: ignore[no-untyped-call]
    scope.step()
    row = sink.row(0, "grad", "0")
    assert row is not None
    assert (row["count"], row["absmax"]) == (8, 1.0)


def test_intervals(attach: Attach) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"gradients_every": 2, "activations_every": 0, "weights_every": 3, "histograms_every": 4}
    scope, sink = attach(model, optimizer, **options)
    for _ in range(5):
        backward(model)
        optimizer.step()
        scope.step()
    seen = {kind: [s for s in range(5) if sink.row(s, kind, "0")] for kind in ("grad", "act", "weight")}
    assert seen == {"grad": [0, 2, 4], "act": [], "weight": [0, 3]}
    assert [s for s in range(5) if sink.hist(s, "grad", "0") is not None] == [0, 4]
    row = sink.row(2, "grad", "0")
    assert row is not None
    missing = next(rows.fields["under"] for rows in sink.records()[2].summaries)
    assert missing.view(np.uint32).tolist() == [floatscope.wire.MISSING_BITS] * 4
