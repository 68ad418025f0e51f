"""A compiler keeps no more for the backward pass of a model whose outputs are read than of one that nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from floatscope import Config, Scope
from floatscope._memory import MemorySink

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

OUTPUTS = Config(compiled_outputs=True, activations_every=1, histograms_every=1)


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    """As in a transformer: what follows a matrix product is cheap to compute again from it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")
        return x + self.down(hidden)  # type: ignore[no-any-return]


def kept_by(train: Callable[[Callable[[nn.Module], Any]], None]) -> list[tuple[int, str]]:
    """Elements and dtype of tensors of several dimensions that are kept, as torch's own compiler divides the work."""
    # Here, where what torch warns of itself is left aside.
    from torch._inductor.compile_fx import _recursive_joint_graph_passes
    from torch._inductor.decomposition import select_decomp_table

    kept: list[tuple[int, str]] = []

    def divided(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        _recursive_joint_graph_passes(joint)
        forward, backward = min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)
        (output,) = (node for node in forward.graph.nodes if node.op == "output")
        values = [node.meta.get("val") for node in output.args[0] if isinstance(node, torch.fx.Node)]
        kept.extend((v.numel(), str(v.dtype)) for v in values if isinstance(v, torch.Tensor) and v.dim() > 1)
        return forward, backward

    def run(graph: torch.fx.GraphModule, _: Any) -> Callable[..., object]:  # noqa: ANN401
        return graph.forward

    backend = aot_autograd(fw_compiler=run, bw_compiler=run, partition_fn=divided, decompositions=select_decomp_table())
    train(lambda model: torch.compile(model, backend=backend))
    return kept


def test_as_much_as_of_one_that_nobody_watches(attach: Callable[..., tuple[Scope, MemorySink]]) -> None:
    def alone(compiled: Callable[[nn.Module], Any]) -> None:
        step(compiled(nn.Sequential(Block(), Block())))

    def watched(compiled: Callable[[nn.Module], Any]) -> None:
        model = nn.Sequential(Block(), Block())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope, sink = attach(model, optimizer, config=OUTPUTS)
        step(compiled(model))
        optimizer.step()
        scope.step()
        assert sink.row(0, "act", "0.up") is not None

    before = kept_by(alone)
    torch.compiler.reset()
    assert before
    assert sorted(kept_by(watched)) == sorted(before)


def step(model: Callable[..., torch.Tensor]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(4, 32, 64)).float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
