"""The pass on a CPU: in C where the machine has a compiler, else in torch operations whose blocks stay in its cache.

The histogram of a large tensor covers every 16th block of 4096 elements in memory order, as the word ``sampled``
says; everything else covers every element.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope._stats._bounds import require_device, require_memory
from floatscope._stats._cpu_library import Function, for_this_process
from floatscope._stats._float8 import FLOAT8, float8_tables
from floatscope._stats._reference import as_float32, histogram_of_ranks, measure, pieces
from floatscope._stats._rows import WORDS, Rows, WordAt
from floatscope._summary import INFINITY_BITS, Floats

__all__ = ["BLOCK", "SAMPLE", "Cpu", "runs", "works"]

BLOCK = 4096
SAMPLE = 16
"""A tensor of fewer than 16 blocks is in the histogram as a whole."""

_PIECE = 1 << 18
"""Elements that one torch operation works on: from 2**16 to 2**18 the time falls by a sixth, beyond it rises."""
_MAGNITUDE = 0x7FFFFFFF
_ZERO = (1 << 31) - 1

_HERE = torch.device("cpu")
_DTYPES = {
    dtype: number for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16, torch.float64, *FLOAT8))
}
"""As cpu.c numbers them."""


def runs(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """``tensor`` as contiguous 1-D tensors in memory order: one where it is dense, else several and some copies."""
    tensor = tensor.detach().resolve_neg()
    if tensor.is_contiguous():
        yield tensor.view(-1)
        return
    dense = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if dense.is_contiguous():
        yield dense.view(-1)
    else:
        yield from (piece.contiguous() for piece in pieces(tensor, _PIECE))


class Cpu:
    """The variant for tensors in the memory of the CPU. ``compiled`` gives the pass in C, or None to do without."""

    name = "cpu"
    samples_histogram = True

    def __init__(self, compiled: Callable[[], Function | None] | None = None) -> None:
        self._compiled = compiled if compiled is not None else _of_this_process()

    def plan(self, at: Sequence[int]) -> _Plan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th."""
        return _Plan(self, tuple(at))

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row."""
        self.merge([tensor], (0,), words[None], hist[None] if hist is not None else None)

    @torch.no_grad()
    def merge(
        self, tensors: Sequence[torch.Tensor], at: Sequence[int], words: torch.Tensor, hist: torch.Tensor | None
    ) -> None:
        """Merge ``tensors[i]`` into row ``at[i]`` of contiguous ``words`` int64 [n, 10] and ``hist`` int32 [n, 512].

        ``ValueError``, with nothing merged, when a tensor is on another device or its storage does not hold it.
        """
        for tensor in tensors:
            require_device(tensor, _HERE)
            require_memory(tensor)
        function = self._compiled()
        if function is None or _run_compiled(function, tensors, at, words, hist) != 0:
            for row, tensor in zip(at, tensors, strict=True):
                _measure_by_torch(tensor, words[row], hist[row] if hist is not None else None)


class _Plan:
    def __init__(self, variant: Cpu, at: tuple[int, ...]) -> None:
        self._variant, self._at = variant, at

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        self._variant.merge(tensors, self._at, rows.words, rows.hist if histogram else None)


def _of_this_process() -> Callable[[], Function | None]:
    return for_this_process(works).function


_TABLES = float8_tables()


def _run_compiled(
    function: Function,
    tensors: Sequence[torch.Tensor],
    at: Sequence[int],
    words: torch.Tensor,
    hist: torch.Tensor | None,
) -> int:
    described, held = array("q"), []
    for row, tensor in zip(at, tensors, strict=True):
        dtype, first = _DTYPES[tensor.dtype], 1
        if tensor.is_contiguous() and not tensor.is_neg():
            described.extend((tensor.data_ptr(), tensor.numel(), dtype, row, 1))
            continue
        for run in runs(tensor):
            held.append(run)
            described.extend((run.data_ptr(), run.numel(), dtype, row, first))
            first = 0
    return function(
        described.buffer_info()[0],
        len(described) // 5,
        _TABLES.data_ptr(),
        words.data_ptr(),
        hist.data_ptr() if hist is not None else 0,
        torch.get_num_threads(),
    )


class _Part(NamedTuple):
    zeros: int
    nans: int
    infs: int
    absmax_bits: int
    absmin_gap: int
    sum: float
    sumsq: float


def _measure_by_torch(tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
    row = words.numpy()
    floats = _sums(row)
    for run in runs(tensor):
        for piece in torch.split(run, _PIECE) if run.numel() else ():
            part = _part(as_float32(piece, 1.0))
            row[: WordAt.ABSMAX] += (part.zeros, part.nans, part.infs)
            extremes = row[WordAt.ABSMAX : WordAt.SUM]
            np.maximum(extremes, (part.absmax_bits, part.absmin_gap), out=extremes)
            floats += (part.sum, part.sumsq)
        row[WordAt.ELEMENTS] += run.numel()
        if hist is not None and run.numel():
            sampled = as_float32(_sample(run), 1.0)
            row[WordAt.SAMPLED] += sampled.numel()
            magnitude = sampled.view(torch.int32) & _MAGNITUDE
            rank = torch.where(magnitude < INFINITY_BITS, magnitude, 0).sub_(1)
            hist += histogram_of_ranks(rank)
    row[WordAt.TENSORS] += 1


def _sums(row: NDArray[np.int64]) -> Floats:
    return row[WordAt.SUM : WordAt.ELEMENTS].view(np.float64)


def _sample(run: torch.Tensor) -> torch.Tensor:
    """The elements of a run that its histogram covers."""
    stride = SAMPLE * BLOCK
    whole = run.numel() // stride * stride
    if not whole:
        return run
    return torch.cat([run[:whole].view(-1, stride)[:, :BLOCK].reshape(-1), run[whole : whole + BLOCK]])


def _part(x: torch.Tensor) -> _Part:
    # Doubling drops the sign; what is added then makes the order of int32 that of the magnitudes, and zero the last.
    order = torch.bitwise_left_shift(x.view(torch.int32), 1).add_(_ZERO)
    least, most = (int(extreme) for extreme in torch.aminmax(order))
    zeros = 0
    if most == _ZERO:
        zeros = x.numel() - int(torch.count_nonzero(order ^ _ZERO))
        absmax_bits = int((x.view(torch.int32) & _MAGNITUDE).amax())
    else:
        absmax_bits = _bits(most)
    if absmax_bits >= INFINITY_BITS:
        return _part_with_non_finite(x)
    doubles = x.to(torch.float64)
    gap = INFINITY_BITS - _bits(least) if least != _ZERO else 0
    return _Part(zeros, 0, 0, absmax_bits, gap, float(doubles.sum()), float(torch.dot(doubles, doubles)))


def _bits(order: int) -> int:
    return ((order - _ZERO) & 0xFFFFFFFF) >> 1


def _part_with_non_finite(x: torch.Tensor) -> _Part:
    zeros, nans, infs, total, squares, most, minus_least = measure(x, histogram=False).statistics.tolist()
    return _Part(int(zeros), int(nans), int(infs), int(most), int(minus_least) + INFINITY_BITS, total, squares)


def works(function: Function) -> bool:
    """Whether ``function`` gives what torch operations give, on numbers of every dtype."""
    codes = torch.arange(0, 1 << 18, 7, dtype=torch.int32, device="cpu") * 28657
    for dtype in _DTYPES:
        tensor = codes.view(dtype) if dtype.itemsize <= codes.itemsize else codes.view(torch.float32).to(dtype)
        got, want = Rows(1, "cpu"), Rows(1, "cpu")
        Cpu(lambda: function).measure(tensor, got.words[0], got.hist[0])
        Cpu(lambda: None).measure(tensor, want.words[0], want.hist[0])
        exact = [place for place in range(len(WORDS)) if place not in (WordAt.SUM, WordAt.SUMSQ)]
        if not torch.equal(got.words[0, exact], want.words[0, exact]) or not torch.equal(got.hist, want.hist):
            return False
        (total, squares), (other, others) = (_sums(rows.words[0].numpy()).tolist() for rows in (got, want))
        error = 1e-12 * math.sqrt(squares * tensor.numel())
        if not math.isclose(squares, others, rel_tol=1e-12) or not math.isclose(total, other, abs_tol=error):
            return False
    return True
