"""Inputs and output gradients of compiled linear layers, and the outputs of all other layers, for those who ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import floatscope
from floatscope import Config, Scope
from floatscope._memory import MemorySink
from tests.agent.compiled_block import Block, X

Attach = Callable[..., tuple[Scope, MemorySink]]

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

EVERYTHING = Config(compiled_all_outputs=True, compiled_operands=True, activations_every=1, histograms_every=1)
KINDS = ("act", "act_in", "act_grad")


class Model(nn.Module):
    def __init__(self, blocks: int = 2, *, checkpointing: bool | None = None) -> None:
        """``checkpointing``: whether it is the reentrant one."""
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(8, 5)
        self.checkpointing = checkpointing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x) if self.checkpointing is None else checkpoint(block, x, use_reentrant=self.checkpointing)
        logits: torch.Tensor = self.head(x)
        return logits


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch.compiler.reset()


def train(
    model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, scope: Scope | None = None, steps: int = 2
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss: Any = model(X + step).square().mean()
        loss.backward()
        optimizer.step()
        if scope is not None:
            scope.step()


def eager(attach: Attach, **how: bool) -> MemorySink:
    model = Model(**how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=1, histograms_every=1)
    train(model, optimizer, scope)
    return sink


def same(one: MemorySink, other: MemorySink, rel: float = 1e-5, steps: int = 2) -> None:
    for name, layer in one.layers().items():
        for kind in KINDS if layer.module_type == "Linear" else ("act",):
            for step in range(steps):
                a, b = one.row(step, kind, name), other.row(step, kind, name)
                assert a is not None, (kind, name)
                assert b is not None, (kind, name)
                assert a == pytest.approx(b, rel=rel, abs=rel * b["absmax"], nan_ok=True), (step, kind, name)


@pytest.mark.parametrize("per_block", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_shows_what_eager_code_does(
    attach: Attach, program: Callable[[str], str], backend: str, per_block: bool
) -> None:
    program("g++")
    expected = eager(attach)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERYTHING)
    called: Callable[..., torch.Tensor] = model
    if per_block:
        for block in model.blocks:
            assert isinstance(block, Block)
            block.compile(backend=backend)
    else:
        called = torch.compile(model, backend=backend, fullgraph=True)
    train(called, optimizer, scope)
    assert counters["stats"]["unique_graphs"] == 1
    assert sum(counters["graph_break"].values()) == 0
    same(sink, expected, rel=1e-3 if backend == "inductor" else 1e-5)
    assert not [reason for reason in scope.coverage["reasons"] if "outputs" in reason]


def test_operands_alone_leave_outputs(attach: Attach) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = Config(compiled_operands=True, activations_every=2)
    scope, sink = attach(model, optimizer, config=config)
    train(torch.compile(model, backend="aot_eager"), optimizer, scope, steps=3)
    present = [[sink.row(step, kind, "head") is not None for step in range(3)] for kind in KINDS]
    assert present == [[False] * 3, [True, False, True], [True, False, True]]
    row = sink.row(2, "act_grad", "head")
    assert row is not None
    assert row["count"] == 3 * 5, "of one step"


def test_weights_have_the_same_bits(attach: Attach) -> None:
    def trained(*, watching: bool) -> list[torch.Tensor]:
        torch.compiler.reset()
        model = Model(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scope, sink = attach(model, optimizer, config=EVERYTHING) if watching else (None, MemorySink())
        train(torch.compile(model, backend="aot_eager", fullgraph=True), optimizer, scope, steps=50)
        assert all(sink.row(step, "act_grad", "embed") is not None for step in range(50 if watching else 0))
        return [p.detach().clone() for p in model.parameters()]

    alone = trained(watching=False)
    for watching in (False, True):
        assert all(map(torch.equal, alone, trained(watching=watching))), f"watching: {watching}"


@pytest.mark.parametrize("place", ["inside", "around, reentrant", "around"])
def test_checkpointed_layers_count_once(attach: Attach, place: str) -> None:
    inside, reentrant = place == "inside", place == "around, reentrant"
    expected = eager(attach, checkpointing=reentrant)
    model = Model(checkpointing=reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERYTHING)
    called: Callable[..., torch.Tensor] = model
    with torch._dynamo.config.patch(error_on_recompile=inside):
        # Reentrant checkpointing calls a block with gradients and without, two programs in any case.
        if inside:
            called = torch.compile(model, backend="aot_eager", fullgraph=True)
        else:
            for block in model.blocks:
                assert isinstance(block, Block)
                block.compile(backend="aot_eager")
        train(called, optimizer, scope)
    same(sink, expected)


def test_gradients_are_told_without_the_loss_scale(attach: Attach) -> None:
    rows = []
    for compiled in (False, True):
        torch.compiler.reset()
        model = Model(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scope, sink = attach(model, optimizer, config=EVERYTHING, scaler=scaler)
        called = torch.compile(model, backend="aot_eager") if compiled else model
        for _ in range(2):
            scaler.scale(called(X).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.step()
        operands = {o.kind: o.scaling for o in sink.layers()["head"].operands}
        assert operands["act_grad"] == "loss"
        rows.append(sink.row(1, "act_grad", "head"))
    assert rows[0] == pytest.approx(rows[1], nan_ok=True)


def gradient_of(model: nn.Module) -> Callable[..., Any]:
    return torch.func.grad(lambda parameters, x: torch.func.functional_call(model, parameters, x).square().sum())


@pytest.mark.parametrize("vectorised", [False, True])
def test_inside_a_function_transform_nothing_is_shown(attach: Attach, vectorised: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    function = gradient_of(model)
    if vectorised:
        function = torch.func.vmap(function, in_dims=(None, 0))
    expected = function(parameters, X)
    scope, sink = attach(model, config=EVERYTHING)
    gradients = torch.compile(function, backend="aot_eager", fullgraph=True)(parameters, X)
    scope.step(loss=1.0)
    torch.testing.assert_close(gradients, expected)
    assert sink.row(0, "act_grad", "0") is None


class Casting(nn.Linear):
    """Announces casts of its input and of its output's gradient, the latter with a scale of ``scale``."""

    scale: torch.Tensor | None = None

    def floatscope_operands(self) -> dict[str, floatscope.Operand]:
        scaling = "dynamic" if self.scale is None else "delayed"
        return {
            "act_in": floatscope.Operand(format="e4m3fn", scale=None, scaling="dynamic"),
            "act_grad": floatscope.Operand(format="e5m2", scale=self.scale, scaling=scaling),
        }


@pytest.mark.parametrize("delayed", [False, True])
def test_casts_with_a_scale_of_their_own_amax_are_known(attach: Attach, delayed: bool) -> None:
    model = Model(1)
    model.head = Casting(8, 5)
    if delayed:
        model.head.scale = torch.tensor(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERYTHING)
    train(torch.compile(model, backend="aot_eager"), optimizer, scope)
    row = sink.row(1, "act_in", "head")
    assert row is not None
    assert row["scale"] == pytest.approx(448.0 / row["absmax"])
    assert (sink.row(1, "act_grad", "head") is None) == delayed
    reason = "casts are not observed: the scale that compiled code cast with is not known"
    assert scope.coverage["reasons"].get(reason) == (["head"] if delayed else None)


def test_closing_takes_every_row_away(attach: Attach) -> None:
    model = Model(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer, config=EVERYTHING)
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, optimizer, scope)
    loss = compiled(X).sum()
    scope.close()
    assert not [name for module in model.modules() for name in vars(module) if "floatscope" in name]
    loss.backward()
    with torch._dynamo.config.patch(error_on_recompile=False):
        train(compiled, optimizer)
