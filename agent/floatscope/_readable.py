"""Which elements of a tensor can be measured, and why some cannot."""

from __future__ import annotations

import sys

import torch

from floatscope._operands import format_of
from floatscope._stats._bounds import has_memory
from floatscope._zero import own_elements

__all__ = ["PLAIN", "local_part", "stored_format", "stored_values", "why_not"]

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types whose tensors keep their elements in memory of their own."""
_formats: dict[torch.dtype, str | None] = {}


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of ``tensor``. No collective operation; one of the training's that is under way is waited for,
    as what uses the tensor next does."""
    # Importing DTensor takes over a second; without the import there is none.
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        tensor = tensor.to_local()
    if type(tensor) in PLAIN:
        if "deepspeed" in sys.modules:
            own = own_elements(tensor)
            return tensor if own is None else own
        return tensor
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and isinstance(tensor, collectives.AsyncCollectiveTensor):
        # Without memory of its own until then. On a device the stream waits for it, not the host.
        waited: torch.Tensor = tensor.trigger_wait()
        return waited
    return tensor


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Of a sparse tensor the elements that it stores.

    Rows of a gradient that occur twice are not added up first: coalescing would wait for the device.
    """
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    return tensor.values() if tensor.layout in _COMPRESSED else tensor


def stored_format(dtype: torch.dtype) -> str | None:
    """Name of the format that ``dtype`` stores; None for a dtype that is not observed."""
    if dtype not in _formats:
        _formats[dtype] = format_of(dtype)
    return _formats[dtype]


def why_not(tensor: torch.Tensor) -> str:
    """Why ``tensor`` cannot be measured; empty when it can."""
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no values"
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"{'a nested tensor' if tensor.is_nested else tensor.layout}"
    if type(tensor) not in PLAIN and (hasattr(tensor, "__tensor_flatten__") or _is_nowhere(tensor)):
        return f"{type(tensor).__name__} keeps its values in other tensors"  # and has no memory of its own
    if stored_format(tensor.dtype) is None:
        return f"{tensor.dtype} is no format that is known"
    if not has_memory(tensor):
        return "its memory was given away, as trainings do that offload it"
    return ""


def _is_nowhere(tensor: torch.Tensor) -> bool:
    # A fake tensor has a storage without memory, and warns of being asked for its address.
    return tensor.numel() > 0 and (tensor.untyped_storage().device.type == "meta" or tensor.data_ptr() == 0)
