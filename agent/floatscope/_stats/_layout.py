"""Where the elements of tensors lie, and whether that is still so a step later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from floatscope._stats._bounds import require_memory
from floatscope._stats._reference import pieces

__all__ = ["Layouts", "in_place", "spans"]

_COPIED = 1 << 24
"""Elements of a strided tensor that are copied at once."""
_REACHED = 16
"""Addresses kept for one tensor."""


def spans(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """``tensor`` as parts whose elements follow one another in memory, in some order.

    A dense tensor is one part, whatever the order of its strides. The elements of a really strided one are copied,
    16M of them at a time, so that temporary memory stays bounded; no part shares memory with the tensor then. At least
    one part, which may be empty. No host synchronisation. ``ValueError`` for a tensor whose memory was given away.
    """
    require_memory(tensor)
    if in_place(tensor):
        yield tensor
    else:
        yield from (piece.contiguous() for piece in pieces(tensor.resolve_neg(), _COPIED))


def in_place(tensor: torch.Tensor) -> bool:
    """Whether memory holds the elements of ``tensor`` as they are, one after the other, whatever their order."""
    if tensor.is_neg():
        return False
    return (
        tensor.is_contiguous()
        or tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True)).is_contiguous()
    )


class Layouts:
    """What a launch depends on: addresses, devices, dtypes, sizes and strides of ``tensors``, which are not kept alive.

    All are compared. The allocator gives an address again to whatever is allocated next: to an activation of a
    longer sequence, or to a gradient that is an expanded scalar, and reading that as it was before would read past its
    end. Gradients are no exception: autograd puts dense ones of the parameter's dtype and shape into ``.grad``, but
    anybody may assign an expanded, strided or negated tensor, at the address that the one before had.

    This is the largest part of what a step costs the host. Of 292 tensors, torch's own guards (what compiled code
    checks its inputs with) take as long as reading two attributes in Python.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._listed = list(map(torch.Tensor.data_ptr, tensors))
        self.addresses = np.array(self._listed, dtype=np.uint64)
        """Another array whenever one of them is another."""
        self._reached = np.repeat(self.addresses[:, None], _REACHED, axis=1)
        """Of each tensor the addresses at which there was memory for all of it, the oldest replaced first."""
        self._replaced = 0
        self._guards = _guards(tensors)
        self._described = None if self._guards is not None else _described(tensors)

    def are_those_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether nothing of that has changed. False is always safe: then everything is laid out anew."""
        return list(map(torch.Tensor.data_ptr, tensors)) == self._listed and self._are_alike(tensors)

    def follow(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether nothing but addresses has changed; then ``addresses`` are those of ``tensors``.

        The allocator gives a gradient one of a few addresses, and another one in most steps. ``ValueError`` for a
        tensor whose memory was given away.
        """
        listed = list(map(torch.Tensor.data_ptr, tensors))
        if not self._are_alike(tensors):
            return False
        if listed != self._listed:
            addresses = np.array(listed, dtype=np.uint64)
            # To ask again at an address that was good before would take longer than all the rest.
            new = (self._reached != addresses[:, None]).all(1)
            if new.any():
                for index in new.nonzero()[0]:
                    require_memory(tensors[index])
                self._reached[new, self._replaced % _REACHED] = addresses[new]
                self._replaced += 1
            self._listed, self.addresses = listed, addresses
        return True

    def _are_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self._guards is not None:
            return bool(self._guards.check(*tensors))
        return self._described is None or _described(tensors) == self._described


def _guards(tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 (private, and so not the same in every torch)
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        make: Any = torch._C._dynamo.guards.TensorGuards
        return make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    except (AttributeError, TypeError):
        return None


def _described(tensors: Sequence[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(t.dtype, t.device, t.shape, t.stride(), t.is_neg()) for t in tensors]
