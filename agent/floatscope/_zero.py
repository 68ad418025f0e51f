"""What a rank has of parameters that DeepSpeed's ZeRO spreads over ranks. No collective operation.

DeepSpeed is not imported: its parameters are known by the attributes that it gives them, which are the ones that
``deepspeed.utils.safe_get_local_fp32_param`` and its relatives go by.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["group_of", "is_spread", "own_elements", "own_fragment"]


def own_elements(parameter: Any) -> torch.Tensor | None:  # noqa: ANN401 (attributes are DeepSpeed's)
    """This rank's part of a parameter that ZeRO-3 has emptied, flat, without what fills the last part up; else None."""
    part = getattr(parameter, "ds_tensor", None)
    if not isinstance(part, torch.Tensor):
        return None
    return _real(parameter, part)


def _real(parameter: Any, part: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Parts are of one size: those at the end may have fewer elements, or none, and padding."""
    size = parameter.ds_tensor.numel()
    left = max(parameter.ds_numel - size * torch.distributed.get_rank(parameter.ds_process_group), 0)
    return part if left >= size else part.view(-1)[:left]


def own_fragment(parameter: Any, kept: torch.Tensor | None) -> torch.Tensor | None:  # noqa: ANN401
    """The elements of the gradient of ``parameter`` that are updated on this rank; None where nothing is there yet.

    ZeRO-3 has ``kept`` them in a list of its optimizer; with stages 1 and 2 the parameter knows where they are.
    """
    if hasattr(parameter, "ds_tensor"):
        return None if kept is None else _real(parameter, kept)
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        # Updated on other ranks alone, or not spread at all.
        return None if hasattr(parameter, "_hp_mapping") else parameter.grad
    try:
        fragment: torch.Tensor = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    except (KeyError, ValueError):
        return None  # which is its answer before a backward pass
    address = mapping.lp_fragment_address
    if fragment.numel() != address.numel:
        # One optimizer keeps the whole reduced gradient on each rank.
        fragment = fragment.view(-1).narrow(0, address.start, address.numel)
    return fragment


def is_spread(parameter: object) -> bool:
    """Whether ZeRO updates a part of ``parameter`` on each rank."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def group_of(parameter: Any) -> tuple[list[int], bool]:  # noqa: ANN401
    """The ranks that share ``parameter``, and whether each has all elements of it and not only its part."""
    whole = not hasattr(parameter, "ds_id")
    group = parameter._dp_group if whole else parameter.ds_process_group
    return torch.distributed.get_process_group_ranks(group), whole
