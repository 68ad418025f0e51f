"""Hooks on the steps of all optimizers: one in each of torch's two tables, for however many of ours.

Torch goes through a table while the hooks in it run. Whoever adds to it or takes from it then, in another thread that
trains, ends that step with ``RuntimeError: OrderedDict mutated during iteration``. So a table is touched for the first
and after the last of ours only; a process that waits for trainings holds one from before the first step on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = ["after_steps", "before_steps"]

Hook = Callable[..., Any]
"""Takes the optimizer, arguments and keywords. Before a step it may return others."""


class _Table:
    def __init__(self, register: Callable[[Hook], RemovableHandle]) -> None:
        self._register = register
        self._hooks: tuple[Hook, ...] = ()
        """Replaced, and never changed: a step goes through those that were there when it began."""
        self._handle: RemovableHandle | None = None

    def add(self, hook: Hook) -> Callable[[], None]:
        """Call ``hook`` after those that are there; returns the undoing."""
        self._hooks = (*self._hooks, hook)
        if self._handle is None:
            self._handle = self._register(self._call)

        def remove() -> None:
            at = next(at for at, known in enumerate(self._hooks) if known is hook)
            self._hooks = self._hooks[:at] + self._hooks[at + 1 :]
            if not self._hooks and self._handle is not None:
                self._handle.remove()
                self._handle = None

        return remove

    def _call(self, optimizer: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 (torch's)
        changed = None
        for hook in self._hooks:
            answer = hook(optimizer, args, kwargs)
            if answer is not None:
                changed = args, kwargs = answer
        return changed


before_steps = _Table(register_optimizer_step_pre_hook).add
"""Have a hook called before each step of any optimizer; returns the undoing."""
after_steps = _Table(register_optimizer_step_post_hook).add
"""Have one called after each step."""
