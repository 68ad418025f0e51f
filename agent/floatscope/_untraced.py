"""Takes hooks of ours out of sight while torch.compile traces: a program is compiled as if nobody watched.

In a trace they would do nothing, but the compiled code would check at each call that they are still there, and be
compiled anew when they are gone. What is compiled without hooks takes no notice of any that a module has later.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch import nn

from floatscope._concealment import Unseen
from floatscope._guard import Guard

__all__ = ["UntracedHooks", "run_untraced"]

_hiding = Guard("hooks were kept out of a trace")
_TABLES = ("_forward_hooks", "_forward_pre_hooks")
_ALL_TABLES = (*_TABLES, "_backward_hooks", "_backward_pre_hooks")


class UntracedHooks:
    """Follows the compilations of the process; for the hooks of ours on ``modules``, which are held weakly."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [weakref.ref(module) for module in modules]
        self._hidden: list[tuple[dict[str, Any], str, OrderedDict[int, Any], OrderedDict[int, Any]]] = []
        self._handler: Any = None
        self._callbacks: tuple[Any, ...] = ()

    def install(self) -> None:
        """Have torch say when a compilation begins and ends.

        An optimizer has imported the compiler, however little of it is used. Without it, or after
        ``torch.compiler.reset()``, which forgets what it was to tell, hooks are traced.
        """
        if (callback := sys.modules.get("torch._dynamo.callback")) is not None:
            self._handler = callback.callback_handler
            # Not to be traced themselves: they are called while torch holds the lock that a compilation takes.
            self._callbacks = tuple(map(torch._dynamo.disable, (self._hide, self._show)))
            self._handler.register_start_callback(self._callbacks[0])
            self._handler.register_end_callback(self._callbacks[1])

    def remove(self) -> None:
        """Stop following."""
        if self._handler is None:
            return
        for callbacks, ours in zip(
            (self._handler.start_callbacks, self._handler.end_callbacks), self._callbacks, strict=True
        ):
            if ours in callbacks:
                callbacks.remove(ours)
        self._show()

    def _hide(self, *_: object) -> None:
        with _hiding:
            if self._hidden or not torch._dynamo.config.skip_nnmodule_hook_guards or _hooks_on_all_modules():
                return
            for reference in self._modules:
                if (module := reference()) is not None:
                    self._hide_on(module.__dict__)

    def _hide_on(self, own: dict[str, Any]) -> None:
        # Where there are hooks of others, all are looked at, and checked later: then nothing may be missing.
        if not all(isinstance(hook, Unseen) for name in _ALL_TABLES for hook in own[name].values()):
            return
        for name in _TABLES:
            if own[name]:
                # Another table, not another content: somebody may be going through this one.
                nothing: OrderedDict[int, Any] = OrderedDict()
                self._hidden.append((own, name, own[name], nothing))
                own[name] = nothing

    def _show(self, *_: object) -> None:
        with _hiding:
            while self._hidden:
                own, name, hooks, nothing = self._hidden.pop()
                if own[name] is nothing:
                    hooks.update(nothing)
                    own[name] = hooks


def run_untraced(code: CodeType) -> None:
    """Have the function with this ``code``, and what it calls, run as they are where torch.compile would compile them.

    A hook of the module that is compiled is no part of its graph but a function of its own, and would become a program
    of what it does in a trace, which is nothing. Torch before 2.7 has no word for it.
    """
    evaluation: Any = torch._C._dynamo.eval_frame
    if hasattr(evaluation, "set_code_exec_strategy"):
        skip = evaluation._FrameAction.SKIP
        evaluation.set_code_exec_strategy(code, evaluation._FrameExecStrategy(skip, skip))


def _hooks_on_all_modules() -> bool:
    return bool(nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]
