"""Observes compiled code: outputs of linear layers through rows of their own, gradients before a compiled update.

A hook inside compiled code is a part of the program. One hook object serves every layer and takes the row from the
module it is called for, so that layers of one shape share one graph. Rows are plain tensors in the module's
``__dict__``: buffers would be broadcast by DDP, saved in checkpoints and counted by whoever counts them.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from floatscope._concealment import ROW_ATTRIBUTES, Unseen, conceal
from floatscope._config import Config
from floatscope._operators import CAN_SHUN_GRAPHS, GradientReader, OutputRow, Wanted, readers
from floatscope._readable import stored_format
from floatscope._recorder import Recorder
from floatscope._stats import WORDS, WordAt, variant_for
from floatscope._summary import BINS
from floatscope._untraced import UntracedHooks

__all__ = ["CompiledOutputs", "CompiledUpdates", "compiled_code_tap"]

_numbers = itertools.count()


def _no_export() -> bool:
    return False


def _in_export() -> bool:
    # Dynamo up to torch 2.12 takes ``torch.compiler.is_exporting()`` to be true in any trace.
    return torch.compiler._is_exporting_flag


# torch.export takes a program out of the process; before torch 2.7 a trace cannot tell.
_is_exporting = _in_export if hasattr(torch.compiler, "_is_exporting_flag") else _no_export


class _OutputHook(Unseen):
    """Puts a call of ``floatscope::measure`` into a graph; in code that is not compiled it does nothing."""

    def __call__(self, module: Any, args: tuple[Any, ...], output: object) -> None:  # noqa: ANN401
        if not torch.compiler.is_compiling() or _is_exporting():
            return
        # Subclasses (distributed, nested) dispatch operators in a way of their own.
        if module.training and type(output) is torch.Tensor:
            torch.ops.floatscope.measure(output.detach(), module._floatscope_words, module._floatscope_hist)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # In the pickle of a model that pickles itself in a way of its own: something that does nothing.
        return getattr, (contextlib.nullcontext(), "__exit__")


_hook = _OutputHook()


class CompiledOutputs:
    """Rows and hooks on the linear layers of one model. Rows are written in steps that read outputs.

    In a graph that was captured they are written in each step, since what is captured runs as it is.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._table = recorder.table
        self._readers = readers()
        self._rows: dict[int, tuple[weakref.ref[nn.Module], OutputRow]] = {}
        self._undo: list[Callable[[], None]] = []
        self._check = _RowCheck()
        self._merges = self._readers.merges
        """Of all rows, when these were cleared."""

    def install(self) -> None:
        """Give each linear layer its row and the hook. Models that are compiled already do not notice."""
        self._undo.append(conceal())
        for layer, module in self._table.observable():
            if layer in self._table.linear:
                self._undo.append(module.register_forward_hook(_hook).remove)
                self._place(layer, module)
        self._readers.outputs[self] = self._wanted
        self._recorder.collectors.append(self._collect)

    def remove(self) -> None:
        """Take hooks and rows away. Code compiled with them is compiled once more when it is called again."""
        while self._undo:
            self._undo.pop()()
        self._readers.outputs.pop(self, None)
        for reference, row in self._rows.values():
            self._readers.rows.pop(row.words.data_ptr(), None)
            if (module := reference()) is not None:
                for name in ROW_ATTRIBUTES:
                    module.__dict__.pop(name, None)
        self._rows.clear()

    def _wanted(self) -> Wanted:
        return Wanted(self._recorder.buffer.activations, self._recorder.buffer.histograms)

    def _place(self, layer: int, module: nn.Module) -> None:
        device = _device_of(module)
        variant_for(device)  # which may take its time to choose one, now
        words = torch.zeros(len(WORDS), dtype=torch.int64, device=device)
        hist = torch.zeros(BINS, dtype=torch.int32, device=device)
        for name, tensor in zip(ROW_ATTRIBUTES, (words, hist), strict=True):
            # Its address stays: so CUDA graphs write to it in place instead of being given up for a changed input.
            torch._dynamo.mark_static_address(tensor)
            module.__dict__[name] = tensor
        row = OutputRow(layer, words, hist)
        self._rows[layer] = weakref.ref(module), row
        self._readers.rows[words.data_ptr()] = row

    def _collect(self, recorder: Recorder) -> None:
        """Hand the rows of the step on, which clears them, or clear those that were written for nobody."""
        if recorder.buffer.activations:
            self._check.begin([row for _, row in self._rows.values() if row.dtype is None])
            for layer, (_, row) in self._rows.items():
                dtype = row.dtype or self._readers.last_dtype
                if dtype is not None and (stored := stored_format(dtype)) is not None:
                    recorder.meet("act", layer, stored, loss_scaled=False)
                    recorder.adopt("act", layer, row.words, row.hist, format_=stored)
            self._note_calls()
            self._follow_moves()
        elif self._readers.captured or self._merges != self._readers.merges:
            for group in _by_device([tensor for _, row in self._rows.values() for tensor in (row.words, row.hist)]):
                torch._foreach_zero_(group)
        self._merges = self._readers.merges
        for layer, written in self._check.results():
            if written:
                self._table.executed(layer)
            else:
                self._table.passed_over(layer)

    def _note_calls(self) -> None:
        for _, row in sorted(self._rows.values(), key=lambda placed: placed[1].first_call):
            if row.first_call >= 0:
                self._table.executed(row.layer)

    def _follow_moves(self) -> None:
        """A layer that went to another device since gets a row there."""
        for layer, (reference, row) in list(self._rows.items()):
            module = reference()
            if module is not None and row.words.device != _device_of(module):
                self._readers.rows.pop(row.words.data_ptr(), None)
                self._place(layer, module)


class _RowCheck:
    """Whether rows of which the host does not know it were written, found out without waiting."""

    def __init__(self) -> None:
        self._layers: list[int] = []
        self._counts: list[torch.Tensor] = []
        self._arrived: list[torch.Event] = []

    def begin(self, rows: list[OutputRow]) -> None:
        """Look at ``rows``, unless others are being looked at."""
        if self._layers or not rows:
            return
        for group in _by_device([row.words for row in rows]):
            counts = torch.stack([words[WordAt.TENSORS] for words in group]).to("cpu", non_blocking=True)
            self._counts.append(counts)
            if group[0].device.type != "cpu":
                self._arrived.append(torch.accelerator.current_stream(group[0].device).record_event())
        self._layers = [row.layer for row in sorted(rows, key=lambda row: str(row.words.device))]

    def results(self) -> list[tuple[int, bool]]:
        """Layers, and whether their row was written; empty while that is not known."""
        if not all(event.query() for event in self._arrived):
            return []
        counts = torch.cat(self._counts).tolist() if self._counts else []
        known = list(zip(self._layers, (count > 0 for count in counts), strict=True))
        self._layers, self._counts, self._arrived = [], [], []
        return known


def _by_device(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    for _, group in itertools.groupby(sorted(tensors, key=lambda t: str(t.device)), key=lambda t: t.device):
        yield list(group)


def _device_of(module: nn.Module) -> torch.device:
    parameter = next(itertools.chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if parameter is None else parameter.device


def compiled_code_tap(recorder: Recorder, model: nn.Module, config: Config) -> CompiledOutputs | UntracedHooks:
    """What sees to code that torch.compile makes of the model."""
    if config.compiled_outputs and config.activations_every:
        return CompiledOutputs(recorder)
    return UntracedHooks([model, *(module for _, module in recorder.table.observable())])


class CompiledUpdates:
    """Shows the gradients that a compiled ``optimizer.step`` is about to use to ``reader``.

    Register it as a step pre-hook. Dynamo breaks the graph between the hooks of an optimizer and its update in any
    case: what is put in here is no part of the update's own graph.
    """

    def __init__(self, reader: GradientReader) -> None:
        self.number = next(_numbers)
        self.updates = torch.zeros(1, dtype=torch.int64)
        """How many updates began. On the host, like the operator, which shuns CUDA graphs: each update is seen."""
        readers().gradients[self.number] = reader

    def remove(self) -> None:
        """The operator stays in the compiled code, and does nothing any more."""
        readers().gradients.pop(self.number, None)

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
        if not torch.compiler.is_compiling() or _is_exporting():
            return
        if not CAN_SHUN_GRAPHS:
            return  # alone in a CUDA graph of ``mode="reduce-overhead"``, it would make the update's compilation fail
        if len(args) > 1 or kwargs:
            return  # a closure has yet to compute the gradients
        parameters, gradients = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if type(gradient) is torch.Tensor and gradient.layout == torch.strided:
                    parameters.append(parameter)
                    gradients.append(gradient)
        torch.ops.floatscope.before_update(parameters, gradients, self.updates, self.number)
