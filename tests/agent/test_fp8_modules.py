"""Modules of other libraries that cast their operands: torchao as it is, Transformer Engine by a double."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import sys
import types
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from floatscope import Operand, Scope
from floatscope._blocks import block_figures
from floatscope._fp8_modules import ROWS_NOT_OBSERVED, announced, casts_operands
from floatscope._memory import MemorySink
from floatscope._operands import scale_from_amax
from tests.needs import needs

Attach = Callable[..., tuple[Scope, MemorySink]]


@pytest.fixture
def torchao() -> Any:  # noqa: ANN401
    """``torchao.float8``; its extensions for GPUs that this machine lacks complain when they load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchao.prototype.moe_training.mxfp8_linear")
            return importlib.import_module("torchao.float8")
        except ImportError:
            needs(None, "torchao")


def float8_linear(torchao: Any, **options: object) -> nn.Module:  # noqa: ANN401
    linear = nn.Linear(32, 16, bias=False)
    with torch.no_grad():
        linear.weight.mul_(3.0)
    config = torchao.Float8LinearConfig(emulate=True, **options)
    converted = torchao.float8_linear_utils.Float8Linear.from_float(linear, config)
    assert isinstance(converted, nn.Module)
    return converted


def one_step(attach: Attach, model: nn.Module, x: torch.Tensor) -> tuple[Any, Scope]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scope, sink = attach(model, optimizer, activations_every=1, weights_every=1, histograms_every=1)
    model(x).square().sum().backward()
    optimizer.step()
    scope.step()
    (record,) = sink.records()
    return record, scope


def fields_of(record: Any, kind: str) -> dict[str, float]:  # noqa: ANN401
    (rows,) = [rows for rows in record.summaries if rows.kind == kind]
    return {name: float(values[0]) for name, values in rows.fields.items()}


@pytest.mark.parametrize("power_of_two", [False, True])
def test_torchao_float8_linear(attach: Attach, torchao: Any, power_of_two: bool) -> None:  # noqa: ANN401
    utils: Any = importlib.import_module("torchao.float8.float8_scaling_utils")
    made: list[float] = []
    tensor_to_scale = utils.tensor_to_scale

    def noted(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
        scale: torch.Tensor = tensor_to_scale(tensor, *args, **options)
        made.append(float(scale))
        return scale

    model = nn.Sequential(float8_linear(torchao, round_scales_to_power_of_2=power_of_two))
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    utils.tensor_to_scale = noted
    try:
        record, scope = one_step(attach, model, x)
    finally:
        utils.tensor_to_scale = tensor_to_scale
    used = dict(zip(("act_in", "weight", "act_grad"), made, strict=False))
    for kind, scale in used.items():
        fields = fields_of(record, kind)
        assert fields["scale"] == pytest.approx(scale, rel=1e-6)
        limit = 57344.0 if kind == "act_grad" else 448.0
        assert limit / 2 < fields["absmax"] * fields["scale"] <= limit * (1 + 1e-6)
    (layer,) = record.layers
    assert {(o.kind, o.format, o.role, o.scaling) for o in layer.operands if o.role == "cast"} == {
        ("act_in", "e4m3fn", "cast", "dynamic"),
        ("weight", "e4m3fn", "cast", "dynamic"),
        ("act_grad", "e5m2", "cast", "dynamic"),
    }
    assert ROWS_NOT_OBSERVED not in scope.coverage["reasons"]


def test_torchao_says_which_e4m3(torchao: Any) -> None:  # noqa: ANN401
    cast = torchao.CastConfig(target_dtype=torch.float8_e4m3fnuz)
    operands = announced(float8_linear(torchao, cast_config_input=cast)).operands
    assert (operands["act_in"].format, operands["weight"].format) == ("e4m3fnuz", "e4m3fn")


def test_torchao_scales_of_rows(attach: Attach, torchao: Any) -> None:  # noqa: ANN401
    config = dataclasses.replace(torchao.Float8LinearConfig.from_recipe_name("rowwise"), emulate=True)
    row_wise = torchao.float8_linear_utils.Float8Linear.from_float(nn.Linear(32, 16), config)
    record, scope = one_step(attach, nn.Sequential(row_wise), torch.randn(8, 32))
    assert scope.coverage["reasons"][ROWS_NOT_OBSERVED] == ["0"]
    assert fields_of(record, "act_in")["scale"] == 1.0
    assert all(operand.role == "stored" for layer in record.layers for operand in layer.operands)


@pytest.mark.parametrize("mode", ["FLOOR", "RCEIL"])
def test_torchao_scales_of_blocks(torchao: Any, mode: str) -> None:  # noqa: ANN401
    linear = importlib.import_module("torchao.prototype.moe_training.mxfp8_linear")
    mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    scaling_mode = mx.ScaleCalculationMode[mode]
    model = nn.Sequential(
        linear.MXFP8Linear(
            64, 32, scale_calculation_mode=scaling_mode, kernel_preference=linear.KernelPreference.EMULATED
        )
    )
    x = torch.randn(32, 64) * torch.exp(4 * torch.randn(32, 64))
    with torch.no_grad():
        casts = announced(model[0]).blocks
        exponents, elements = mx.to_mx(x, torch.float8_e4m3fn, 32, scaling_mode)
    figures = block_figures(x, casts["act_in"].format, rounds_up=casts["act_in"].rounds_up)
    assert figures is not None
    powers = exponents.view(torch.uint8).to(torch.int32) - 127
    flushed = (elements.to(torch.float32) == 0).view(-1, 32).float().mean(1)
    assert figures.tolist() == pytest.approx([int(powers.amin()), int(powers.amax()), float(flushed.amax())])
    assert sorted(casts) == ["act_grad", "act_in", "weight"]


def test_torchao_casts_of_the_weight_for_fsdp_are_left_out(torchao: Any) -> None:  # noqa: ANN401
    module = float8_linear(torchao, enable_fsdp_float8_all_gather=True)
    assert sorted(announced(module).operands) == ["act_grad", "act_in"]


class _Format(enum.Enum):
    E4M3 = "e4m3"
    HYBRID = "hybrid"


class DelayedScaling:
    fp8_format = _Format.HYBRID


class Float8CurrentScaling:
    fp8_format = _Format.HYBRID
    fp8_quant_fwd_inp = SimpleNamespace(power_2_scale=True)
    fp8_quant_fwd_weight = SimpleNamespace(power_2_scale=False)
    fp8_quant_bwd_grad = SimpleNamespace(power_2_scale=False)


class MXFP8BlockScaling:
    fp8_format = _Format.E4M3


class NVFP4BlockScaling:
    fp8_format = _Format.E4M3


class TELinear(nn.Module):
    """What is read of ``transformer_engine.pytorch.Linear``, named as in its public source and the fork's for ROCm."""

    def __init__(self, recipe: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32, generator=torch.Generator().manual_seed(2)))
        self.fp8 = False
        self.primary_weights_in_fp8 = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "fp8_group": None, "num_gemms": 1}
        self.recipe = recipe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.fp8:
            self.fp8 = True
            self.fp8_meta["recipe"] = self.recipe
            self.fp8_meta["scaling_fwd"] = SimpleNamespace(
                scale=torch.tensor([8.0, 16.0, 1.0]), amax_history=torch.zeros(4, 3)
            )
            self.fp8_meta["scaling_bwd"] = SimpleNamespace(
                scale=torch.tensor([4096.0, 1.0]), amax_history=torch.zeros(4, 2)
            )
        return nn.functional.linear(x, self.weight)


class TELayerNormLinear(TELinear):
    pass


@pytest.fixture(params=["e4m3fn", "e4m3fnuz"])
def transformer_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The modules that the classes are found by, as on a chip of OCP or of FNUZ formats."""
    fnuz = request.param.endswith("fnuz")
    dtypes = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz) if fnuz else (torch.float8_e4m3fn, torch.float8_e5m2)

    def get_fp8_torch_dtype(recipe: Any, fprop_tensor: bool = True) -> torch.dtype:  # noqa: ANN401
        return dtypes[0] if recipe.fp8_format is _Format.E4M3 or fprop_tensor else dtypes[1]

    where = "transformer_engine.pytorch"
    parts: dict[str, dict[str, object]] = {
        f"{where}.module.linear": {"Linear": TELinear},
        f"{where}.module.layernorm_linear": {"LayerNormLinear": TELayerNormLinear},
        f"{where}.fp8" if fnuz else f"{where}.quantization": {"get_fp8_torch_dtype": get_fp8_torch_dtype},
    }
    for name, content in parts.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return str(request.param)


def warm(module: TELinear) -> TELinear:
    module(torch.zeros(1, 32))
    return module


def test_transformer_engine_delayed_scaling(attach: Attach, transformer_engine: str) -> None:
    model = nn.Sequential(warm(TELinear(DelayedScaling())))
    record, _ = one_step(attach, model, torch.randn(8, 32))
    suffix = "fnuz" if transformer_engine.endswith("fnuz") else ""
    assert {kind: fields_of(record, kind)["scale"] for kind in ("act_in", "weight", "act_grad")} == {
        "act_in": 8.0,
        "weight": 16.0,
        "act_grad": 4096.0,
    }
    (layer,) = record.layers
    assert {(o.kind, o.format, o.scaling) for o in layer.operands if o.role == "cast"} == {
        ("act_in", transformer_engine, "delayed"),
        ("weight", transformer_engine, "delayed"),
        ("act_grad", f"e5m2{suffix}", "delayed"),
    }


def test_transformer_engine_current_scaling(transformer_engine: str) -> None:
    casts = announced(warm(TELinear(Float8CurrentScaling()))).operands
    assert casts["act_in"] == Operand(format=transformer_engine, scale=None, scaling="dynamic", power_of_two=True)
    assert (casts["weight"].power_of_two, casts["act_grad"].format[:4]) == (False, "e5m2")


@pytest.mark.usefixtures("transformer_engine")
def test_transformer_engine_when_nothing_is_cast() -> None:
    module = TELinear(DelayedScaling())
    assert casts_operands(module)
    assert not announced(module).operands
    warm(module).primary_weights_in_fp8 = True
    assert sorted(announced(module).operands) == ["act_grad", "act_in"]
    assert sorted(announced(warm(TELayerNormLinear(DelayedScaling()))).operands) == ["act_grad", "act_in", "weight"]


@pytest.mark.usefixtures("transformer_engine")
def test_scales_of_other_blocks_are_said_to_be_missing(attach: Attach) -> None:
    _, scope = one_step(attach, nn.Sequential(warm(TELinear(NVFP4BlockScaling()))), torch.randn(8, 32))
    assert scope.coverage["reasons"]["scales of blocks are not observed"] == ["0"]


@pytest.mark.usefixtures("transformer_engine")
@pytest.mark.parametrize("missing", ["fp8_meta", "primary_weights_in_fp8"])
def test_a_version_with_other_names_costs_its_casts_alone(attach: Attach, missing: str) -> None:
    module = warm(TELinear(DelayedScaling()))
    delattr(module, missing)
    record, scope = one_step(attach, nn.Sequential(module), torch.randn(8, 32))
    reason = "casts are not observed: this version of its library is not known"
    assert scope.coverage["reasons"][reason] == ["0"]
    assert {layer.name for layer in record.layers} == {"0"}
    assert not any(operand.role == "cast" for layer in record.layers for operand in layer.operands)


def test_block_scales(attach: Attach, transformer_engine: str) -> None:
    x = torch.full((4, 32), 1.0)
    x[1] = 2.0**-20
    x[2, 0] = 1e4
    record, _ = one_step(attach, nn.Sequential(warm(TELinear(MXFP8BlockScaling()))), x)
    of_input = {name.rpartition("/")[2]: v for name, v in record.scalars.items() if name.startswith("blocks/act_in/0/")}
    # 448 is 1.75 * 2**8, 240 is 1.875 * 2**7; 1e4 / 448 = 22.3, 1e4 / 240 = 41.7, rounded up to powers of two.
    octave = 1.0 if transformer_engine.endswith("fnuz") else 0.0
    assert of_input == {"exponent_min": -28.0 + octave, "exponent_max": 5.0 + octave, "worst_flushed": 0.0}
    assert {name.split("/")[1] for name in record.scalars if name.startswith("blocks/")} == {
        "act_in",
        "weight",
        "act_grad",
    }


def test_modules_of_nobody() -> None:
    assert not casts_operands(nn.Linear(2, 2))
    assert not casts_operands(nn.ReLU())


def test_scales_from_amax() -> None:
    assert scale_from_amax("e4m3fn", 3.0, power_of_two=False) == 448 / 3
    assert scale_from_amax("e4m3fn", 3.0, power_of_two=True) == 128.0
    assert scale_from_amax("e4m3fn", 3.5, power_of_two=True) == 128.0
    assert scale_from_amax("e5m2", 0.0, power_of_two=False) == 1.0
    assert math.isfinite(scale_from_amax("e5m2", 2.0**-149, power_of_two=True))


@pytest.mark.parametrize("scaling", ["none", "static", "delayed"])
def test_a_scale_of_this_tensor_is_dynamic(scaling: str) -> None:
    with pytest.raises(ValueError, match="from this tensor's amax"):
        Operand(format="e4m3fn", scale=None, scaling=scaling)
    with pytest.raises(ValueError, match="this one is given"):
        Operand(format="e4m3fn", scale=2.0, scaling="dynamic", power_of_two=True)
