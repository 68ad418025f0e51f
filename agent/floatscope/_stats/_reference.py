"""Statistics of tensors in plain torch: the reference that every faster variant is held against.

Everything is decided on the device. Magnitudes are handled as the integers of their float32 bits, whose order is that
of the values: subnormals keep their value in a thread that flushes denormals, and an extreme costs one integer
reduction. Work is cut into pieces, so temporary memory stays bounded however large the tensor is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope._own_ops import OwnOperations
from floatscope._stats._bounds import require_memory
from floatscope._stats._rows import Plan, Rows, WordAt
from floatscope._summary import BINS, INFINITY_BITS, Summary, magnitude_of_bits

__all__ = ["STATISTICS", "Reference", "Row", "measure", "merge_", "pieces", "row_summary", "summarize"]

STATISTICS = ("zeros", "nans", "infs", "sum", "sumsq", "absmax_bits", "minus_absmin_bits")
_ADDING = 5
"""The first five statistics add up; the last two take the larger value."""

_MAGNITUDE = 0x7FFFFFFF
_PIECE = {"cpu": 1 << 18}
_PIECE_ELSEWHERE = 1 << 24
"""Elements handled at once: on a CPU what stays in its cache, elsewhere what keeps temporary memory below 0.5 GB."""


class Row(NamedTuple):
    """Statistics of ``elements`` numbers on their device: float64 [7] (``STATISTICS``) and int64 [512] or None."""

    elements: int
    statistics: torch.Tensor
    hist: torch.Tensor | None


@torch.no_grad()
def measure(tensor: torch.Tensor, *, histogram: bool, divisor: float = 1.0) -> Row:
    """The row of ``tensor / divisor``: any floating dtype, shape and strides, on any device.

    Nothing waits for the device. float64 elements count through their float32 value, finite ones clamped to it.
    """
    device = tensor.device
    row: Row | None = None
    for piece in pieces(tensor.detach(), _PIECE.get(device.type, _PIECE_ELSEWHERE)):
        part = _measure_piece(as_float32(piece, divisor), histogram=histogram)
        row = part if row is None else merge_(row, part)
    if row is not None:
        return row
    statistics = torch.zeros(len(STATISTICS), dtype=torch.float64, device=device)
    statistics[-1:] = -INFINITY_BITS
    return Row(0, statistics, torch.zeros(BINS, dtype=torch.int64, device=device) if histogram else None)


def merge_(into: Row, other: Row) -> Row:
    """``into`` with ``other`` merged in place, on the device; both have a histogram or neither has."""
    into.statistics[:_ADDING] += other.statistics[:_ADDING]
    extremes = into.statistics[_ADDING:]
    torch.maximum(extremes, other.statistics[_ADDING:], out=extremes)
    if into.hist is not None and other.hist is not None:
        into.hist.add_(other.hist)
    return into._replace(elements=into.elements + other.elements)


def pieces(tensor: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """``tensor`` as non-empty 1-D pieces of at most ``limit`` elements, in any order; views where strides allow."""
    if tensor.numel() == 0:
        return
    if tensor.numel() <= limit:
        yield tensor.reshape(-1)
        return
    dense = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if dense.is_contiguous():
        yield from torch.split(dense.view(-1), limit)
    else:
        slices = max(1, limit * dense.shape[0] // dense.numel())
        for part in torch.split(dense, slices) if slices > 1 else dense.unbind():
            yield from pieces(part, limit)


def as_float32(piece: torch.Tensor, divisor: float) -> torch.Tensor:
    if divisor != 1.0 or piece.dtype == torch.float64:
        limit = torch.finfo(torch.float32).max
        wide = piece.to(torch.float64)
        divided = (wide / divisor).clamp(-limit, limit)
        piece = torch.where(wide.isinf(), wide, divided)
    return piece.to(torch.float32)


def _measure_piece(x: torch.Tensor, *, histogram: bool) -> Row:
    magnitude = x.view(torch.int32) & _MAGNITUDE
    absmax = magnitude.amax()
    if x.device.type == "cpu" and int(absmax) < INFINITY_BITS:
        # CPU memory is read without waiting, and masking costs more than all the rest.
        nans = infs = torch.zeros((), dtype=torch.int64, device=x.device)
    else:
        nans, infs = (magnitude > INFINITY_BITS).sum(), (magnitude == INFINITY_BITS).sum()
        finite = magnitude < INFINITY_BITS
        x, magnitude = torch.where(finite, x, 0.0), torch.where(finite, magnitude, 0)
        absmax = magnitude.amax()
    nonzero = torch.count_nonzero(magnitude)
    # One less than the bits of the magnitude: its bin is the top ten bits, and zero becomes -1.
    rank = magnitude - 1
    # Masking turns -1 into the largest integer, so that zeros lose against every other element.
    absmin = (rank & _MAGNITUDE).amin().clamp(max=INFINITY_BITS - 1) + 1
    doubles = x.to(torch.float64)
    total = doubles.sum()
    values = (x.numel() - nonzero - nans - infs, nans, infs, total, doubles.square_().sum(), absmax, -absmin)
    if x.device.type == "cpu":
        # Through Python it takes a quarter of the time.
        statistics = torch.tensor([value.item() for value in values], dtype=torch.float64, device=x.device)
    else:
        statistics = torch.stack([value.to(torch.float64) for value in values])
    return Row(x.numel(), statistics, histogram_of_ranks(rank) if histogram else None)


def histogram_of_ranks(rank: torch.Tensor) -> torch.Tensor:
    bins = (rank >> 22) + 1
    # bincount reads the largest bin back to the host, which on other devices would wait.
    return torch.bincount(bins, minlength=BINS + 1)[1:] if bins.device.type == "cpu" else _scattered_ones(bins)


def _scattered_ones(bins: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(BINS + 1, dtype=torch.int64, device=bins.device)
    one = torch.ones((), dtype=torch.int64, device=bins.device)
    return counts.scatter_add_(0, bins.to(torch.int64), one.expand(bins.numel()))[1:]


def row_summary(row: Row) -> Summary:
    """``row`` as a Summary. Waits for the device."""
    values = dict(zip(STATISTICS, row.statistics.tolist(), strict=True))
    extremes = magnitude_of_bits(np.array([values["absmax_bits"], -values["minus_absmin_bits"]]))
    summary = Summary(
        count=row.elements,
        zeros=int(values["zeros"]),
        nans=int(values["nans"]),
        infs=int(values["infs"]),
        absmax=float(extremes[0]),
        absmin=float(extremes[1]),
        sum=values["sum"],
        sumsq=values["sumsq"],
    )
    if row.hist is None:
        return summary
    return summary.merge(Summary(hist=row.hist.cpu().numpy(), hist_n=row.elements))


def summarize(tensor_or_tensors: torch.Tensor | Iterable[torch.Tensor], *, scale: float = 1.0) -> Summary:
    """The exact Summary of a floating-point tensor, or of several merged into one.

    ``scale`` is the factor already in the tensors (a loss scale, say); the fields are of tensor / scale. float64 counts
    through its float32 value, finite elements clamped to float32's range. A query: it waits for the device.
    ``ValueError`` for a tensor that is not floating point and for a scale that is not positive and finite.
    """
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    tensors = [tensor_or_tensors] if isinstance(tensor_or_tensors, torch.Tensor) else list(tensor_or_tensors)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ValueError(f"summarize takes floating-point tensors, got {kind}")
    with OwnOperations():
        return Summary.merged(row_summary(measure(tensor, histogram=True, divisor=scale)) for tensor in tensors)


class Reference:
    """The variant in plain torch, for every device."""

    name = "torch"
    samples_histogram = False

    def plan(self, at: Sequence[int]) -> Plan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th."""
        return _Plan(self, tuple(at))

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row. ``ValueError`` when its storage does not hold it."""
        require_memory(tensor)
        row = measure(tensor, histogram=hist is not None)
        if tensor.device.type == "cpu":
            _merge_on_the_host(row, words.numpy(), hist.numpy() if hist is not None else None)
            return
        zeros, nans, infs, total, squares, absmax, minus_absmin = row.statistics.unbind()
        adding = torch.stack([zeros, nans, infs]).to(torch.int64)
        words[: WordAt.ABSMAX] += adding
        extremes = torch.stack([absmax, minus_absmin + INFINITY_BITS]).to(torch.int64)
        torch.maximum(words[WordAt.ABSMAX : WordAt.SUM], extremes, out=words[WordAt.ABSMAX : WordAt.SUM])
        words[WordAt.SUM : WordAt.ELEMENTS].view(torch.float64).add_(torch.stack([total, squares]))
        words[WordAt.ELEMENTS] += row.elements
        words[WordAt.TENSORS] += 1
        if hist is not None and row.hist is not None:
            hist += row.hist.to(torch.int32)
            words[WordAt.SAMPLED] += row.elements


def _merge_on_the_host(row: Row, into: NDArray[np.int64], counts: NDArray[np.int32] | None) -> None:
    # In numpy: for small tensors a dozen operations of torch would take longer than the measuring.
    zeros, nans, infs, total, squares, absmax, minus_absmin = row.statistics.tolist()
    into[WordAt.ZEROS] += int(zeros)
    into[WordAt.NANS] += int(nans)
    into[WordAt.INFS] += int(infs)
    into[WordAt.ABSMAX] = max(int(into[WordAt.ABSMAX]), int(absmax))
    into[WordAt.ABSMIN_GAP] = max(int(into[WordAt.ABSMIN_GAP]), int(minus_absmin) + INFINITY_BITS)
    sums = into[WordAt.SUM : WordAt.ELEMENTS].view(np.float64)
    sums += (total, squares)
    into[WordAt.ELEMENTS] += row.elements
    into[WordAt.TENSORS] += 1
    if counts is not None and row.hist is not None:
        np.add(counts, row.hist.numpy(), out=counts, casting="unsafe")
        into[WordAt.SAMPLED] += row.elements


class _Plan:
    def __init__(self, variant: Reference, at: tuple[int, ...]) -> None:
        self._variant, self._at = variant, at

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        for at, tensor in zip(self._at, tensors, strict=True):
            self._variant.measure(tensor, rows.words[at], rows.hist[at] if histogram else None)
