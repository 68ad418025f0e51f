"""Compiled models are observed without a graph break, a recompilation or, with gradients alone, a changed bit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from importlib import reload
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import floatscope
from floatscope import Config, Scope, _operators
from floatscope._memory import MemorySink
from tests.agent.compiled_block import Block, X

Attach = Callable[..., tuple[Scope, MemorySink]]
Backend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., object]]

# What torch's own compiler does on its way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

OUTPUTS = Config(compiled_outputs=True, activations_every=1, histograms_every=1)
LATE = "outputs not observed: compiled before floatscope.watch; watch first, or call torch.compiler.reset() after it"


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def compiled_once() -> Iterator[None]:
    """A recompilation is an error."""
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


def breaks() -> int:
    return sum(counters["graph_break"].values())


def operators_in(graphs: list[torch.fx.GraphModule]) -> int:
    return sum("floatscope" in str(node.target) for graph in graphs for node in graph.graph.nodes)


def keeping(graphs: list[torch.fx.GraphModule]) -> Backend:
    def backend(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    return backend


def train(
    model: Callable[..., Any], optimizer: torch.optim.Optimizer, scope: Scope | None = None, steps: int = 3
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(X + step).square().mean().backward()
        optimizer.step()
        if scope is not None:
            scope.step()


def watched(
    attach: Attach, model: nn.Module, config: Config = OUTPUTS
) -> tuple[torch.optim.Optimizer, Scope, MemorySink]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, *attach(model, optimizer, config=config)


def same_outputs(one: MemorySink, other: MemorySink, steps: int = 3, rel: float = 1e-5) -> None:
    linear = [name for name, layer in one.layers().items() if layer.module_type == "Linear"]
    assert linear
    for step in range(steps):
        for layer in linear:
            a, b = one.row(step, "act", layer), other.row(step, "act", layer)
            assert a is not None
            assert b is not None
            assert a == pytest.approx(b, rel=rel, abs=rel * b["absmax"], nan_ok=True), (step, layer)


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_blocks_share_one_graph(attach: Attach, backend: str) -> None:
    eager, compiled = Model(blocks=10), Model(blocks=10)
    optimizer, scope, expected = watched(attach, eager)
    train(eager, optimizer, scope)
    optimizer, scope, sink = watched(attach, compiled)
    for block in compiled.blocks:
        assert isinstance(block, Block)
        block.compile(backend=backend)
    train(compiled, optimizer, scope)
    assert counters["stats"]["unique_graphs"] == 1
    assert breaks() == 0
    same_outputs(sink, expected)


@pytest.mark.usefixtures("compiled_once")
def test_inductor_shows_what_eager_does(attach: Attach, program: Callable[[str], str]) -> None:
    program("g++")
    eager, model = Model(), Model()
    optimizer, scope, expected = watched(attach, eager)
    train(eager, optimizer, scope)
    optimizer, scope, sink = watched(attach, model)
    train(torch.compile(model, fullgraph=True), optimizer, scope)
    assert counters["stats"]["unique_graphs"] == 1
    same_outputs(sink, expected, rel=1e-3)  # its own order of rounding
    orders = {name: layer.order for name, layer in sink.layers().items() if layer.module_type == "Linear"}
    assert sorted(orders, key=orders.__getitem__) == list(orders), "execution order is that of the calls"
    assert scope.coverage["reasons"].keys() == {
        "outputs not observed: a gradient came, but no call of it was seen, as when it is compiled"
    }


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_alone_leave_every_bit(attach: Attach, program: Callable[[str], str], backend: str) -> None:
    program("g++")
    every = Config(activations_every=1, histograms_every=1, weights_every=1, updates_every=1, overhead_budget=0.0)

    def trained(*, watching: bool) -> list[torch.Tensor]:
        torch.compiler.reset()
        model = Model(blocks=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scope, sink = attach(model, optimizer, config=every) if watching else (None, MemorySink())
        train(torch.compile(model, fullgraph=True, backend=backend), optimizer, scope, steps=200)
        kinds = [{rows.kind for rows in record.summaries} for record in sink.records()]
        assert kinds == [{"grad", "weight", "update"}] * (200 if watching else 0)
        return [p.detach().clone() for p in model.parameters()]

    first, repeated, observed = trained(watching=False), trained(watching=False), trained(watching=True)
    assert all(map(torch.equal, first, repeated)), "the baseline does not repeat"
    assert all(map(torch.equal, first, observed))


def test_unless_outputs_are_asked_for_the_program_is_the_same(attach: Attach) -> None:
    codes = []
    for watching in (False, True):
        torch.compiler.reset()
        graphs: list[torch.fx.GraphModule] = []
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watching:
            attach(model, optimizer, activations_every=1)
        train(torch.compile(model, backend=keeping(graphs)), optimizer, steps=1)
        [graph] = graphs
        codes.append(graph.code)
    assert codes[0] == codes[1]


def test_rows_are_written_in_steps_that_read_outputs_only(attach: Attach) -> None:
    model = Model()
    optimizer, scope, sink = watched(attach, model, Config(compiled_outputs=True, activations_every=2))
    train(torch.compile(model, backend="aot_eager"), optimizer, scope, steps=4)
    assert [sink.row(step, "act", "embed") is not None for step in range(4)] == [True, False, True, False]
    row = sink.row(2, "act", "embed")
    assert row is not None
    assert row["count"] == X.numel(), "of one step"


def test_micro_batches_merge(attach: Attach) -> None:
    model = Model()
    optimizer, scope, sink = watched(attach, model)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        for _ in range(3):
            compiled(X).sum().backward()
        optimizer.step()
        scope.step()
    row = sink.row(1, "act", "blocks.1.up")
    assert row is not None
    assert row["count"] == 3 * 3 * 16


def test_evaluation_is_not_observed(attach: Attach) -> None:
    model = Model()
    optimizer, scope, sink = watched(attach, model)
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, optimizer, scope, steps=1)
    model.eval()
    compiled(X)
    scope.step()
    assert sink.row(1, "act", "embed") is None


@pytest.mark.parametrize("stored", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_format_is_that_of_the_output(attach: Attach, stored: torch.dtype, backend: str) -> None:
    model = Model()
    if stored == torch.float64:
        model.double()
    optimizer, scope, sink = watched(attach, model)
    compiled = torch.compile(model, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=stored == torch.bfloat16):
        compiled(X.double() if stored == torch.float64 else X).sum().backward()
    optimizer.step()
    scope.step()
    formats = {o.format for o in sink.layers()["blocks.0.up"].operands if o.kind == "act"}
    assert formats == {"bf16" if stored == torch.bfloat16 else "fp32"}


class Checkpointing(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = Block()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.parametrize("place", ["inside", "around, reentrant", "around"])
def test_a_repeated_forward_pass_counts_once(attach: Attach, place: str) -> None:
    model = Checkpointing(reentrant=place == "around, reentrant")
    optimizer, scope, sink = watched(attach, model)
    called: Callable[..., Any] = model
    if place == "inside":
        called = torch.compile(model, backend="aot_eager", fullgraph=True)
    else:
        model.block.compile(backend="aot_eager")
    called(X.clone().requires_grad_()).sum().backward()
    optimizer.step()
    scope.step()
    row = sink.row(0, "act", "block.up")
    assert row is not None
    assert row["count"] == 3 * 16


def test_what_was_compiled_before_says_so(attach: Attach) -> None:
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(X).sum().backward()
    optimizer, scope, sink = watched(attach, model)
    train(compiled, optimizer, scope, steps=2)
    assert scope.coverage["reasons"][LATE] == [
        name for name, layer in sink.layers().items() if layer.module_type == "Linear"
    ]
    assert sink.row(1, "grad", "embed") is not None
    torch.compiler.reset()
    train(compiled, optimizer, scope, steps=2)
    assert LATE not in scope.coverage["reasons"]
    assert sink.row(3, "act", "embed") is not None


def test_a_second_model_of_a_compiled_class_says_so(attach: Attach) -> None:
    first, second = Model(), Model()
    torch.compile(first, backend="aot_eager")(X)
    optimizer, scope, _ = watched(attach, second)
    train(torch.compile(second, backend="aot_eager"), optimizer, scope, steps=2)
    assert "embed" in scope.coverage["reasons"][LATE]


def test_layers_that_stay_eager_are_not_reported_twice(attach: Attach) -> None:
    model = Model()
    optimizer, scope, sink = watched(attach, model)
    model.blocks[0].compile(backend="aot_eager")
    train(model, optimizer, scope, steps=2)
    for layer in ("embed", "blocks.0.down", "blocks.1.up"):
        row = sink.row(1, "act", layer)
        assert row is not None
        assert row["count"] == 3 * (16 if layer == "blocks.1.up" else 8)
    assert LATE not in scope.coverage["reasons"]


def pickled(model: nn.Module) -> nn.Module:
    other: nn.Module = pickle.loads(pickle.dumps(model))
    return other


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"floatscope" not in file.getvalue()
    file.seek(0)
    other: nn.Module = torch.load(file, weights_only=False)
    return other


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_duplicates_have_no_rows(attach: Attach, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model = Model()
    watched(attach, model)
    other = duplicate(model)
    assert not [name for module in other.modules() for name in vars(module) if "floatscope" in name]
    assert other.state_dict().keys() == model.state_dict().keys() == Model().state_dict().keys()
    assert not list(model.buffers())
    other(X)


def test_scripts_have_no_rows(attach: Attach) -> None:
    model = Model()
    watched(attach, model)
    script = torch.jit.script(model.embed)
    assert not [name for name in dir(script) if "floatscope" in name]
    assert "_floatscope_words" in vars(model.embed)


@pytest.mark.parametrize("outputs", [False, True])
def test_closing_leaves_nothing(attach: Attach, outputs: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []
    model = Model()
    optimizer, scope, _ = watched(attach, model, Config(compiled_outputs=outputs, activations_every=1))
    compiled = torch.compile(model, backend=keeping(graphs))
    train(compiled, optimizer, scope)
    assert len(graphs) == 1
    assert (operators_in(graphs) > 0) == outputs
    scope.close()
    assert not [name for module in model.modules() for name in vars(module) if "floatscope" in name]
    train(compiled, optimizer)
    # Without the rows that were inputs of it, the graph is made anew, as it would have been.
    assert len(graphs) == 1 + outputs
    assert operators_in(graphs[-1:]) == 0


def stepping(optimizer: torch.optim.Optimizer, model: nn.Module, *, whole: bool, backend: str) -> Callable[[int], None]:
    """A training step of which the update is compiled, or all of it."""
    update = torch.compile(optimizer.step, backend=backend)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(X + number).square().mean().backward()
        if whole:
            optimizer.step()
        else:
            update()

    return torch.compile(step, backend=backend) if whole else step


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_update_shows_its_gradients(attach: Attach, whole: bool, named: bool) -> None:
    eager = Model(blocks=1)
    optimizer, scope, expected = watched(attach, eager)
    train(eager, optimizer, scope)
    scope.close()

    def trained(sink: MemorySink | None) -> tuple[list[torch.Tensor], int]:
        torch.compiler.reset()
        counters.clear()
        model = Model(blocks=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope = None
        if sink is not None:
            scope = floatscope.watch(model, optimizer if named else None, config=Config(histograms_every=1), _sink=sink)
        step = stepping(optimizer, model, whole=whole, backend="aot_eager")
        for number in range(3):
            step(number)
            if scope is not None:
                scope.step()
        if scope is not None:
            assert scope.coverage["observed"] == scope.coverage["trainable"] == 4
            assert any("compiled update" in reason for reason in scope.coverage["reasons"])
            scope.close()
        broken, graphs = breaks(), counters["stats"]["unique_graphs"]
        step(3)
        assert counters["stats"]["unique_graphs"] == graphs, "the update was compiled once more"
        return [p.detach().clone() for p in model.parameters()], broken

    sink = MemorySink()
    plain, plain_breaks = trained(None)
    observed, observed_breaks = trained(sink)
    assert all(map(torch.equal, plain, observed))
    assert observed_breaks == plain_breaks
    assert sink.scalar("grad_norm") == pytest.approx(expected.scalar("grad_norm"))
    assert sink.scalar("lr") == ([0.1] * 3 if named else [None] * 3)
    assert len(sink.records()) == 3


def test_reading_gradients_shuns_cuda_graphs() -> None:
    """A graph for it alone would make torch fail to compile the update that follows."""
    _operators.readers()
    assert torch.Tag.cudagraph_unsafe in torch.ops.floatscope.before_update.default.tags


def test_steps_end_by_themselves_when_the_update_is_compiled(attach: Attach) -> None:
    model = Model(blocks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, sink = attach(model, optimizer)
    step = stepping(optimizer, model, whole=False, backend="eager")
    for number in range(3):
        step(number)
    assert [record.step for record in sink.records()] == [0, 1]
    assert None not in sink.scalar("grad_norm")


def test_an_operator_is_there_once(attach: Attach) -> None:
    before = _operators.readers()
    model, other = Model(), Model(blocks=1)
    optimizer, scope, sink = watched(attach, model)
    second, second_scope, second_sink = watched(attach, other)
    reload(_operators)
    assert _operators.readers() is before
    train(torch.compile(model, backend="eager"), optimizer, scope, steps=1)
    torch.compiler.reset()
    train(torch.compile(other, backend="eager"), second, second_scope, steps=1)
    assert sink.row(0, "act", "embed") is not None
    assert second_sink.row(0, "act", "embed") is not None


def test_transforms_and_exports_leave_it_out(attach: Attach) -> None:
    model = Model(blocks=1).eval()
    watched(attach, model.train())
    batch = torch.stack([X, X])
    assert torch.compile(torch.vmap(model.embed), backend="aot_eager")(batch).shape == (2, 3, 8)
    exported = torch.export.export(model, (X,), strict=True)
    assert operators_in([exported.graph_module]) == 0


def doubled(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


def test_hooks_of_others_are_traced_as_ever(attach: Attach) -> None:
    model = Model()
    model.embed.register_forward_hook(doubled)
    graphs: list[torch.fx.GraphModule] = []
    optimizer, scope, _ = watched(attach, model, Config(activations_every=1))
    compiled = torch.compile(model, backend=keeping(graphs))
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(compiled, optimizer, scope)
    assert len(graphs) == 1
    assert torch.allclose(compiled(X), model(X))


def test_hooks_are_back_after_a_failed_compilation(attach: Attach) -> None:
    model = Model()
    optimizer, scope, sink = watched(attach, model, Config(activations_every=1))

    def failing(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        raise RuntimeError("this backend always fails")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(model, backend=failing)(X)
    train(model, optimizer, scope, steps=1)
    assert sink.row(0, "act", "embed") is not None


def test_clipping_outside_of_a_compiled_update_comes_after_the_reading(attach: Attach) -> None:
    model = Model(blocks=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    update = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        optimizer.zero_grad()
        (model(X) * 100).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update()
        scope.step()
        assert sink.scalar("grad_norm")[-1] == pytest.approx(float(norm))
    assert not any("compiled update" in reason for reason in scope.coverage["reasons"])
