"""Observes compiled code: layers through rows of their own, gradients before a compiled update.

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
from floatscope._device_rows import FromAmax
from floatscope._fp8_modules import announced
from floatscope._operators import CAN_SHUN_GRAPHS, GradientReader, OutputRow, Wanted, readers
from floatscope._own_ops import transformed
from floatscope._readable import stored_format
from floatscope._recorder import Recorder
from floatscope._stats import WORDS, WordAt, variant_for
from floatscope._summary import BINS
from floatscope._untraced import UntracedHooks

__all__ = ["CompiledOutputs", "CompiledUpdates", "compiled_code_tap"]

_numbers = itertools.count()
_SCALE_NOT_KNOWN = "casts are not observed: the scale that compiled code cast with is not known"


def _no_export() -> bool:
    return False


def _in_export() -> bool:
    # Dynamo up to torch 2.12 takes ``torch.compiler.is_exporting()`` to be true in any trace.
    return torch.compiler._is_exporting_flag


# torch.export takes a program out of the process; before torch 2.7 a trace cannot tell.
_is_exporting = _in_export if hasattr(torch.compiler, "_is_exporting_flag") else _no_export


class _Gradient(torch.autograd.Function):
    """Gives what it takes, and shows the gradient of that to ``floatscope::measure_gradient``.

    A copy, which a compiler leaves out: a view could not be changed in place after this, as activations do.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, words: torch.Tensor, hist: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.words, ctx.hist = words, hist
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        torch.ops.floatscope.measure_gradient(gradient.detach(), ctx.words, ctx.hist)
        return gradient, None, None


def _shown(output: torch.Tensor, words: torch.Tensor, hist: torch.Tensor) -> torch.Tensor:
    """As a call of its own in the graph: what Dynamo does to trace a ``Function`` warns, which a training may have
    made an error, and that error would be the training's."""
    if transformed():
        return output  # gradients of gradients, or of many at once, and no ``Function`` that could say so
    shown: torch.Tensor = _Gradient.apply(output, words, hist)  # type: ignore[no-untyped-call]
    return shown


class _RowHook(Unseen):
    """Puts calls of the operators into a graph; in code that is not compiled it does nothing."""

    def __init__(self, *, outputs: bool, operands: bool) -> None:
        self._outputs = outputs
        self._operands = operands

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> torch.Tensor | None:  # noqa: ANN401
        if not torch.compiler.is_compiling() or _is_exporting() or not module.training:
            return None
        # Subclasses (distributed, nested) dispatch operators in a way of their own.
        plain = type(output) is torch.Tensor
        seen: torch.Tensor | None = None
        if self._outputs and plain:
            torch.ops.floatscope.measure(output.detach(), module._floatscope_words, module._floatscope_hist)
            # Views that cost nothing, of which a single one would be optimised away. What something unfusable has read
            # is not computed from again in the backward pass (AOTAutograd's ban_if_used_far_apart), views of it are.
            # Without them a GELU's derivative is kept in fp32: 0.57 of 1.5 ms a step of GPT-2 with 6 layers.
            seen = output.unsqueeze(0).squeeze(0)
        if not self._operands:
            return seen
        if args and type(args[0]) is torch.Tensor:
            torch.ops.floatscope.measure(args[0].detach(), module._floatscope_in_words, module._floatscope_in_hist)
        if not plain or not output.requires_grad:
            return seen
        return _shown(output if seen is None else seen, module._floatscope_grad_words, module._floatscope_grad_hist)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # In the pickle of a model that pickles itself in a way of its own: something that does nothing.
        return getattr, (contextlib.nullcontext(), "__exit__")


_hooks = {
    ("act",): _RowHook(outputs=True, operands=False),
    ("act_in", "act_grad"): _RowHook(outputs=False, operands=True),
    ("act", "act_in", "act_grad"): _RowHook(outputs=True, operands=True),
}
"""By the kinds of the rows that a layer has."""


class CompiledOutputs:
    """Rows and hooks on the layers of one model. Rows are written in steps that read outputs.

    In a graph that was captured they are written in each step, since what is captured runs as it is. ``keep_scale``
    notes the loss scale of the step, which gradients carry; whether there is one.
    """

    def __init__(self, recorder: Recorder, config: Config, keep_scale: Callable[[], int]) -> None:
        self._recorder = recorder
        self._config = config
        self._keep_scale = keep_scale
        self._table = recorder.table
        self._readers = readers()
        self._rows: dict[tuple[int, str], tuple[weakref.ref[nn.Module], OutputRow]] = {}
        self._undo: list[Callable[[], None]] = []
        self._check = _RowCheck()
        self._merges = self._readers.merges
        """Of all rows, when these were cleared."""

    def install(self) -> None:
        """Give each layer its rows and the hook. Models that are compiled already do not notice."""
        self._undo.append(conceal())
        torch._dynamo.allow_in_graph(_shown)  # type: ignore[no-untyped-call]
        for layer, module in self._table.observable():
            if kinds := self._kinds(layer):
                self._undo.append(module.register_forward_hook(_hooks[kinds]).remove)
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
                for name in ROW_ATTRIBUTES[row.kind]:
                    module.__dict__.pop(name, None)
        self._rows.clear()

    def _wanted(self) -> Wanted:
        return Wanted(self._recorder.buffer.activations, self._recorder.buffer.histograms)

    def _kinds(self, layer: int) -> tuple[str, ...]:
        config, linear = self._config, layer in self._table.linear
        outputs = config.compiled_all_outputs or (config.compiled_outputs and linear)
        operands = config.compiled_operands and linear
        return ("act",) * outputs + ("act_in", "act_grad") * operands

    def _place(self, layer: int, module: nn.Module) -> None:
        device = _device_of(module)
        variant_for(device)  # which may take its time to choose one, now
        for kind in self._kinds(layer):
            words = torch.zeros(len(WORDS), dtype=torch.int64, device=device)
            hist = torch.zeros(BINS, dtype=torch.int32, device=device)
            for name, tensor in zip(ROW_ATTRIBUTES[kind], (words, hist), strict=True):
                # Its address stays: so CUDA graphs write to it in place instead of being given up for a changed input.
                torch._dynamo.mark_static_address(tensor)
                module.__dict__[name] = tensor
            row = OutputRow(layer, words, hist, kind)
            self._rows[layer, kind] = weakref.ref(module), row
            self._readers.rows[words.data_ptr()] = row

    def _collect(self, recorder: Recorder) -> None:
        """Hand the rows of the step on, which clears them, or clear those that were written for nobody."""
        if recorder.buffer.activations:
            forward = [row for _, row in self._rows.values() if row.kind != "act_grad"]
            self._check.begin([row for row in forward if row.dtype is None])
            scaled = self._keep_scale() if self._config.compiled_operands else 0
            for reference, row in self._rows.values():
                dtype = row.dtype or self._readers.last_dtype
                if dtype is not None and (stored := stored_format(dtype)) is not None:
                    self._hand_on(row, reference(), stored, loss_scaled=scaled if row.kind == "act_grad" else 0)
            self._note_calls()
            self._follow_moves()
        elif self._readers.captured or self._merges != self._readers.merges:
            rows = [row for _, row in self._rows.values()]
            # One launch for tensors of one dtype, one for each tensor where they differ.
            for tensors in ([row.words for row in rows], [row.hist for row in rows]):
                for group in _by_device(tensors):
                    torch._foreach_zero_(group)
        self._merges = self._readers.merges
        for layer, written in self._check.results():
            if written:
                self._table.executed(layer)
            else:
                self._table.passed_over(layer)

    def _hand_on(self, row: OutputRow, module: nn.Module | None, stored: str, *, loss_scaled: int) -> None:
        recorder, cast = self._recorder, None
        if row.kind != "act" and module is not None and row.layer in self._table.casting:
            casts = announced(module)
            cast = casts.operands.get(row.kind)
            if row.kind in casts.blocks or (cast is not None and cast.scale is not None):
                # What the module has now is not what it had when it cast.
                self._table.unseen(row.layer, _SCALE_NOT_KNOWN)
                torch._foreach_zero_([row.words, row.hist])
                return
        format_ = stored if cast is None else cast.format
        scale = 1.0 if cast is None else FromAmax(cast.power_of_two)
        recorder.meet(row.kind, row.layer, format_, cast, loss_scaled=loss_scaled)
        recorder.adopt(
            row.kind, row.layer, row.words, row.hist, format_=format_, loss_scaled=loss_scaled, cast_scale=scale
        )

    def _note_calls(self) -> None:
        for _, row in sorted(self._rows.values(), key=lambda placed: placed[1].first_call):
            if row.first_call >= 0 and row.kind != "act_grad":
                self._table.executed(row.layer)

    def _follow_moves(self) -> None:
        """A layer that went to another device since gets a row there."""
        for reference, row in list(self._rows.values()):
            module = reference()
            if module is not None and row.words.device != _device_of(module):
                self._readers.rows.pop(row.words.data_ptr(), None)
                if row.kind == self._kinds(row.layer)[0]:
                    self._place(row.layer, module)


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


def compiled_code_tap(
    recorder: Recorder, model: nn.Module, config: Config, keep_scale: Callable[[], int]
) -> CompiledOutputs | UntracedHooks:
    """What sees to code that torch.compile makes of the model; ``keep_scale`` as of ``CompiledOutputs``."""
    wanted = config.compiled_outputs or config.compiled_all_outputs or config.compiled_operands
    if wanted and config.activations_every:
        return CompiledOutputs(recorder, config, keep_scale)
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
