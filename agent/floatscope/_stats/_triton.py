"""The pass in Triton: for devices on which the compiled kernels cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from floatscope._stats._bounds import require_device, require_memory
from floatscope._stats._float8 import FLOAT8, float8_tables_on
from floatscope._stats._layout import Layouts, in_place, spans
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Rows, WordAt

__all__ = ["CHUNK", "OPTIONS", "SAMPLE_EVERY", "TritonPlan", "TritonVariant", "constants"]

CHUNK = 65536
"""Elements that a program reads."""
SAMPLE_EVERY = 16
"""The histogram is of one tile in so many."""
WARPS = 8
OPTIONS: dict[str, Any] = {"num_warps": WARPS, "enable_fp_fusion": True}
"""What Triton is told; it warns where fusing multiplications and additions is left to its default, which changes."""
_ROWS = 2
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3} | dict.fromkeys(FLOAT8, 4)
_TABLES = {dtype: table for table, dtype in enumerate(FLOAT8)}
_ELEMENT_BYTES = (4, 2, 2, 8, 1)


def constants(kind: int, wave: int, every: int, *, aligned: bool) -> dict[str, object]:
    """Compile-time arguments of the kernels.

    A tile's row is one 16-byte load of every thread: sized for a warp of 32, a build for wavefronts of 64 would
    exchange the tile through shared memory.
    """
    columns = WARPS * wave * (16 // _ELEMENT_BYTES[kind])
    return {"CHUNK": CHUNK, "KIND": kind, "R": _ROWS, "C": columns, "EVERY": every, "ALIGNED": aligned}


class _Group(NamedTuple):
    """Spans that one launch reads: the same kind, float8 table and alignment."""

    dtype: torch.dtype
    aligned: bool


class TritonVariant:
    """The variant by Triton, for one device. ``ImportError`` without Triton; compiles when something is first run."""

    name = "triton"

    def __init__(self, device: torch.device, *, every: int = SAMPLE_EVERY) -> None:
        from floatscope._stats import _triton_kernels

        self.kernels: Any = _triton_kernels
        self.device = device
        self.every = every
        self.samples_histogram = every > 1
        self.tables = float8_tables_on(device)
        self.wave = torch.cuda.get_device_properties(device).warp_size if device.type == "cuda" else 32
        self._reference = Reference()

    def plan(self, at: Sequence[int]) -> TritonPlan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th; for one thread at a time."""
        return TritonPlan(self, tuple(at))

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row."""
        if tensor.dtype not in _KINDS:
            self._reference.measure(tensor, words, hist)
            return
        for index, part in enumerate(spans(tensor)):
            arguments = (part.data_ptr(), part.numel(), words, words if hist is None else hist)
            group = _Group(part.dtype, part.data_ptr() % 16 == 0)
            self.launch(self.kernels.one, group, -(-part.numel() // CHUNK) or 1, arguments, histogram=hist is not None)
            if index:
                words[WordAt.TENSORS] -= 1

    def launch(
        self,
        kernel: Any,  # noqa: ANN401 (Triton has no types)
        group: _Group,
        programs: int,
        arguments: tuple[object, ...],
        *,
        histogram: bool,
    ) -> None:
        """Run one of the kernels on the current stream."""
        kind = _KINDS[group.dtype]
        table = self.tables[_TABLES.get(group.dtype, 0)]
        every = self.every if histogram else 0
        fixed = constants(kind, self.wave, every, aligned=group.aligned)
        kernel[(programs,)](*arguments, table, **fixed, **OPTIONS)


class TritonPlan:
    """A list of tensors that is measured again and again; see ``Plan``."""

    def __init__(self, variant: TritonVariant, at: tuple[int, ...]) -> None:
        self._variant, self._at = variant, at
        self._layouts: Layouts | None = None
        self._stream: object = None
        self._tables: dict[_Group, torch.Tensor] = {}
        self._others: list[int] = []

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        """Merge the statistics of ``tensors[i]`` into its row."""
        cuda = rows.device.type == "cuda"
        if cuda and torch.cuda.is_current_stream_capturing():
            # A table would be copied from memory that is gone when the graph is replayed.
            for tensor, at in zip(tensors, self._at, strict=True):
                self._variant.measure(tensor, rows.words[at], rows.hist[at] if histogram else None)
            return
        stream = torch.cuda.current_stream(rows.device) if cuda else None
        # The allocator reuses a table's memory in the order of the stream that it was made on.
        if self._layouts is None or stream != self._stream or not self._layouts.are_those_of(tensors):
            self._lay_out(tensors)
            self._stream = stream
        for group, table in self._tables.items():
            arguments = (table, rows.words, rows.hist)
            self._variant.launch(self._variant.kernels.many, group, len(table), arguments, histogram=histogram)
        for index in self._others:
            at = self._at[index]
            self._variant.measure(tensors[index], rows.words[at], rows.hist[at] if histogram else None)

    def _lay_out(self, tensors: Sequence[torch.Tensor]) -> None:
        chunks: dict[_Group, list[tuple[int, int, int, int]]] = {}
        self._layouts, self._others = None, []  # what follows may fail half way
        for tensor in tensors:
            require_device(tensor, self._variant.tables.device)
        for index, (tensor, at) in enumerate(zip(tensors, self._at, strict=True)):
            if tensor.dtype not in _KINDS or not in_place(tensor):
                self._others.append(index)
                continue
            require_memory(tensor)
            address, elements = tensor.data_ptr(), tensor.numel()
            group = chunks.setdefault(_Group(tensor.dtype, address % 16 == 0), [])
            group += [(address, elements, begin, at) for begin in _starts(elements)]
        # A new table each time: the one before may still be read, and pinned memory is reused once it was copied.
        self._tables = {group: _uploaded(work, self._variant.device) for group, work in chunks.items()}
        self._layouts = Layouts(tensors)


def _uploaded(work: list[tuple[int, int, int, int]], device: torch.device) -> torch.Tensor:
    table = torch.tensor(work, dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def _starts(elements: int) -> Iterator[int]:
    yield from range(0, max(elements, 1), CHUNK)
