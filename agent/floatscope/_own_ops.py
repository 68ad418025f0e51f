"""Keeps the operations of ours apart from what is in force around a hook: modes, transforms, autograd, inference.

A hook runs inside whatever surrounds the module. Selective activation checkpointing, for one, stores the results of
operations in order and hands them out again in that order when it repeats the forward pass: an operation of ours
among them, which the repetition lacks, would give the training somebody else's numbers.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch

from floatscope._guard import on_interrupt

__all__ = ["OwnOperations", "backward_runs", "capturing", "transformed", "why_not_now"]

# Found once: after a step's computation each look into torch's dictionaries waits for memory, several times.
_interpreter = torch._C._functorch.peek_interpreter_stack
_tracing_state = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_recording, _set_recording = torch.is_grad_enabled, torch._C._set_grad_enabled
_is_inference = torch.is_inference_mode_enabled
_autocasts = torch._C._is_any_autocast_enabled
_cuda: Any = torch.cuda
_stream_captures: Any = torch._C._cuda_isCurrentStreamCapturing
_NoFunctionModes = torch._C.DisableTorchFunction

_TRANSFORMED = "inside a function transform (vmap, grad, jvp)"
_TRACED = "inside a trace (jit.trace, export, make_fx)"


def transformed() -> bool:
    """Whether a function transform (vmap, grad, jvp) is at work."""
    return _interpreter() is not None


def why_not_now() -> str | None:
    """Why tensors have no values to measure at the moment; None when they have."""
    if _interpreter() is not None:
        return _TRANSFORMED
    if _tracing_state() is not None:
        return _TRACED
    if _dispatch_modes() and any(
        # Fake tensors, proxies and functional tensors; their modes are the only ones with a slot of their own.
        torch._C._get_dispatch_mode(key) is not None
        for key in (
            torch._C._TorchDispatchModeKey.FAKE,
            torch._C._TorchDispatchModeKey.PROXY,
            torch._C._TorchDispatchModeKey.FUNCTIONAL,
        )
    ):
        return _TRACED
    return None


def capturing() -> bool:
    """Whether a CUDA graph is being captured, so that what is launched now runs with each replay instead."""
    # What ``is_initialized`` and ``is_current_stream_capturing`` do: each output that is read asks, and more.
    return bool(_cuda._initialized and not _cuda._is_in_bad_fork() and _stream_captures())


def backward_runs() -> bool:
    """Whether this thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


_AUTOCASTING = ("cpu", "cuda")


class OwnOperations:
    """``with OwnOperations():`` no dispatch or function mode, autocast or saved-tensor hook sees what is done inside.

    Nothing is recorded for a backward pass, and results are ordinary tensors under ``inference_mode`` too. Made anew
    for each use. What ``torch.no_grad`` does is done here: its Python is most of what that costs.
    """

    __slots__ = ("_cast", "_entered", "_recording")

    def __init__(self) -> None:
        self._entered: list[Any] = []
        self._cast: list[str] = []
        self._recording: bool | None = None

    def __enter__(self) -> None:
        # Someone who interrupts a training, in a notebook say, may go on with it: no mode of ours may be left then.
        self._recording = _is_recording()
        _open.those.append(self)
        try:
            if _dispatch_modes():
                from torch.utils._python_dispatch import _disable_current_modes

                self._enter(_disable_current_modes())
            if _is_inference():
                self._enter(torch.inference_mode(mode=False))
                self._recording = _is_recording()
            # Whatever happens in between: leaving what was not entered does no harm with this one.
            self._entered.append(_NoFunctionModes())
            self._entered[-1].__enter__()
            _set_recording(False)  # noqa: FBT003 (it takes no name)
            # Statistics are of the numbers that are there. Some operations of ours it would refuse, cat of float64 say.
            for device in _AUTOCASTING if _autocasts() else ():
                if torch.is_autocast_enabled(device):
                    self._cast.append(device)
                    torch.set_autocast_enabled(device, False)  # noqa: FBT003 (it takes no name)
        except BaseException:
            self.leave()
            raise

    def _enter(self, context: Any) -> None:  # noqa: ANN401 (of many types)
        context.__enter__()
        self._entered.append(context)

    def leave(self) -> None:
        """Once, however often it is called."""
        if self._recording is None:
            return
        _set_recording(self._recording)
        for device in self._cast:
            torch.set_autocast_enabled(device, True)  # noqa: FBT003 (it takes no name)
        while self._entered:
            # Left first: twice does no harm, and what is taken off the list before an interrupt would stay entered.
            self._entered[-1].__exit__(None, None, None)
            del self._entered[-1]
        self._recording = None
        if self in _open.those:
            _open.those.remove(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.leave()
        except BaseException:
            self.leave()
            raise


class _Open(threading.local):
    def __init__(self) -> None:
        self.those: list[OwnOperations] = []


_open = _Open()


def _leave_all() -> None:
    """Someone interrupts the training while we are at work, possibly at the first instruction of an ``__exit__``."""
    for one in reversed(list(_open.those)):
        one.leave()


on_interrupt.append(_leave_all)
