"""Operators that compiled code calls. A compiler sees what they take and change, and nothing of what they do.

``floatscope::measure(Tensor x, Tensor(a!) words, Tensor(b!) hist) -> ()`` merges the statistics of ``x`` into one row:
``words`` int64 [10], ``hist`` int32 [512]. ``floatscope::measure_gradient`` is the same inside a backward pass.
``floatscope::before_update(Tensor[] parameters, Tensor[] gradients, Tensor(a!) updates, int reader) -> ()`` shows
gradients to the reader of that number and adds one to ``updates`` (int64 [1]). Each says that it changes a tensor,
since a compiler drops a call that has no effect. None returns anything, records anything for a backward pass or lets
an exception out.

Made with ``torch.library.Library``: a call costs a third of what it costs through ``torch.library.custom_op``.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from floatscope._guard import Guard
from floatscope._own_ops import OwnOperations, capturing
from floatscope._stats import variant_for

__all__ = ["CAN_SHUN_GRAPHS", "GradientReader", "OutputRow", "Readers", "Wanted", "readers"]

_NAMESPACE = "floatscope"
CAN_SHUN_GRAPHS = hasattr(torch.Tag, "cudagraph_unsafe")
"""Whether an operator can say that it must stay out of CUDA graphs: since torch 2.8."""
_measuring = Guard("a tensor of compiled code was measured")
_reading = Guard("gradients were read before a compiled update")
_defining = threading.Lock()

GradientReader = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""Takes parameters and their gradients. Both are only valid during the call."""


class Wanted(NamedTuple):
    """What a scope is to read of outputs in the step in progress."""

    outputs: bool
    histograms: bool


@dataclass(eq=False, slots=True)
class OutputRow:
    """A row that compiled code writes, in two allocations of its own.

    As parts of one tensor, rows would be inputs of a graph that alias each other and are changed, which costs copies.
    """

    layer: int
    words: torch.Tensor
    """int64 [10]."""
    hist: torch.Tensor
    """int32 [512]."""
    kind: str = "act"
    dtype: torch.dtype | None = None
    """That of the last tensor that was seen to be merged into it."""
    first_call: int = -1
    """Its place in the order of first calls of the process; -1 before."""


@dataclass(eq=False, slots=True)
class Readers:
    """Who wants what the operators see, for all scopes of the process."""

    outputs: dict[object, Callable[[], Wanted]] = field(default_factory=dict)
    """What each scope wants at the moment."""
    rows: dict[int, OutputRow] = field(default_factory=dict)
    """Rows by the address of their words."""
    gradients: dict[int, GradientReader] = field(default_factory=dict)
    """By number."""
    merges: int = 0
    """How many tensors were merged into rows, by calls that ran."""
    captured: bool = False
    """Whether a call was captured in a graph, so that rows change unseen."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Rows that graphs may write to, for good: nobody tells when a graph is gone."""
    last_dtype: torch.dtype | None = None
    """That of the last tensor that was merged into a copy of a row, as compilers that change nothing in place make."""
    first_calls: Iterator[int] = field(default_factory=itertools.count)
    library: torch.library.Library | None = None
    """Kept, since the operators go when it does."""

    def measure(self, x: torch.Tensor, words: torch.Tensor, hist: torch.Tensor, *, gradient: bool = False) -> None:
        """Merge ``x``, of a forward pass or a ``gradient``, into a row, if anybody wants outputs at the moment.

        A call that is captured in a graph is measured in any case: no other is going to be made.
        """
        if words.device != x.device or not x.is_floating_point():
            return
        if not gradient and torch._C._current_graph_task_id() != -1:
            return  # checkpointing runs this forward pass a second time, inside the backward pass
        if capturing():
            histogram = self.captured = True
        else:
            wanted = [want() for want in self.outputs.values()]
            if not any(want.outputs for want in wanted):
                return
            histogram = any(want.outputs and want.histograms for want in wanted)
        with OwnOperations():
            variant_for(x.device).measure(x, words, hist if histogram else None)
        self.merges += 1
        row = self.rows.get(words.data_ptr())
        if self.captured and row is not None:
            self.kept[words.data_ptr()] = words, hist
        if row is None:
            self.last_dtype = x.dtype
            return
        row.dtype = x.dtype
        if row.first_call < 0:
            row.first_call = next(self.first_calls)

    def before_update(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        updates: torch.Tensor,
        reader: int,
    ) -> None:
        """Show ``gradients`` to ``reader``; nobody, when it is closed."""
        updates.add_(1)
        if (read := self.gradients.get(reader)) is not None:
            with OwnOperations():
                read(parameters, gradients)


def readers() -> Readers:
    """The process's readers. The first call defines the operators.

    A second import of this module, as after a reload, finds the readers of the first, whose operators stay. Of several
    threads that begin to train at once the first one defines them, and the others wait for that.
    """
    namespace = getattr(torch.ops, _NAMESPACE)
    with _defining:
        known: Readers | None = vars(namespace).get("readers")
        if known is None:
            known = namespace.readers = _defined()
    return known


def _forget_other_threads() -> None:
    """In a forked child: none of those that may have been defining is there."""
    global _defining
    _defining = threading.Lock()


os.register_at_fork(after_in_child=_forget_other_threads)


def _defined() -> Readers:
    known = Readers(library=torch.library.Library(_NAMESPACE, "FRAGMENT"))  # type: ignore[no-untyped-call]

    def measure(x: torch.Tensor, words: torch.Tensor, hist: torch.Tensor) -> None:
        with _measuring:
            known.measure(x, words, hist)

    def measure_gradient(x: torch.Tensor, words: torch.Tensor, hist: torch.Tensor) -> None:
        with _measuring:
            known.measure(x, words, hist, gradient=True)

    def before_update(
        parameters: list[torch.Tensor], gradients: list[torch.Tensor], updates: torch.Tensor, reader: int
    ) -> None:
        with _reading:
            known.before_update(parameters, gradients, updates, reader)

    _define(known.library, "measure(Tensor x, Tensor(a!) words, Tensor(b!) hist) -> ()", measure)
    schema = "measure_gradient(Tensor x, Tensor(a!) words, Tensor(b!) hist) -> ()"
    _define(known.library, schema, measure_gradient)
    _define(
        known.library,
        "before_update(Tensor[] parameters, Tensor[] gradients, Tensor(a!) updates, int reader) -> ()",
        before_update,
        tags=(torch.Tag.cudagraph_unsafe,) if CAN_SHUN_GRAPHS else (),
    )
    return known


def _define(
    library: torch.library.Library | None, schema: str, function: Callable[..., None], tags: tuple[torch.Tag, ...] = ()
) -> None:
    assert library is not None, "it was made a moment ago"
    name, _, _ = schema.partition("(")
    library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    # Of no device in particular: it is a call of the device's own pass.
    library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{_NAMESPACE}::{name}", _nothing, lib=library)
    # Under vmap the values that a model computes are those of many models or inputs at once.
    torch.library.register_vmap(f"{_NAMESPACE}::{name}", _nothing_vectorised, lib=library)


def _nothing(*args: Any) -> None:  # noqa: ANN401 (whatever the operator takes)
    return None


def _nothing_vectorised(info: object, in_dims: object, *args: Any) -> tuple[None, None]:  # noqa: ANN401
    return None, None
