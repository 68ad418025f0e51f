"""Where the elements of tensors lie, and whether that is still so a step later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from floatscope._stats._reference import pieces

__all__ = ["Layouts", "spans"]

_COPIED = 1 << 24
"""Elements of a strided tensor that are copied at once."""


def spans(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """``tensor`` as parts whose elements follow one another in memory, in some order.

    A dense tensor is one part, whatever the order of its strides. The elements of a really strided one are copied,
    16M of them at a time, so that temporary memory stays bounded; no part shares memory with the tensor then. At least
    one part, which may be empty. No host synchronisation.
    """
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.numel() == 0 or _dense(tensor):
        yield tensor
    else:
        yield from (piece.contiguous() for piece in pieces(tensor, _COPIED))


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).is_contiguous()
    )


class Layouts:
    """What a launch depends on: addresses, dtypes, sizes and strides of ``tensors``, none of which is kept alive.

    All four are compared. The allocator gives an address again to whatever is allocated next: to an activation of a
    longer sequence, or to a gradient that is an expanded scalar, and reading that as it was before would read past its
    end. The check must also be cheap, since it is the largest part of what a step costs the host: of 292 tensors,
    reading the four attributes in Python takes 90 us, torch's own guards (what compiled code checks its inputs with)
    and one comparison of all addresses take 20.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._addresses = list(map(torch.Tensor.data_ptr, tensors))
        self._places = list(range(len(tensors)))
        self._guards = _guards(tensors)
        self._described = _described(tensors) if self._guards is None else None

    def are_those_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether nothing of that has changed. False is always safe: then everything is laid out anew."""
        if len(tensors) != len(self._addresses):
            return False
        if _same_addresses is not None:
            if not _same_addresses(tensors, self._addresses, self._places):
                return False
        elif list(map(torch.Tensor.data_ptr, tensors)) != self._addresses:
            return False
        if self._guards is None:
            return _described(tensors) == self._described
        return bool(self._guards.check(*tensors))


def _guards(tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 (private, and so not the same in every torch)
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        make: Any = torch._C._dynamo.guards.TensorGuards
        return make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    except (AttributeError, TypeError):
        return None


def _described(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, torch.Size, tuple[int, ...]]]:
    return [(t.dtype, t.shape, t.stride()) for t in tensors]


# Builds for CPU lack it.
_same_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
