"""Outputs, inputs and output gradients are measured where a cast would meet them, and counted once."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import floatscope
from floatscope import Operand, Scope
from floatscope._memory import MemorySink
from floatscope._summary import Summary

Attach = Callable[..., tuple[Scope, MemorySink]]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


class Seen:
    """What a plain loop with hooks of its own finds, by (kind, layer)."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[tuple[str, str], list[torch.Tensor]] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def hook(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            self._keep("act", name, output)
            if isinstance(module, nn.Linear):
                self._keep("act_in", name, args[0])
                # A view (of a matrix product) would lose its hooks to the in-place ReLU that follows.
                whole = output._base if output._is_view() else output
                assert whole is not None
                whole.register_hook(lambda g: self._keep("act_grad", name, g))  # type: ignore[no-untyped-call]

        return hook

    def _keep(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        self.tensors.setdefault((kind, name), []).append(tensor.detach().clone())

    def summary(self, kind: str, name: str) -> Summary:
        return floatscope.summarize(self.tensors[kind, name])


def assert_row(row: dict[str, float] | None, want: Summary) -> None:
    assert row is not None
    for field in ("count", "zeros", "nans", "infs"):
        assert row[field] == getattr(want, field), field
    assert row["absmax"] == np.float32(want.absmax)
    assert row["absmin"] == np.float32(want.absmin)
    assert row["sumsq"] == pytest.approx(want.sumsq, rel=1e-9)


def test_every_kind_over_two_micro_batches(attach: Attach) -> None:
    model = make_model()
    seen = Seen(model)
    scope, sink = attach(model)
    for tokens in (TOKENS, TOKENS.flip(0)[:, :3]):
        model(tokens).square().mean().backward()
    scope.step()
    for name in ("0", "1", "2", "4"):
        assert_row(sink.row(0, "act", name), seen.summary("act", name))
    for name in ("2", "4"):
        assert_row(sink.row(0, "act_in", name), seen.summary("act_in", name))
        assert_row(sink.row(0, "act_grad", name), seen.summary("act_grad", name))
    assert sink.row(0, "act_in", "0") is None
    assert sink.row(0, "act_grad", "1") is None
    # The ReLU overwrites the first linear layer's output; what was seen is what the layer computed.
    hist = sink.hist(0, "act", "2")
    assert hist is not None
    assert hist.tolist() == seen.summary("act", "2").hist.tolist()
    assert {name: layer.order for name, layer in sink.layers().items()} == {"0": 0, "1": 1, "2": 2, "4": 3}
    assert {name: layer.module_type for name, layer in sink.layers().items()}["1"] == "LayerNorm"


def test_without_operands_outputs_are_left(attach: Attach) -> None:
    class Casting(nn.Linear):
        def floatscope_operands(self) -> dict[str, Operand]:
            cast = Operand(format="e4m3fn", scale=2.0, scaling="static")
            return {"act_in": cast, "weight": cast, "act_grad": cast}

    model = nn.Sequential(nn.Linear(3, 4), Casting(4, 2))
    scope, sink = attach(model, activations_every=1, weights_every=1, operands=False)
    model(torch.randn(5, 3, requires_grad=True)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    scope.step()
    for name in ("0", "1"):
        assert {kind for kind in ("act", "act_in", "act_grad", "weight", "grad") if sink.row(0, kind, name)} == {
            "act",
            "weight",
            "grad",
        }


def test_execution_order_is_not_definition_order(attach: Attach) -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 3)
            self.first = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.first(x))
            return out

    model = Backwards()
    scope, sink = attach(model)
    model(torch.ones(2, 3))
    scope.step()
    assert {name: layer.order for name, layer in sink.layers().items()} == {"last": 1, "first": 0}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_not_counted_twice(attach: Attach, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self._part, x, use_reentrant=reentrant)
            return out

        def _part(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            out: torch.Tensor = self.inner(x)
            return out

    model = Checkpointed()
    scope, sink = attach(model)
    model(torch.randn(5, 4, requires_grad=True)).sum().backward()
    scope.step()
    assert model.calls == 2
    for kind in ("act", "act_in", "act_grad"):
        for layer in ("inner.0", "inner.2"):
            row = sink.row(0, kind, layer)
            assert row is not None, (kind, layer)
            assert row["count"] == 20, (kind, layer)


def test_evaluation_is_not_observed(attach: Attach) -> None:
    model = make_model()
    scope, sink = attach(model)
    model.eval()
    with torch.no_grad():
        model(TOKENS)
    model.train()
    scope.step()
    assert sink.records()[0].summaries[0].kind == "weight"
    assert len(sink.records()[0].summaries) == 1


def test_a_hook_rests_in_steps_whose_outputs_are_not_read(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    scope, _ = attach(model, activations_every=2, first_step=1)
    rested = [scope._activations.rests(0)]
    for _ in range(3):
        model(torch.randn(2, 4))
        rested.append(scope._activations.rests(0))
        scope.step()
    assert rested == [False, True, False, True], "its first call tells its place among the layers"


def test_autocast_shows_the_executed_dtype(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    scope, sink = attach(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(3, 4)).float().sum().backward()
    scope.step()
    formats = {o.kind: (o.format, o.role) for o in sink.layers()["0"].operands}
    assert formats == {
        "act": ("bf16", "stored"),
        "act_in": ("fp32", "stored"),
        "act_grad": ("bf16", "stored"),
        "weight": ("fp32", "stored"),
    }


class CastingLinear(nn.Linear):
    """Announces the casts of an FP8 recipe. Its scales change after each forward pass."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.factor = torch.tensor(8.0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (as in nn.Linear)
        out = super().forward(input)
        self.factor = self.factor * 2
        return out

    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {
            "act_in": Operand(format="e4m3fnuz", scale=self.factor, scaling="delayed"),
            "weight": Operand(format="e4m3fnuz", scale=0.25, scaling="static"),
            "act_grad": Operand(format="e5m2fnuz", scale=self.factor, scaling="delayed"),
        }


def test_casts_are_judged_at_the_scale_of_their_time(attach: Attach) -> None:
    model = nn.Sequential(CastingLinear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    zero = 2.0**-11
    x = torch.tensor([[zero / 8, zero / 4, 1.0, 31.0], [-zero / 8, 0.0, 30.0, 1e-9]])
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scope.step()
    act_in, weight, act_grad = (sink.row(0, kind, "0") for kind in ("act_in", "weight", "act_grad"))
    assert act_in is not None
    assert weight is not None
    assert act_grad is not None
    assert act_in["scale"] == 8.0
    assert act_in["under"] == np.float32(3 / 7)
    assert 0 < act_in["over_low"] <= np.float32(1 / 7) <= act_in["over_high"] <= np.float32(2 / 7)
    assert act_in["absmax"] == 31.0
    assert weight["scale"] == 0.25
    # The gradient of the output carries the loss scale, on top of which the module multiplies by 16.
    assert act_grad["absmax"] == 1.0
    assert act_grad["scale"] == 16.0 * 1024.0
    assert {o.kind: (o.format, o.role, o.scaling) for o in sink.layers()["0"].operands} == {
        "act": ("fp32", "stored", "none"),
        "act_in": ("e4m3fnuz", "cast", "delayed"),
        "weight": ("e4m3fnuz", "cast", "static"),
        "act_grad": ("e5m2fnuz", "cast", "delayed"),
        "grad": ("fp32", "stored", "loss"),
    }


def test_operand_is_checked() -> None:
    with pytest.raises(ValueError, match="unknown format 'fp8'"):
        Operand(format="fp8")
    with pytest.raises(ValueError, match="unknown scaling 'later'"):
        Operand(format="e5m2", scaling="later")


@pytest.mark.parametrize("wrap", [lambda loss: {"loss": loss}, lambda loss: SimpleNamespace(loss=loss)])
def test_raw_loss_counts_bad_micro_batches(attach: Attach, wrap: Callable[[torch.Tensor], object]) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> object:
            return wrap(self.linear(x).mean())

    model = WithLoss()
    scope, sink = attach(model)
    for value in (1.0, math.inf, 2.0, math.nan):
        model(torch.full((3, 2), value))
    scope.step(loss=0.0)
    model(torch.ones(3, 2))
    scope.step()
    scope.step()
    assert sink.scalar("raw_loss_nonfinite") == [2.0, 0.0, None]


def test_copies_do_not_report(attach: Attach) -> None:
    model = make_model()
    scope, sink = attach(model)
    average = copy.deepcopy(copy.deepcopy(model))
    average(TOKENS).sum().backward()
    scope.step()
    assert [rows.kind for rows in sink.records()[0].summaries] == ["weight"]
    model(TOKENS)
    scope.step()


def test_a_watched_model_can_be_saved_whole(attach: Attach) -> None:
    model = make_model()
    scope, sink = attach(model, activations_every=1)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"floatscope" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    again = io.BytesIO()
    torch.save(loaded, again)
    scope.step()
    row = sink.row(0, "act", "4")
    assert row is not None
    assert row["count"] == 24


def test_compiled_models_keep_one_graph(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        scope.step()
    assert len(graphs) == 1
    assert sink.row(2, "grad", "0") is not None
    assert sink.row(0, "act", "0") is None
    reason = "outputs not observed: a gradient came, but no call of it was seen, as when it is compiled"
    assert scope.coverage["reasons"] == {reason: ["0", "2"]}


def test_attention_is_honest_about_what_is_never_called(attach: Attach) -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    x = torch.randn(2, 3, 4)
    model[0](x, x, x)[0].sum().backward()
    optimizer.step()
    scope.step()
    assert scope.coverage == {
        "trainable": 2,
        "observed": 2,
        "reasons": {
            "outputs not observed: the module contains others": ["0"],
            "outputs not observed: MultiheadAttention uses its weight without calling it": ["0.out_proj"],
        },
    }
    assert sink.row(0, "grad", "0") is not None
