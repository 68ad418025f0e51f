"""Rows of statistics on a device: the layout that every variant of the pass writes, and how it is read.

Every word starts at zero and is merged by adding or by taking the larger integer, so a step begins with one fill,
tensors of any number merge into one row in any order, and a kernel needs nothing but atomics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope._summary import BINS, INFINITY_BITS, Counts, Floats, Summary, magnitude_of_bits

__all__ = ["MAX_ROW_ELEMENTS", "WORDS", "Plan", "RowValues", "Rows", "Variant", "WordAt"]

WORDS = (
    "zeros",
    "nans",
    "infs",
    "absmax_bits",
    "absmin_gap",
    "sum",
    "sumsq",
    "elements",
    "sampled",
    "tensors",
)
"""Names of a row's int64 words.

``absmax_bits``: float32 bits of the largest finite magnitude. ``absmin_gap``: 0x7F800000 less the bits of the smallest
non-zero finite magnitude, 0 without one. Both merge by maximum, all others by addition. ``sum``, ``sumsq``: bits of a
float64. ``elements``: of the tensors. ``sampled``: those of them in the histogram. ``tensors``: how many merged.
"""


class WordAt:
    """Places of the words."""

    ZEROS, NANS, INFS, ABSMAX, ABSMIN_GAP, SUM, SUMSQ, ELEMENTS, SAMPLED, TENSORS = range(len(WORDS))


MAX_ROW_ELEMENTS = (1 << 32) - 1
"""Elements that may be merged into one row: a bin of its histogram counts in 32 bits."""


class Rows:
    """``capacity`` rows on ``device``, all of no elements.

    ``words`` is int64 [capacity, 10] (``WORDS``), ``hist`` int32 [capacity, 512], whose bits are those of a uint32.
    ``numbers`` is float64 [numbers], for anything else that travels with the rows; it lies in front of ``words`` in
    one ``block`` of memory (int64 [numbers + 10 * capacity]), so that one copy takes both.
    """

    def __init__(self, capacity: int, device: torch.device | str, *, numbers: int = 0) -> None:
        self.block = torch.zeros(numbers + capacity * len(WORDS), dtype=torch.int64, device=device)
        self.numbers = self.block[:numbers].view(torch.float64)
        self.words = self.block[numbers:].view(capacity, len(WORDS))
        self.hist = torch.zeros((capacity, BINS), dtype=torch.int32, device=device)

    @property
    def capacity(self) -> int:
        """Number of rows."""
        return self.words.shape[0]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.words.device


class Plan(Protocol):
    """A list of tensors that is measured again and again, their rows being the same each time."""

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        """Merge the statistics of ``tensors[i]`` into the row of ``rows`` that the plan has for it.

        Tensors of any floating dtype, shape and strides, on the device of ``rows``. No host synchronisation.
        """


class Variant(Protocol):
    """One implementation of the pass; all have this signature, and the same results on the same tensors."""

    @property
    def name(self) -> str:
        """What people read: "torch", "nvrtc", "hiprtc", "triton", "cpu"."""

    @property
    def samples_histogram(self) -> bool:
        """Whether histograms cover a part of the elements only, as the words say."""

    def plan(self, at: Sequence[int]) -> Plan:
        """A plan for ``len(at)`` tensors, ``at[i]`` being the row of the i-th."""

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row: ``words`` int64 [10] and ``hist`` int32 [512] or None.

        No host synchronisation. For use inside compiled and captured code, where no table can be kept.
        """


class RowValues(NamedTuple):
    """Rows on the host: int64 [n, 10] and uint32 [n, 512] or None."""

    words: NDArray[np.int64]
    hist: NDArray[np.uint32] | None

    def word(self, place: int) -> NDArray[np.int64]:
        """One word of every row: int64 [n]."""
        return self.words[:, place]

    @property
    def sum(self) -> Floats:
        """float64 [n]."""
        return np.ascontiguousarray(self.words[:, WordAt.SUM]).view(np.float64)

    @property
    def sumsq(self) -> Floats:
        """float64 [n]."""
        return np.ascontiguousarray(self.words[:, WordAt.SUMSQ]).view(np.float64)

    @property
    def absmax(self) -> Floats:
        """float64 [n]; 0 where nothing is finite and non-zero."""
        return magnitude_of_bits(self.words[:, WordAt.ABSMAX])

    @property
    def absmin(self) -> Floats:
        """float64 [n]; inf where nothing is finite and non-zero."""
        return magnitude_of_bits(INFINITY_BITS - self.words[:, WordAt.ABSMIN_GAP])

    def counts(self, rows: slice | NDArray[np.intp]) -> Counts | None:
        """Histograms of ``rows`` as int64 [n, 512]."""
        return None if self.hist is None else self.hist[rows].astype(np.int64)

    def summary(self, row: int) -> Summary:
        """One row as a Summary."""
        words = dict(zip(WORDS, self.words[row].tolist(), strict=True))
        summary = Summary(
            count=words["elements"],
            zeros=words["zeros"],
            nans=words["nans"],
            infs=words["infs"],
            absmax=float(self.absmax[row]),
            absmin=float(self.absmin[row]),
            sum=float(self.sum[row]),
            sumsq=float(self.sumsq[row]),
        )
        if self.hist is None:
            return summary
        return summary.merge(Summary(hist=self.hist[row].astype(np.int64), hist_n=words["sampled"]))
