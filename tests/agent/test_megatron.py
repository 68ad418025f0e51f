"""Megatron's optimizers and wrapper by doubles of their shape; the real ones: tests/frameworks/test_megatron.py."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from floatscope import Scope
from floatscope._megatron_ranks import shared_parameters, wrappers
from floatscope._memory import MemorySink
from floatscope._placement import LOCAL, Placement, Ranks

Attach = Callable[..., tuple[Scope, MemorySink]]
CLIP = 1.0


class Scaler:
    """Halves at each overflow, by a tensor of its own."""

    def __init__(self, scale: float) -> None:
        self.scale = torch.tensor([scale])

    def update(self, found_inf: object) -> None:
        if found_inf:
            self.scale = self.scale * 0.5


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 (a module)
    """``megatron.core.optimizer.optimizer`` with as much of it as is looked at."""

    class MegatronOptimizer:
        is_stub_optimizer = False

        def __init__(self, parameters: list[Any], scale: float = 0.0) -> None:
            # As in mixed precision the torch optimizer has copies, flat ones with the distributed optimizer.
            self.held = parameters
            self.copies = [nn.Parameter(p.detach().float().clone()) for p in parameters]
            self.optimizer = torch.optim.SGD(self.copies, lr=0.5)
            self.config = SimpleNamespace(clip_grad=CLIP)
            self.grad_scaler = Scaler(scale) if scale else None

        @property
        def param_groups(self) -> list[dict[str, Any]]:
            return self.optimizer.param_groups

    class MixedPrecisionOptimizer(MegatronOptimizer):
        def prepare_grads(self) -> bool:
            for parameter, copy in zip(self.held, self.copies, strict=True):
                copy.grad = parameter.main_grad.float().clone()
            if self.grad_scaler is None:
                return False
            scale, found = self.grad_scaler.scale, False
            for copy in self.copies:
                assert copy.grad is not None
                found |= not bool(copy.grad.isfinite().all())
                copy.grad /= scale
            self.grad_scaler.update(found)
            return found

        def step(self) -> tuple[bool, float | None, int | None]:
            if self.prepare_grads():
                return False, None, None
            norm = float(torch.cat([copy.grad.view(-1) for copy in self.copies if copy.grad is not None]).norm())
            for copy in self.copies:
                assert copy.grad is not None
                copy.grad *= min(1.0, CLIP / (norm + 1e-6))
            self.optimizer.step()
            with torch.no_grad():
                for parameter, copy in zip(self.held, self.copies, strict=True):
                    parameter.copy_(copy)
            return True, norm, 0

    class Float16OptimizerWithFloat16Params(MixedPrecisionOptimizer):
        def __init__(self, parameters: list[Any], scale: float = 0.0) -> None:
            super().__init__(parameters, scale)
            self.float16_groups, self.fp32_from_fp32_groups = [parameters[:1]], [parameters[1:]]

    class FP32Optimizer(MixedPrecisionOptimizer):
        def __init__(self, parameters: list[Any]) -> None:
            super().__init__(parameters)
            # The model's own.
            self.copies = parameters
            self.optimizer = torch.optim.SGD(parameters, lr=0.5)

        def prepare_grads(self) -> bool:
            return super().prepare_grads()

        def step(self) -> tuple[bool, float | None, int | None]:
            return super().step()

    class ChainedOptimizer(MegatronOptimizer):
        def __init__(self, chained: list[Any]) -> None:
            self.chained_optimizers = chained
            self.config = chained[0].config

        def step(self) -> tuple[bool, float | None, int | None]:
            return self.chained_optimizers[0].step()  # type: ignore[no-any-return]

    class DistributedOptimizer(MixedPrecisionOptimizer):
        """This rank updates the first 4 elements of its only parameter."""

        def __init__(self, parameters: list[Any], elsewhere: list[Any], scale: float = 0.0) -> None:
            super().__init__(parameters, scale)
            self.model_float16_groups, self.model_fp32_groups = [parameters], [[]]  # type: ignore[var-annotated]
            self.ddp_config = SimpleNamespace(overlap_param_gather=False, use_megatron_fsdp=False)
            self.buffers = [SimpleNamespace(params=[*parameters, *elsewhere])]

        def _get_model_param_range_map(self, parameter: torch.Tensor) -> dict[str, Any]:
            return {"param": SimpleNamespace(start=0, end=4)}

    kinds = Float16OptimizerWithFloat16Params, FP32Optimizer, ChainedOptimizer, DistributedOptimizer
    module: Any = types.ModuleType("megatron.core.optimizer.optimizer")
    for cls in (MegatronOptimizer, MixedPrecisionOptimizer, *kinds):
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def layers() -> Any:  # noqa: ANN401
    """Two weights whose gradients are nowhere but in ``main_grad``."""
    model: Any = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    return model


def test_gradients_are_read_before_they_are_unscaled_and_clipped(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    model = layers()
    optimizer = megatron.ChainedOptimizer(
        [megatron.Float16OptimizerWithFloat16Params(list(model.parameters()), scale=4.0)]
    )
    scope, sink = attach(model, weights_every=1, updates_every=1, activations_every=0)
    for value in (8.0, torch.inf, 4.0):
        model[0].weight.main_grad.fill_(value)
        model[1].weight.main_grad.fill_(4.0)
        optimizer.step()
        scope.step()
    first, second, third = sink.records()
    row = sink.row(0, "grad", "0")
    assert row is not None
    assert (row["count"], row["absmax"]) == (6, 2.0), "without the loss scale"
    assert first.scalars["grad_norm"] == pytest.approx(26**0.5)
    assert first.scalars["grad_norm/framework"] == pytest.approx(26**0.5)
    assert first.scalars["clip_coef"] == pytest.approx(26**-0.5, rel=1e-5)
    assert first.scalars["clip_norm"] == CLIP
    assert first.scalars["grad_norm/clipped"] == pytest.approx(CLIP, rel=1e-5)
    assert first.scalars["lr"] == 0.5
    assert [record.scalars["skipped"] for record in (first, second, third)] == [0.0, 1.0, 0.0]
    assert [record.scalars["loss_scale"] for record in (first, second, third)] == [4.0, 4.0, 2.0]
    overflowing, moved = sink.row(1, "grad", "0"), sink.row(0, "update", "0")
    assert overflowing is not None
    assert moved is not None
    assert overflowing["infs"] == 6
    assert moved["absmax"] == pytest.approx(0.5 * 2.0 / 26**0.5, rel=1e-3)
    assert "grad_norm/framework" not in second.scalars
    assert not any(name.startswith("swallowed") for name in first.scalars)
    assert scope.coverage["observed"] == 2


def test_in_float32_the_optimizer_inside_is_none_of_its_own(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    model = layers()
    optimizer = megatron.FP32Optimizer(list(model.parameters()))
    scope, sink = attach(model, activations_every=0)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.main_grad.fill_(2.0)
        optimizer.step()
        scope.step()
    assert [record.step for record in sink.records()] == [0, 1]
    assert sink.scalar("grad_norm") == [pytest.approx(32**0.5)] * 2, "before it was clipped"
    assert not any(name.startswith("lr/") for record in sink.records() for name in record.scalars)


def test_of_the_distributed_optimizer_this_ranks_part_is_read(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    model = layers()
    model[0].weight.main_grad[:] = torch.tensor([[1.0, 2.0, 3.0], [4.0, torch.nan, torch.nan]])
    optimizer = megatron.DistributedOptimizer([model[0].weight], [model[1].weight])
    scope, sink = attach(model, activations_every=0)
    optimizer.copies = []  # what it makes of the rest is no matter here
    optimizer.held = []
    optimizer.step = types.MethodType(lambda self: self.prepare_grads(), optimizer)
    optimizer.step()
    scope.step()
    row = sink.row(0, "grad", "0")
    assert row is not None
    assert (row["count"], row["nans"], row["sum"]) == (4, 0, 10.0)
    assert sink.row(0, "grad", "1") is None
    assert scope.coverage["observed"] == 2, "which another rank has"


def test_a_scale_is_known_before_the_first_step_where_the_optimizer_is(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    model = layers()
    optimizer = megatron.Float16OptimizerWithFloat16Params(list(model.parameters()), scale=8.0)
    scope, sink = attach(model, [optimizer], activations_every=1)
    (8.0 * model(torch.ones(1, 3)).sum()).backward()
    scope.step()
    row = sink.row(0, "act_grad", "1")
    assert row is not None
    assert row["absmax"] == 1.0


def test_optimizers_of_others_are_left_alone(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    model, other = layers(), layers()
    scope, sink = attach(model, activations_every=0)
    megatron.Float16OptimizerWithFloat16Params(list(other.parameters()), scale=2.0).step()
    scope.step()
    assert sink.row(0, "grad", "0") is None
    assert "lr" not in sink.records()[0].scalars


def test_the_classes_are_as_they_were_after_close(attach: Attach, megatron: Any) -> None:  # noqa: ANN401
    def methods() -> list[object]:
        return [
            vars(cls).get(name)
            for cls in vars(megatron).values()
            for name in ("step", "prepare_grads")
            if isinstance(cls, type)
        ]

    before = methods()
    scope, _ = attach(layers())
    assert methods() != before
    scope.close()
    assert methods() == before


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """A model in a double of Megatron's wrapper, on rank 3 of 2 by 2: data-parallel with rank 1, tensor with rank 2."""
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)

    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module, *, distributed: bool, stages: int) -> None:
            super().__init__()
            self.module = module
            self.ddp_config = SimpleNamespace(use_distributed_optimizer=distributed)
            self.tp_group = SimpleNamespace(ranks=[2, 3])
            self.pp_group = SimpleNamespace(size=lambda: stages)
            data = SimpleNamespace(ranks=[1, 3])
            self.buffers = [SimpleNamespace(params=list(module.parameters()), data_parallel_group=data)]  # type: ignore[assignment]

    module: Any = types.ModuleType("megatron.core.distributed.distributed_data_parallel")
    module.DistributedDataParallel = DistributedDataParallel
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def wrap(*, distributed: bool = False, stages: int = 1) -> tuple[Any, Any]:
        model = layers()
        model[0].weight.tensor_model_parallel = True
        wrapper = DistributedDataParallel(model, distributed=distributed, stages=stages)
        wrappers.add(wrapper)
        return model, wrapper

    return wrap


@pytest.mark.parametrize(
    ("distributed", "divided", "whole"),
    [
        (False, Placement("shard", 1), Placement("replica", 0)),
        (True, Placement("shard"), Placement("shard", 2)),
    ],
)
def test_what_gradients_are_to_other_ranks(
    wrapped: Callable[..., tuple[Any, Any]], *, distributed: bool, divided: Placement, whole: Placement
) -> None:
    model, wrapper = wrapped(distributed=distributed)
    ranks = Ranks(model, 3, 4)
    first, second = model[0].weight, model[1].weight
    assert ranks.of("grad", first, first) == (divided, "")
    assert ranks.of("grad", second, second) == (whole, "")
    assert ranks.of("weight", first, first) == (Placement("shard", 1), "")
    assert ranks.of("weight", second, second) == (Placement("replica", 0), "")
    assert ranks.norm == "grad_sumsq_share"
    assert not any(shared.partial for shared in shared_parameters(wrapper, 3, 4))
    assert all(shared.partial for shared in shared_parameters(wrapper, 3, 8)), "where there are others"


def test_an_older_wrapper_has_the_groups_of_its_process(
    wrapped: Callable[..., tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wrapper = wrapped()
    state: Any = types.ModuleType("megatron.core.parallel_state")
    tensor, pipeline = wrapper.tp_group, wrapper.pp_group
    state.get_tensor_model_parallel_group = lambda: tensor
    state.get_pipeline_model_parallel_group = lambda: pipeline
    monkeypatch.setitem(sys.modules, state.__name__, state)
    wanted = Ranks(model, 3, 4).of("grad", model[0].weight, model[0].weight)
    del wrapper.tp_group, wrapper.pp_group
    assert Ranks(model, 3, 4).of("grad", model[0].weight, model[0].weight) == wanted == (Placement("shard", 1), "")


@pytest.mark.parametrize("flag", ["use_megatron_fsdp", "use_custom_fsdp", None])
def test_a_configuration_of_any_age_is_understood(attach: Attach, megatron: Any, flag: str | None) -> None:  # noqa: ANN401
    model = layers()
    optimizer = megatron.DistributedOptimizer([model[0].weight], [model[1].weight])
    optimizer.ddp_config = SimpleNamespace(**({flag: True} if flag else {}))
    scope, _ = attach(model, activations_every=0)
    optimizer.copies, optimizer.held = [], []
    optimizer.prepare_grads()
    scope.step()
    reasons = scope.coverage["reasons"]
    assert any("Megatron's own FSDP" in reason for reason in reasons) == (flag is not None)


def test_stages_of_a_pipeline_are_not_merged(wrapped: Callable[..., tuple[Any, Any]]) -> None:
    model, _wrapper = wrapped(stages=2)
    ranks = Ranks(model, 3, 8)
    weight = model[0].weight
    for kind, parameter in (("grad", weight), ("act", None)):
        place, why = ranks.of(kind, weight, parameter)
        assert place == LOCAL
        assert "pipeline" in why
