"""DeepSpeed's parameters and optimizers by doubles with their public attributes; the real ones: test_deepspeed.py.

A CPU cannot train in fp16 with DeepSpeed, so its loss scale and the steps that it skips are seen here alone.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._memory import MemorySink
from floatscope._placement import Placement, Ranks, full_sizes
from floatscope._readable import local_part
from tests.agent.distributed_ranks import group

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    """A group of this process alone."""
    with group(tmp_path, 0, 1):
        yield dist.group.WORLD


@pytest.fixture
def stage3(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 (a module)
    """``deepspeed.runtime.zero.stage3`` with as much of its optimizer as is looked at."""

    class DeepSpeedZeroOptimizer_Stage3:  # noqa: N801 (its name)
        dynamic_loss_scale = True
        offload_optimizer = False
        clip_grad = 1.0

        def __init__(self, parameters: list[Any], scale: float) -> None:
            self.fp16_groups = [parameters]
            self.param_groups: list[dict[str, Any]] = [{"params": [], "lr": 0.5}]
            self.averaged_gradients: dict[int, list[torch.Tensor]] = {}
            self.loss_scale = scale
            self.overflow = False
            self._global_grad_norm: Any = 0.0

        def step(self) -> None:
            parts = self.averaged_gradients.pop(0)
            self.overflow = not all(bool(part.isfinite().all()) for part in parts)
            if self.overflow:
                self.loss_scale /= 2
                self._global_grad_norm = float("inf")
                return
            self._global_grad_norm = torch.cat(parts).norm() / self.loss_scale
            for parameter, part in zip(self.fp16_groups[0], parts, strict=True):
                parameter.ds_tensor.sub_(part / self.loss_scale * self.param_groups[0]["lr"])

    module: Any = types.ModuleType("deepspeed.runtime.zero.stage3")
    DeepSpeedZeroOptimizer_Stage3.__module__ = module.__name__
    module.DeepSpeedZeroOptimizer_Stage3 = DeepSpeedZeroOptimizer_Stage3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    return module


def spread(parameter: Any, world: Any, elements: int) -> None:  # noqa: ANN401
    """What ZeRO-3 does to a parameter; two more elements fill its part up, and are no number."""
    parameter.ds_id = 0
    parameter.ds_numel = elements
    parameter.ds_tensor = torch.cat([torch.ones(elements), torch.full((2,), torch.nan)])
    parameter.ds_process_group = world
    parameter.data = torch.empty(0)


@pytest.fixture
def model(world: Any) -> nn.Linear:  # noqa: ANN401
    """6 elements, which are nowhere but in its part."""
    model = nn.Linear(3, 2, bias=False)
    spread(model.weight, world, 6)
    return model


def gradient(*values: float) -> list[torch.Tensor]:
    """As ZeRO-3 keeps one: with what fills it up."""
    return [torch.tensor([*values, 0.0, 0.0])]


@pytest.mark.parametrize("name", ["zero.stage3", "bf16_optimizer", "engine"])
@pytest.mark.parametrize(
    "classes", [(), ("DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer", "DeepSpeedEngine")], ids=len
)
def test_a_deepspeed_that_has_other_classes_is_no_matter(
    attach: Attach,
    world: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    classes: tuple[str, ...],
) -> None:
    module = types.ModuleType(f"deepspeed.runtime.{name}")
    for cls in classes:
        setattr(module, cls, type(cls, (), {}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    Ranks(model, 0, 2).of("grad", model.weight, model.weight)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    scope.step()
    assert sink.row(0, "grad", "(model)") is not None


def test_padding_is_no_part_of_a_parameter(stage3: Any, model: nn.Linear) -> None:  # noqa: ANN401
    assert local_part(model.weight).tolist() == [1.0] * 6
    assert full_sizes(model) == {id(model.weight): 6}


def test_a_step(attach: Attach, stage3: Any, model: nn.Linear) -> None:  # noqa: ANN401
    optimizer = stage3.DeepSpeedZeroOptimizer_Stage3([model.weight], scale=1024.0)
    scope, sink = attach(model, optimizer, activations_every=0, weights_every=1, updates_every=1)
    for step in range(2):
        values = (2048.0, 0.0, -1024.0, 0.0, 0.0, float("inf") if step else 0.0)
        optimizer.averaged_gradients[0] = gradient(*values)
        optimizer.step()
        scope.step()
    first, second = sink.records()
    row = sink.row(0, "grad", "(model)")
    assert row is not None
    assert row["count"] == 6
    assert row["absmax"] == 2.0, "without the loss scale"
    weight, moved = sink.row(0, "weight", "(model)"), sink.row(0, "update", "(model)")
    assert weight is not None
    assert moved is not None
    assert (weight["count"], weight["nans"], weight["sum"]) == (6, 0, 6.0)
    assert moved["sum"] == pytest.approx(-0.5)
    assert first.scalars["loss_scale"] == 1024.0
    assert first.scalars["grad_norm"] == pytest.approx(5**0.5)
    assert first.scalars["grad_norm/framework"] == pytest.approx(5**0.5)
    assert first.scalars["clip_coef"] == pytest.approx(5**-0.5, rel=1e-5)
    assert first.scalars["lr"] == 0.5
    assert (first.scalars["skipped"], second.scalars["skipped"]) == (0.0, 1.0)
    overflowing = sink.row(1, "grad", "(model)")
    assert overflowing is not None
    assert overflowing["infs"] == 1
    assert "grad_norm/framework" not in second.scalars, "infinite by decree"
    assert not any(name.startswith("swallowed") for name in first.scalars), "a copy in float32 loses nothing"
    assert scope.coverage["observed"] == 1


def test_optimizers_of_others_are_left_alone(attach: Attach, stage3: Any, world: Any, model: nn.Linear) -> None:  # noqa: ANN401
    other = nn.Linear(2, 2)
    spread(other.weight, world, 4)
    optimizer = stage3.DeepSpeedZeroOptimizer_Stage3([other.weight], scale=1.0)
    scope, sink = attach(model, activations_every=0)
    optimizer.averaged_gradients[0] = gradient(1.0, 1.0, 1.0, 1.0)
    optimizer.step()
    scope.step()
    assert sink.row(0, "grad", "(model)") is None
    assert "lr" not in sink.records()[0].scalars


def test_the_class_is_as_it_was_after_close(attach: Attach, stage3: Any, model: nn.Linear) -> None:  # noqa: ANN401
    step = stage3.DeepSpeedZeroOptimizer_Stage3.step
    scope, _ = attach(model)
    assert stage3.DeepSpeedZeroOptimizer_Stage3.step is not step
    scope.close()
    assert stage3.DeepSpeedZeroOptimizer_Stage3.step is step


def test_the_torch_optimizer_inside_is_not_the_one_to_pass(world: Any) -> None:  # noqa: ANN401
    model = nn.Linear(3, 2, bias=False)
    inside = torch.optim.SGD([torch.ones(8, requires_grad=True)], lr=0.5)
    spread(model.weight, world, 6)
    with pytest.raises(ValueError, match=r"pass what deepspeed\.initialize returned"):
        floatscope.watch(model, inside, run="r")


def test_stages_1_and_2_copy_weights_and_spread_gradients(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    model: Any = nn.Linear(2, 2)
    model.weight._hp_mapping, model.weight._dp_group = None, world
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    ranks = Ranks(model, 1, 2)
    assert ranks.of("weight", model.weight, model.weight) == (Placement("replica", 0), "")
    assert ranks.of("grad", model.weight, model.weight) == (Placement("shard"), "")
