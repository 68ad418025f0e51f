"""Weak references to tensors that let ``torch.utils.swap_tensors`` do its work.

It exchanges what two tensors hold, and refuses where one has a weak reference. ``Module.to`` and its relatives do so
to parameters that are DTensors or other subclasses, ``load_state_dict`` and ``to`` to all of them where
``torch.__future__.set_swap_module_params_on_conversion`` says so. The tensor objects stay the same, so ours only have
to be away meanwhile.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from floatscope._replacements import WhileUsed, replace

__all__ = ["TensorRef", "step_aside"]


class _Reference(weakref.ref[torch.Tensor]):
    """A weak reference that can be found by its tensor, and knows for whom it is."""

    __slots__ = ("owner",)
    owner: weakref.ref[TensorRef]


class TensorRef:
    """``get()`` is the tensor, or None when it is gone.

    ``changed`` is called then, and when another tensor's content was put into this one.
    """

    __slots__ = ("__weakref__", "_changed", "get")

    get: Callable[[], torch.Tensor | None]

    def __init__(self, tensor: torch.Tensor, changed: Callable[[], None] | None = None) -> None:
        self._changed = changed
        self._hold(tensor)

    def _hold(self, tensor: torch.Tensor) -> None:
        changed = self._changed
        reference = _Reference(tensor) if changed is None else _Reference(tensor, lambda _: changed())
        reference.owner = weakref.ref(self)
        self.get = reference

    def leave(self) -> None:
        """Refer to nothing."""
        self.get = _nothing

    def come_back(self, tensor: torch.Tensor) -> None:
        """Refer to ``tensor`` again, which holds something else now."""
        self._hold(tensor)
        if self._changed is not None:
            self._changed()


def _swapping() -> Iterator[Callable[[], None]]:
    yield replace(torch.utils, "swap_tensors", _stepping_aside(torch.utils.swap_tensors))


step_aside = WhileUsed(_swapping).use
"""From now on references of ours are away while tensors are swapped; returns the undoing."""


def _stepping_aside(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def swap_tensors(*tensors: Any, **named: Any) -> Any:  # noqa: ANN401
        away = [pair for tensor in (*tensors, *named.values()) for pair in _sent_away(tensor)]
        try:
            return original(*tensors, **named)
        finally:
            for reference, tensor in away:
                reference.come_back(tensor)

    return swap_tensors


def _sent_away(tensor: Any) -> list[tuple[TensorRef, Any]]:  # noqa: ANN401
    away = []
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, _Reference) and (owner := reference.owner()) is not None:
            owner.leave()
            away.append((owner, tensor))
    return away


def _nothing() -> None:
    pass
