"""Whatever surrounds a hook or a patched function (modes, transforms, traces, compilers) sees nothing of the agent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import floatscope
from floatscope import Operand, Scope
from floatscope._memory import MemorySink
from floatscope._own_ops import OwnOperations

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, histograms_every=1, weights_every=1)


class CastingLinear(nn.Linear):
    """Its operands take operations of their own to tell."""

    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {"act_in": Operand(format="e4m3fn", scale=448.0 / self.weight.abs().sum(), scaling="dynamic")}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = CastingLinear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h = self.b(torch.sin(h * h.sum()))
        out: torch.Tensor = h * h.sin().sum()
        return out


def prefer_save(*args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_SAVE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "policy", [[torch.ops.aten.sum.default], [torch.ops.aten.addmm.default], prefer_save], ids=["sum", "addmm", "all"]
)
def test_selective_checkpointing_gives_the_same_gradients(attach: Attach, policy: object, dtype: torch.dtype) -> None:
    def gradients(*, watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block()).to(dtype)
        if watched:
            scope, sink = attach(model, config=EVERY)
        y = torch.randn(4, 8, dtype=dtype)
        for block in model:
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            y = checkpoint(block, y, use_reentrant=False, context_fn=contexts)
        y.sum().backward()  # type: ignore[no-untyped-call]
        if watched:
            scope.step()
            row = sink.row(0, "act", "0.a")
            assert row is not None
            assert row["count"] == 32
        return [p.grad for p in model.parameters() if p.grad is not None]

    for plain, observed in zip(gradients(watched=False), gradients(watched=True), strict=True):
        assert torch.equal(plain, observed)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self,
        func,
        types,
        args=(),
        kwargs=None,
    ) -> object:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_around_a_whole_step_sees_the_users_operations_only(attach: Attach) -> None:
    def operations(*, watched: bool) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), CastingLinear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scope = attach(model, optimizer, scaler=scaler, config=EVERY)[0] if watched else None
        with Counting() as mode:
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 4)).sum()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                if scope is not None:
                    scope.step(loss=loss)
        calls: list[str] = mode.calls
        return calls

    assert operations(watched=True) == operations(watched=False)


def test_a_default_device_does_not_move_what_is_measured(attach: Attach) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY)
    x = torch.ones(2, 4)
    torch.set_default_device("meta")
    try:
        model(x).sum().backward()
        optimizer.step()
        scope.step(loss=1.0)
    finally:
        torch.set_default_device(None)
    assert {rows.kind for rows in sink.records()[0].summaries} == set(floatscope.wire.KINDS)


def test_a_forward_under_inference_mode_merges_with_the_training_forward(attach: Attach) -> None:
    model = nn.Linear(4, 4)
    scope, sink = attach(model, config=EVERY)
    with torch.inference_mode():
        model(torch.ones(2, 4))
    model(torch.ones(3, 4)).sum().backward()
    scope.step()
    row = sink.row(0, "act", "(model)")
    assert row is not None
    assert row["count"] == 20


def test_function_transforms_and_traces_are_left_alone_and_told(attach: Attach) -> None:
    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.Tanh())
    scope, sink = attach(model, activations_every=1, weights_every=0)
    x = torch.randn(3, 2, 4)
    assert torch.equal(vmap(model)(x), nn.functional.linear(x, linear.weight, linear.bias).tanh())

    def loss(parameters: dict[str, torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(model, parameters, (given,)).sum()
        return out

    vmap(grad(loss), (None, 0))(dict(model.named_parameters()), x)
    with pytest.warns(DeprecationWarning, match="jit.trace"):
        traced = torch.jit.trace(model, x, check_trace=False)  # type: ignore[no-untyped-call]
    assert "aten::count_nonzero" not in str(traced.inlined_graph)
    scope.step()
    assert sink.records()[0].summaries == ()
    reasons = scope.coverage["reasons"]
    assert reasons["outputs not observed inside a function transform (vmap, grad, jvp)"] == ["0"]
    assert reasons["outputs not observed inside a trace (jit.trace, export, make_fx)"] == ["0"]


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[object] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recording", [True, False])
def test_operations_of_ours_are_not_seen_and_change_nothing_around_them(recording: bool) -> None:
    weight = torch.ones(2, requires_grad=True)
    with torch.set_grad_enabled(recording), Seen() as seen:
        with OwnOperations(), OwnOperations():
            assert not (weight * 2).requires_grad
        with contextlib.suppress(RuntimeError), OwnOperations():
            raise RuntimeError
        assert seen.functions == []
        assert torch.is_grad_enabled() == recording
        assert (weight * 2).requires_grad == recording
        assert len(seen.functions) > 0


def test_patched_functions_compile_into_one_graph(attach: Attach) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    attach(model, optimizer, scaler=scaler)
    model(torch.randn(2, 4)).sum().backward()
    want = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    torch.compiler.reset()
    try:
        clip = torch.compile(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), backend="eager", fullgraph=True)
        torch.testing.assert_close(clip(), want)
        forward = torch.compile(model, backend="eager", fullgraph=True)
        forward(torch.randn(2, 4)).sum().backward()
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_none_of_ours(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=dtype):
        with OwnOperations():
            assert not torch.is_autocast_enabled("cpu")
            assert (torch.eye(2) @ torch.eye(2)).dtype == torch.float32
            assert torch.cat([torch.ones(1, dtype=torch.float64)] * 2).sum() == 2
        assert torch.is_autocast_enabled("cpu")
        with contextlib.suppress(ZeroDivisionError), OwnOperations():
            raise ZeroDivisionError
        assert torch.is_autocast_enabled("cpu")
        assert (torch.eye(2) @ torch.eye(2)).dtype == dtype
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_changes_no_summary() -> None:
    tensors = [torch.randn(5000, dtype=torch.float64) * 1e-9, torch.randn(70).to(torch.float16)]
    plain = [floatscope.summarize(tensor) for tensor in tensors]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = [floatscope.summarize(tensor) for tensor in tensors]
    for one, other in zip(plain, cast, strict=True):
        assert (one.absmax, one.sum, one.sumsq, one.hist.tolist()) == (
            other.absmax,
            other.sum,
            other.sumsq,
            other.hist.tolist(),
        )
