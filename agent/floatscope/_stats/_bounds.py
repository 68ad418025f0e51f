"""Whether a tensor can be read by its address. Everything that does so asks first: a fault ends the process."""

from __future__ import annotations

import torch

__all__ = ["has_memory", "require_device", "require_memory"]

_ADDRESSED = ("cpu", "cuda")
"""Devices whose memory is read by address; of others a storage may say nothing."""


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the storage of a strided ``tensor`` holds every element of it.

    Trainings resize storages, to nothing as a rule, to save memory, and torch's own operations do not look either.
    """
    elements = tensor.numel()
    if not elements or tensor.device.type not in _ADDRESSED:
        return True
    if not tensor.data_ptr():
        return False  # a subclass that keeps its elements in other tensors tells of a storage all the same
    reach = elements
    if not tensor.is_contiguous():
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + reach) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def require_memory(tensor: torch.Tensor) -> None:
    """``ValueError`` when it does not."""
    if not has_memory(tensor):
        raise ValueError("a tensor reaches beyond its storage, which was resized")


def require_device(tensor: torch.Tensor, device: torch.device) -> None:
    """``ValueError`` when ``tensor`` is on another device, where its address means something else, or nothing.

    A training may move some of its layers between two steps; their parameters and gradients stay the same objects.
    """
    if tensor.device != device:
        raise ValueError(f"a tensor is on {tensor.device} and not, as before, on {device}")
