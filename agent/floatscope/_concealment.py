"""What copies, pickles and scripts of a watched module are made of: everything but the hooks of ours.

Copying and pickling ask ``__getstate__`` for what a module consists of. Scripting compiles the hooks that it finds
on a module, and takes only those that are plain functions. ``make_graphed_callables`` refuses a module with a hook,
though it minds no hook on the modules inside.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from floatscope._replacements import WhileUsed, replace

__all__ = ["ROW_ATTRIBUTES", "Unseen", "conceal"]

_TABLES = ("_forward_hooks", "_forward_pre_hooks")
ROW_ATTRIBUTES = {
    "act": ("_floatscope_words", "_floatscope_hist"),
    "act_in": ("_floatscope_in_words", "_floatscope_in_hist"),
    "act_grad": ("_floatscope_grad_words", "_floatscope_grad_hist"),
}
"""By kind."""
_ROW_NAMES = tuple(name for names in ROW_ATTRIBUTES.values() for name in names)
"""Attributes of a module that hold the row which compiled code writes."""


class Unseen:
    """Base of the hooks that stay out of copies, pickles and scripts."""

    __slots__ = ()


def _concealing() -> Iterator[Callable[[], None]]:
    yield replace(nn.Module, "__getstate__", _shown_state(nn.Module.__getstate__))
    recursive = torch.jit._recursive
    yield replace(recursive, "create_script_module", _scripting(recursive.create_script_module))
    graphing = _graphing(torch.cuda.graphs.make_graphed_callables)
    for owner in (torch.cuda.graphs, torch.cuda):
        yield replace(owner, "make_graphed_callables", graphing)


conceal = WhileUsed(_concealing).use
"""Keep hooks that are ``Unseen`` out of what is made from modules; returns the undoing."""


def _shown_state(inherited: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    def __getstate__(module: nn.Module) -> Any:  # noqa: ANN401, N807 (what the interpreter's own gives: a dict or a pair)
        state = inherited(module)
        attributes = state[0] if isinstance(state, tuple) else state
        if not isinstance(attributes, dict):
            return state
        shown = {name: _without_ours(attributes[name]) for name in _TABLES if _has_ours(attributes.get(name))}
        if not shown:
            return state
        # Who has a row has a hook of ours as well.
        shown = {name: value for name, value in (attributes | shown).items() if name not in _ROW_NAMES}
        return (shown, *state[1:]) if isinstance(state, tuple) else shown

    return __getstate__


def _has_ours(hooks: Any) -> bool:  # noqa: ANN401 (whatever a module keeps under that name)
    return isinstance(hooks, dict) and any(isinstance(hook, Unseen) for hook in hooks.values())


def _without_ours(hooks: dict[int, Any]) -> OrderedDict[int, Any]:
    return OrderedDict((key, hook) for key, hook in hooks.items() if not isinstance(hook, Unseen))


def _scripting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_script_module(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with _taken_off(list(nn_module.modules())):
            return original(nn_module, *args, **kwargs)

    return create_script_module


def _graphing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        given = callables if isinstance(callables, tuple) else (callables,)
        with _taken_off([module for module in given if isinstance(module, nn.Module)]):
            return original(callables, *args, **kwargs)

    return make_graphed_callables


@contextmanager
def _taken_off(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Without what is ours on ``modules``; afterwards each hook is back in its old place."""
    tables = [m.__dict__[name] for m in modules for name in _TABLES if _has_ours(m.__dict__.get(name))]
    whole = [list(hooks.items()) for hooks in tables]
    attributes = [m.__dict__ for m in modules]
    rows = [(own, name, own.pop(name)) for own in attributes for name in _ROW_NAMES if name in own]
    for hooks in tables:
        shown = _without_ours(hooks)
        hooks.clear()
        hooks.update(shown)
    try:
        yield
    finally:
        for own, name, tensor in rows:
            own[name] = tensor
        for hooks, items in zip(tables, whole, strict=True):
            added = [(key, hook) for key, hook in hooks.items() if key not in dict(items)]
            hooks.clear()
            hooks.update([*items, *added])
