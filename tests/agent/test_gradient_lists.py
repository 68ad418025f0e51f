"""Lists of gradients are remembered, and never taken for what they are no more."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import floatscope
from floatscope import Scope
from floatscope._backend import Backend
from floatscope._memory import MemorySink
from tests.agent.rows_on_the_host import Runs, like_a_card

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.fixture(params=[False, True], ids=["on the host", "in batches"])
def chosen(request: pytest.FixtureRequest) -> tuple[Backend, Runs]:
    variant = Runs()
    return (like_a_card(variant=lambda _: variant) if request.param else Backend(variant=lambda _: variant)), variant


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def backward(model: nn.Module, value: float) -> None:
    model.zero_grad()
    x = torch.full((2, 6), value, dtype=next(model.parameters()).dtype)
    model(x).square().sum().backward()


def norm_of(model: nn.Module) -> float:
    return math.sqrt(sum(floatscope.summarize(p.grad).sumsq for p in model.parameters() if p.grad is not None))


def test_lists_are_measured_in_one_run_from_the_second_step_on(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    backend, variant = chosen
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=backend)
    norms = []
    for number in range(4):
        backward(model, 1.0 + number)
        norms.append(norm_of(model))
        optimizer.step()
        scope.step()
    assert variant.runs[-3:] == [6, 6, 6]
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-12)


def test_steps_look_at_no_parameter_twice(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    """Before they are unscaled gradients are read, before the optimizer steps they are known to have been."""
    backend, _ = chosen
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scope, sink = attach(
        model,
        optimizer,
        scaler=scaler,
        gradients_every=2,
        activations_every=0,
        weights_every=0,
        updates_every=0,
        _backend=backend,
    )
    looked: list[torch.Tensor] = []
    layer_of = scope._table.layer_of

    def look(parameter: torch.Tensor) -> int | None:
        looked.append(parameter)
        return layer_of(parameter)

    scope._table.layer_of = look  # type: ignore[method-assign]
    counts = []
    for number in range(6):
        backward(model, 1.0 + number)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= 4.0
        looked.clear()
        if number == 0:
            scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        counts.append(len(looked))
        scope.step()
    assert counts[0] >= 6
    assert counts[3:] == [0, 0, 0]
    assert [norm is None for norm in sink.scalar("grad_norm")] == [False, True, False, True, False, True]


def test_a_group_that_is_added_is_read(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    model = make_model()
    first, *rest = model
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=0, _backend=chosen[0])
    for number in range(5):
        if number == 2:
            optimizer.add_param_group({"params": [p for layer in rest for p in layer.parameters()]})
        backward(model, 1.0 + number)
        optimizer.step()
        scope.step()
    seen = [[n for n in range(5) if sink.row(n, "grad", name)] for name in ("0", "3")]
    assert seen == [[0, 1, 2, 3, 4], [2, 3, 4]]


def test_replaced_parameters_are_not_read_as_the_old_ones(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=chosen[0])
    for number in range(4):
        if number == 2:
            model[0].weight = nn.Parameter(torch.full((8, 6), 0.5))
            optimizer.param_groups[0]["params"][0] = model[0].weight
        backward(model, 1.0)
        optimizer.step()
        scope.step()
    counts = [row["count"] for n in range(4) if (row := sink.row(n, "grad", "0")) is not None]
    assert counts == [56, 56, 8, 8], "the bias alone is left of the layer's"
    assert (
        "gradients not observed: its parameters were replaced since the model is watched" in scope.coverage["reasons"]
    )


def test_gradients_that_come_and_go(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    backend, variant = chosen
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=backend)
    absent: list[list[int]] = [[5], [], [], [0, 1], [2], [], [0, 1, 2, 3, 4]]
    norms, layers = [], []
    for number, without in enumerate(absent):
        backward(model, 1.0 + number)
        parameters = list(model.parameters())
        for place in without:
            parameters[place].grad = None
        norms.append(norm_of(model))
        layers.append({name for name, m in model.named_children() if any(p.grad is not None for p in m.parameters())})
        optimizer.step()
        scope.step()
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-12)
    for number, names in enumerate(layers):
        assert {name for name in ("0", "2", "3") if sink.row(number, "grad", name)} == names
    assert variant.runs[-4:] == [4, 5, 6, 1], "those of before are known"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_model_that_changes_its_dtype(attach: Attach, chosen: tuple[Backend, Runs], dtype: torch.dtype) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=chosen[0])
    norms = []
    for number in range(5):
        if number == 2:
            model.to(dtype)
        backward(model, 1.0)
        norms.append(norm_of(model))
        optimizer.step()
        scope.step()
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-12)
    formats = {operand.kind: operand.format for operand in sink.layers()["0"].operands}
    assert formats == {"grad": "fp32" if dtype == torch.float64 else "bf16"}


def test_a_list_that_turns_sparse(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    model = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=chosen[0])
    for number in range(5):
        setattr(model[0], "sparse", number in (2, 3))  # noqa: B010
        model.zero_grad()
        model(torch.tensor([3, 4])).sum().backward()
        optimizer.step()
        scope.step()
    counts = [row["count"] for n in range(5) if (row := sink.row(n, "grad", "0")) is not None]
    assert counts == [200, 200, 8, 8, 200]


def test_clipping_and_two_optimizers_share_what_is_known(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    """The weights of a layer in one optimizer, its bias in another one; everything clipped together or not."""
    model = make_model()
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizers = [torch.optim.SGD(weights, lr=0.1, momentum=0.9), torch.optim.AdamW(others)]
    scope, sink = attach(model, optimizers, activations_every=0, weights_every=0, updates_every=0, _backend=chosen[0])
    norms = []
    for number in range(8):
        backward(model, 1.0 + number)
        norms.append(norm_of(model))
        if number in (2, 3, 6):
            clip_grad_norm_(model.parameters(), 0.1)
        if number == 7:
            clip_grad_norm_(weights[:1], 0.1)
        for optimizer in optimizers:
            optimizer.step()
        scope.step()
    assert sink.scalar("grad_norm") == pytest.approx(norms, rel=1e-12)
    for number in range(8):
        counts = [row["count"] for name in ("0", "2", "3") if (row := sink.row(number, "grad", name)) is not None]
        assert counts == [56, 16, 27]


def test_lists_keep_no_parameter_alive_that_its_optimizer_gave_up(attach: Attach, chosen: tuple[Backend, Runs]) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer, activations_every=0, weights_every=0, updates_every=0, _backend=chosen[0])
    for number in range(4):
        if number == 3:
            [known] = scope._gradients._lists._lists.values()
            assert known.valid
            gone = weakref.ref(optimizer.param_groups[0]["params"].pop())
            setattr(model[3], "bias", None)  # noqa: B010
        backward(model, 1.0)
        optimizer.step()
        scope.step()
    assert gone() is None
    assert not known.valid, "another parameter may have its identity"


@pytest.mark.parametrize("batched", [False, True])
def test_an_optimizer_inside_the_backward_pass(attach: Attach, batched: bool) -> None:
    """https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html"""
    variant = Runs()
    model = make_model()
    optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {
        p: torch.optim.AdamW([p], lr=0.01, foreach=False) for p in model.parameters()
    }
    wanted: list[dict[str, float]] = []

    def update(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        name = next(n for n, p in model.named_parameters() if p is parameter)
        wanted[-1][name] = floatscope.summarize(parameter.grad).sumsq
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    removals = [
        p.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
        for p in model.parameters()
    ]
    backend = like_a_card(variant=lambda _: variant) if batched else Backend(variant=lambda _: variant)
    scope, sink = attach(model, activations_every=0, weights_every=0, updates_every=0, _backend=backend)
    for number in range(3):
        wanted.append({})
        model(torch.full((2, 6), 1.0 + number)).square().sum().backward()
        assert all(p.grad is None for p in model.parameters()), "gone before anybody could read them after"
        scope.step(loss=1.0)
    for removal in removals:
        removal.remove()
    assert [record.step for record in sink.records()] == [0, 1, 2]
    for number, of_step in enumerate(wanted):
        assert len(of_step) == 6
        for layer in ("0", "2", "3"):
            row = sink.row(number, "grad", layer)
            assert row is not None
            expected = sum(value for name, value in of_step.items() if name.startswith(f"{layer}."))
            assert row["sumsq"] == pytest.approx(expected, rel=1e-9)
    assert sink.scalar("grad_norm") == pytest.approx([math.sqrt(sum(w.values())) for w in wanted])
    if batched:
        assert variant.runs == [6, 6, 6], "one run for the whole backward pass"
