"""Adapters, several models at once and hooks of the user's: each is observed, and works as it would alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, weights_every=1, updates_every=1, overhead_budget=0.0)


class LowRank(nn.Module):
    """A frozen linear layer and an adapter of rank 2, which begins at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(LowRank(nn.Linear(4, 6)), nn.ReLU(inplace=True), LowRank(nn.Linear(6, 3)))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
    """One step; the output of the model."""
    optimizer.zero_grad()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
    out: torch.Tensor = model(x)
    out.square().mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return out.detach()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def test_adapters_are_observed_and_what_they_adapt_is_said_to_be_frozen(attach: Attach) -> None:
    alone, model = adapted(), adapted()
    optimizers = adam(alone), adam(model)
    scope, sink = attach(model, optimizers[1], config=EVERY)
    norms = []
    for number in range(3):
        step_of(alone, optimizers[0], number)
        gradients = [p.grad.double() for p in alone.parameters() if p.grad is not None]
        norms.append(math.sqrt(sum(g.square().sum().item() for g in gradients)))
        step_of(model, optimizers[1], number)
        scope.step()
        row = sink.row(number, "grad", "2.up")
        assert row is not None
        weight = alone.get_parameter("2.up.weight")
        assert weight.grad is not None
        assert (row["count"], row["absmax"]) == (6, weight.grad.abs().max().item())
        assert sink.row(number, "grad", "0.base") is None
        assert sink.row(number, "act", "0.base") is not None
        assert sink.row(number, "act_grad", "2.up") is not None
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-9)
    # With the second factor at 0 the first one's gradient is 0, and is reported as such.
    row = sink.row(0, "grad", "0.down")
    assert row is not None
    assert row["zeros"] == row["count"] == 8
    assert scope.coverage == {"trainable": 4, "observed": 4, "reasons": {"frozen": ["0.base", "2.base"]}}
    assert all(map(torch.equal, alone.parameters(), model.parameters()))


def test_several_models_keep_to_themselves(attach: Attach) -> None:
    """As a generator and a discriminator, one of which the other's loss goes through."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(4, 1))
    first, second = adam(generator), torch.optim.SGD(discriminator.parameters(), lr=0.5)
    scope, sink = attach(generator, first, config=EVERY, run="generator")
    other, others = attach(discriminator, config=EVERY, run="discriminator")
    want: dict[str, list[float]] = {"generator": [], "discriminator": []}
    for number in range(3):
        made = generator(torch.ones(3, 4) * number)
        first.zero_grad()
        discriminator(made).mean().backward()
        gradient = generator.get_parameter("0.weight").grad
        assert gradient is not None
        want["generator"].append(gradient.abs().max().item())
        first.step()
        scope.step(loss=1.0)
        second.zero_grad()
        discriminator(made.detach()).square().mean().backward()
        gradients = [p.grad for p in discriminator.parameters() if p.grad is not None]
        want["discriminator"].append(max(g.abs().max().item() for g in gradients))
        second.step()
        other.step(loss=2.0)
    for step in range(3):
        row, mine = sink.row(step, "grad", "0"), others.row(step, "grad", "0")
        assert row is not None
        assert mine is not None
        assert (row["count"], mine["count"]) == (20, 5)
        assert row["absmax"] >= np.float32(want["generator"][step])  # the bias is in it
        assert mine["absmax"] == np.float32(want["discriminator"][step])
    assert [sink.scalar("loss"), others.scalar("loss")] == [[1.0] * 3, [2.0] * 3]
    assert [sink.scalar("lr"), others.scalar("lr")] == [[0.01] * 3, [0.5] * 3]
    assert [s.coverage["trainable"] for s in (scope, other)] == [1, 1]
    scope.close()
    step_of(nn.Sequential(discriminator), second, 9)
    other.step()
    assert others.row(3, "grad", "0") is not None, "the end of one is not the end of the other"


def test_an_average_of_the_weights_that_runs_beside_the_training_reports_nothing(attach: Attach) -> None:
    alone, model = adapted(), adapted()
    optimizers = adam(alone), adam(model)
    plain = copy.deepcopy(alone)
    scope, sink = attach(model, optimizers[1], config=EVERY)
    average = torch.optim.swa_utils.AveragedModel(model)
    beside = torch.optim.swa_utils.AveragedModel(plain)
    for number in range(3):
        for trained, optimizer, mean in ((alone, optimizers[0], beside), (model, optimizers[1], average)):
            step_of(trained, optimizer, number)
            mean.update_parameters(trained)
            mean(torch.ones(2, 4)).sum()
        scope.step()
        row = sink.row(number, "act", "2.base")
        assert row is not None
        assert row["count"] == 5 * 3, "of the model alone"
    assert all(map(torch.equal, beside.parameters(), average.parameters()))


@pytest.mark.parametrize("before", [True, False], ids=["hooked before", "hooked after"])
def test_outputs_that_a_hook_of_the_users_replaces(attach: Attach, before: bool) -> None:
    """Ours returns nothing, so neither replaces a value nor hides what the user's makes of it."""

    def doubled(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return output * 2

    def shifted(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(a + 1 for a in args)

    met: list[float] = []
    sinks: list[MemorySink] = []

    def trained(*, watched: bool) -> list[torch.Tensor]:
        model = adapted()
        layer, optimizer = model.get_submodule("2.up"), adam(model)
        scopes = []

        def observe() -> None:
            if watched:
                scope, sink = attach(model, optimizer, config=EVERY)
                scopes.append(scope)
                sinks.append(sink)
            else:  # stands where ours will, and meets what ours should
                layer.register_forward_hook(lambda _, __, output: met.append(output.abs().max().item()))

        if not before:
            observe()
        hooks = [layer.register_forward_hook(doubled), layer.register_forward_pre_hook(shifted)]
        if before:
            observe()
        outputs = []
        for number in range(2):
            outputs.append(step_of(model, optimizer, number))
            for scope in scopes:
                scope.step()
        for hook in hooks if not before else ():  # the fixture counts what there was when ours came
            hook.remove()
        return outputs

    assert all(map(torch.equal, trained(watched=False), trained(watched=True)))
    for number in range(2):
        row = sinks[0].row(number, "act", "2.up")
        assert row is not None
        assert row["absmax"] == np.float32(met[number])
    assert met[1] > 0


class Stage(nn.Module):
    """Some layers of a model, under the names that they have in the whole."""

    def __init__(self, layers: nn.Sequential, first: int, last: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layers[number] for number in range(first, last)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def test_stages_of_a_pipeline_have_names_and_a_norm_of_their_own(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks in this process: what one sends to the other is handed over."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    whole = copy.deepcopy(layers)
    x = torch.randn(5, 4)
    whole(x).square().mean().backward()
    stages = [Stage(layers, 0, 2), Stage(layers, 2, 4)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    attached = []
    for rank, stage in enumerate(stages):
        monkeypatch.setenv("RANK", str(rank))
        attached.append((*attach(stage, torch.optim.SGD(stage.parameters(), lr=0.1), config=EVERY), stage))
    sent = stages[0](x)
    received = sent.detach().requires_grad_()
    stages[1](received).square().mean().backward()
    sent.backward(received.grad)
    for scope, sink, stage in attached:
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1e3)
        scope.step()
        names = [f"layers.{number}" for number in stage.layers if number != "1"]
        assert list(sink.layers()) == names
        squares = 0.0
        for name in names:
            want = floatscope.summarize([p.grad for p in whole[int(name[-1])].parameters() if p.grad is not None])
            row = sink.row(0, "grad", name)
            assert row is not None
            assert row["count"] == want.count
            assert row["absmax"] == np.float32(want.absmax)
            squares += want.sumsq
        assert sink.scalar("grad_norm/local") == pytest.approx([math.sqrt(squares)], rel=1e-9)
        assert sink.scalar("grad_norm") == [None], "that of a stage is not the model's"
        assert any("not merged over ranks" in reason for reason in scope.coverage["reasons"])


def test_rows_of_compiled_code_are_no_buffers(attach: Attach) -> None:
    """DDP sends the buffers of one rank to all others, and a checkpoint holds them."""
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = list(dict(model.named_buffers())), list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY, compiled_outputs=True)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        compiled(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        scope.step()
    row = sink.row(1, "act", "0")
    assert row is not None
    assert row["count"] == 12
    assert "_floatscope_words" in vars(model[0])
    assert (list(dict(model.named_buffers())), list(model.state_dict())) == before
    torch.compiler.reset()
