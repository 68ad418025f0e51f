"""What a rank has of parameters that DeepSpeed's ZeRO spreads over ranks. No collective operation.

DeepSpeed is not imported: its parameters are known by the attributes that it gives them, which are the ones that
``deepspeed.utils.safe_get_local_fp32_param`` and its relatives go by.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["group_of", "is_spread", "own_elements", "own_fragment", "real_part"]


def own_elements(parameter: Any) -> torch.Tensor | None:  # noqa: ANN401 (attributes are DeepSpeed's)
    """This rank's part of a parameter that ZeRO-3 has emptied, flat, without what fills the last part up; else None."""
    part = getattr(parameter, "ds_tensor", None)
    return real_part(parameter, part) if isinstance(part, torch.Tensor) else None


def real_part(parameter: Any, part: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """``part``, of ``parameter`` or its gradient, without padding.

    ZeRO-3 makes parts of one size: those at the end may have fewer elements of the parameter, or none.
    """
    if not hasattr(parameter, "ds_tensor"):
        return part
    size = parameter.ds_tensor.numel()
    left = max(parameter.ds_numel - size * torch.distributed.get_rank(parameter.ds_process_group), 0)
    return part if left >= size else part.view(-1)[:left]


def own_fragment(parameter: Any) -> torch.Tensor | None:  # noqa: ANN401
    """The elements of the gradient that are updated on this rank, as the parameter itself knows them; None where it
    does not, or there is none yet."""
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        # Updated on other ranks alone, or not spread at all.
        return None if hasattr(parameter, "_hp_mapping") else parameter.grad
    try:
        fragment: torch.Tensor = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    except (LookupError, ValueError):
        return None  # as before a backward pass
    address = mapping.lp_fragment_address
    if fragment.numel() == parameter.numel():
        # BF16_Optimizer keeps the whole reduced gradient on each rank.
        fragment = fragment.view(-1).narrow(0, address.start, address.numel)
    return fragment if fragment.numel() == address.numel else None


def is_spread(parameter: object) -> bool:
    """Whether ZeRO updates a part of ``parameter`` on each rank."""
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def group_of(parameter: Any) -> tuple[list[int], bool]:  # noqa: ANN401
    """The ranks that share ``parameter``, and whether each has all elements of it and not only its part."""
    whole = not hasattr(parameter, "ds_id")
    group = parameter._dp_group if whole else parameter.ds_process_group
    return torch.distributed.get_process_group_ranks(group), whole
