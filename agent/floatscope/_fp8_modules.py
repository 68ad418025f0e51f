"""Known modules of other libraries that cast their operands, seen as ones that announce it.

Nothing is imported and no module is touched: a class can only be met when its library was imported. What is read of
each library is listed in docs/fp8-operands.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from floatscope._operands import CastsOperands, Operand, format_of

__all__ = ["NOTHING_ANNOUNCED", "ROWS_NOT_OBSERVED", "Announced", "BlockCast", "announced", "casts_operands"]

ROWS_NOT_OBSERVED = "scales of rows are not observed"
_BLOCKS_NOT_OBSERVED = "scales of blocks are not observed"
_VERSION_NOT_KNOWN = "casts are not observed: this version of its library is not known"
_FLOAT8_LINEAR = ("torchao.float8.float8_linear", "Float8Linear")
_MXFP8_LINEAR = ("torchao.prototype.moe_training.mxfp8_linear", "MXFP8Linear")
_TE_LINEAR = ("transformer_engine.pytorch.module.linear", "Linear")
_TE_LAYERNORM_LINEAR = ("transformer_engine.pytorch.module.layernorm_linear", "LayerNormLinear")
_TE_STATE = ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8")
"""Where ``get_fp8_torch_dtype`` is: in the first or, of an older source, in the second."""


class BlockCast(NamedTuple):
    """A cast in blocks of 32 along the last dimension, each with a power of two of its own."""

    format: str
    rounds_up: bool
    """Whether the block's amax stays at or below the format's max, or only its exponent does (OCP Microscaling)."""


class Announced(NamedTuple):
    """What a module says of the casts to come."""

    operands: Mapping[str, Operand]
    blocks: Mapping[str, BlockCast]
    """By kind, like ``operands``."""
    unseen: str = ""
    """What of them cannot be observed."""


NOTHING_ANNOUNCED = Announced({}, {})


def casts_operands(module: nn.Module) -> bool:
    """Whether ``announced`` knows the module."""
    return isinstance(module, CastsOperands) or _reader_of(module) is not None


def announced(module: nn.Module) -> Announced:
    """The casts that come next, by kind. No host synchronisation. Raises what the module's own announcement raises."""
    if isinstance(module, CastsOperands):
        return Announced(module.floatscope_operands(), {})
    reader = _reader_of(module)
    assert reader is not None, "casts_operands has answered"
    try:
        return reader(module)
    except (AttributeError, KeyError, IndexError):
        # What is read has no documented name: another version may call it otherwise.
        return Announced({}, {}, _VERSION_NOT_KNOWN)


def _is(module: nn.Module, where: tuple[str, str]) -> bool:
    library = sys.modules.get(where[0])
    known = vars(library).get(where[1]) if library is not None else None
    return isinstance(known, type) and isinstance(module, known)


def _reader_of(module: nn.Module) -> Callable[[Any], Announced] | None:
    return next((read for where, read in _READERS.items() if _is(module, where)), None)


def _float8_linear(module: Any) -> Announced:  # noqa: ANN401
    config = module.config
    casts = {"act_in": config.cast_config_input, "act_grad": config.cast_config_grad_output}
    # For FSDP the weight is a tensor that casts itself before it is gathered.
    if not config.enable_fsdp_float8_all_gather:
        casts["weight"] = config.cast_config_weight
    operands, unseen = {}, ""
    for kind, cast in casts.items():
        format_ = format_of(cast.target_dtype)
        if cast.scaling_type.name != "DYNAMIC" or format_ is None:
            continue
        if cast.scaling_granularity.name != "TENSORWISE":
            unseen = ROWS_NOT_OBSERVED
            continue
        operands[kind] = _dynamic(format_, power_of_two=bool(config.round_scales_to_power_of_2))
    return Announced(operands, {}, unseen)


def _mxfp8_linear(module: Any) -> Announced:  # noqa: ANN401
    cast = BlockCast("e4m3fn", rounds_up=module.scale_calculation_mode.name == "RCEIL")
    return Announced({}, {"act_in": cast, "weight": cast, "act_grad": cast})


def _te_linear(module: Any) -> Announced:  # noqa: ANN401
    return _te(module, ("act_in", "weight", "act_grad"))


def _te_layernorm_linear(module: Any) -> Announced:  # noqa: ANN401
    # What it casts is the output of its own norm, which no hook sees.
    return _te(module, ("weight", "act_grad"))


_TE_PLACES = {"act_in": ("scaling_fwd", 0), "weight": ("scaling_fwd", 1), "act_grad": ("scaling_bwd", 0)}
"""GEMM1_INPUT, GEMM1_WEIGHT and GRAD_OUTPUT1 of transformer_engine_torch."""
_TE_ROUNDING = {"act_in": "fp8_quant_fwd_inp", "weight": "fp8_quant_fwd_weight", "act_grad": "fp8_quant_bwd_grad"}


def _te(module: Any, kinds: tuple[str, ...]) -> Announced:  # noqa: ANN401
    meta, state = module.fp8_meta, _te_state()
    recipe = meta.get("recipe")
    if not module.fp8 or recipe is None or state is None:
        return Announced({}, {})
    weight = getattr(module, "weight", None)
    if module.primary_weights_in_fp8 or not isinstance(weight, torch.Tensor):
        kinds = tuple(kind for kind in kinds if kind != "weight")
    names = {known.__name__ for known in type(recipe).__mro__}
    formats = {kind: _te_format(state, recipe, forward=kind != "act_grad") for kind in kinds}
    if "DelayedScaling" in names:
        return Announced(
            {
                kind: Operand(format=format_, scale=meta[place].scale[number], scaling="delayed")
                for kind, format_ in formats.items()
                for place, number in (_TE_PLACES[kind],)
                if place in meta
            },
            {},
        )
    if "Float8CurrentScaling" in names:
        rounding = {kind: bool(getattr(recipe, _TE_ROUNDING[kind]).power_2_scale) for kind in kinds}
        operands = {kind: _dynamic(format_, power_of_two=rounding[kind]) for kind, format_ in formats.items()}
        return Announced(operands, {})
    if "MXFP8BlockScaling" in names:
        return Announced({}, {kind: BlockCast(format_, rounds_up=True) for kind, format_ in formats.items()})
    return Announced({}, {}, _BLOCKS_NOT_OBSERVED)


def _te_state() -> ModuleType | None:
    return next((state for name in _TE_STATE if (state := sys.modules.get(name)) is not None), None)


def _te_format(state: Any, recipe: object, *, forward: bool) -> str:  # noqa: ANN401
    # The fork for ROCm answers with the FNUZ dtypes on gfx94x.
    format_ = format_of(state.get_fp8_torch_dtype(recipe, forward))
    assert format_ is not None, "an 8-bit dtype of torch"
    return format_


def _dynamic(format_: str, *, power_of_two: bool) -> Operand:
    return Operand(format=format_, scale=None, scaling="dynamic", power_of_two=power_of_two)


_READERS = {
    _FLOAT8_LINEAR: _float8_linear,
    _MXFP8_LINEAR: _mxfp8_linear,
    _TE_LINEAR: _te_linear,
    _TE_LAYERNORM_LINEAR: _te_layernorm_linear,
}
