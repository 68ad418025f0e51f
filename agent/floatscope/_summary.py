"""Summaries of tensors that merge: counts and sums add, extremes take max and min, histograms add.

The histogram has 512 half-octave bins over float32: bin i counts finite non-zero magnitudes in (edge(i), edge(i + 1)],
edge(i) being the float32 with bits ``i << 22``, that is 2**k and 1.5 * 2**k. Such an edge is where power-of-two scales
put the thresholds of every format, so what a format would lose can be computed afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope._formats import format_named, formats

__all__ = [
    "BINS",
    "INFINITY_BITS",
    "Bracket",
    "Shares",
    "SparseHistograms",
    "Summary",
    "count_at_or_below",
    "magnitude_of_bits",
    "rescaled_histogram",
    "shares_in_format",
    "sparse_shares",
]

BINS = 512
INFINITY_BITS = 0x7F800000
_FINITE_BINS = INFINITY_BITS >> 22
"""Bins 0 to 509 hold finite values; the last two are those of the bits of Inf and NaN and stay empty."""

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]


def magnitude_of_bits(bits: ArrayLike) -> Floats:
    """Float64 values of float32 magnitudes given by their bits.

    Subnormals are computed from the integer: a conversion would give zero in a thread that flushes denormals.
    """
    integers = np.asarray(bits).astype(np.int64)
    normal = integers.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(integers < 1 << 23, integers * 2.0**-149, normal)


def _edges() -> Floats:
    edges = magnitude_of_bits(np.arange(_FINITE_BINS + 1, dtype=np.int64) << 22)
    # The upper edge of the last bin has the bits of infinity; for interpolation it is the next power of two.
    edges[-1] = 2.0**128
    edges.flags.writeable = False
    return edges


_EDGES = _edges()


@dataclass(frozen=True, slots=True)
class Bracket:
    """How many elements lie at or below a threshold: at least ``low``, at most ``high``, about ``estimate``."""

    low: Floats
    high: Floats
    estimate: Floats


def count_at_or_below(
    hist: Counts, threshold: ArrayLike, absmin: ArrayLike, absmax: ArrayLike, *, cumulative: Counts | None = None
) -> Bracket:
    """Per row, the number of histogrammed magnitudes at or below ``threshold``.

    ``hist`` is int64 [..., 512]; ``threshold``, ``absmin`` and ``absmax`` (smallest and largest magnitude counted)
    broadcast against its leading shape. Exact (low = high) where the threshold is a bin edge or lies outside
    [absmin, absmax). Inside a bin the estimate takes magnitudes to be spread evenly between its edges. ``cumulative``
    is the running sum of ``hist`` over its bins, for callers that ask for several thresholds: it is what takes long.
    """
    t, smallest, largest = np.broadcast_arrays(
        *(np.asarray(a, dtype=np.float64) for a in (threshold, absmin, absmax)), np.empty(hist.shape[:-1])
    )[:3]
    if cumulative is None:
        cumulative = np.cumsum(hist, axis=-1)
    total = cumulative[..., -1].astype(np.float64)
    bin_ = _bin_of(t)
    inside = np.take_along_axis(hist, bin_[..., None], axis=-1)[..., 0].astype(np.float64)
    left = np.take_along_axis(cumulative, bin_[..., None], axis=-1)[..., 0] - inside
    return _bracket(t, bin_, left, inside, total, smallest, largest)


@dataclass(frozen=True, slots=True)
class SparseHistograms:
    """Rows of int64 [L]: row r has ``length[r]`` counts from bin ``first[r]`` on; they lie one row after the other in
    ``counts``."""

    first: Counts
    length: Counts
    counts: Counts

    @property
    def total(self) -> Floats:
        """Elements of each row."""
        starts, running = self._running()
        elements: Floats = running[starts + self.length] - running[starts]
        return elements

    def at_or_below(self, threshold: ArrayLike) -> Bracket:
        """As ``count_at_or_below``, where the extremes are not known."""
        t = np.broadcast_to(np.asarray(threshold, dtype=np.float64), self.first.shape)
        bin_ = _bin_of(t)
        starts, running = self._running()
        place = starts + np.clip(bin_ - self.first, 0, self.length)
        after = starts + np.clip(bin_ + 1 - self.first, 0, self.length)
        left = running[place] - running[starts]
        return _bracket(t, bin_, left, running[after] - running[place], self.total, np.zeros(1), np.full(1, np.inf))

    def _running(self) -> tuple[Counts, Floats]:
        ends = np.cumsum(self.length)
        return ends - self.length, np.concatenate([np.zeros(1), np.cumsum(self.counts, dtype=np.float64)])


def _bin_of(threshold: Floats) -> NDArray[np.intp]:
    return np.clip(np.searchsorted(_EDGES, threshold, side="right") - 1, 0, _FINITE_BINS - 1)


def _bracket(
    t: Floats, bin_: NDArray[np.intp], left: Floats, inside: Floats, total: Floats, smallest: Floats, largest: Floats
) -> Bracket:
    """``left`` elements lie in bins before ``bin_``, in which ``t`` lies, and ``inside`` in it."""
    low_edge, high_edge = _EDGES[bin_], _EDGES[bin_ + 1]
    # The extremes are exact, so one element of the bin is known to lie on each side.
    known_below = (inside > 0) & (smallest > low_edge) & (smallest <= t)
    known_above = (inside > 0) & (largest <= high_edge) & (largest > t)
    on_edge = t == low_edge
    low = np.where(on_edge, left, left + known_below)
    high = np.where(on_edge, left, left + inside - known_above)
    start, end = np.maximum(low_edge, np.where(known_below, smallest, 0.0)), np.minimum(high_edge, largest)
    share = np.clip((t - start) / np.where(end > start, end - start, 1.0), 0.0, 1.0)
    estimate = np.clip(left + share * inside, low, high)
    all_below, none_below = t >= largest, t < smallest
    low, high, estimate = (
        np.where(all_below, total, np.where(none_below, 0.0, value)) for value in (low, high, estimate)
    )
    return Bracket(low, high, estimate)


def rescaled_histogram(hist: Counts, scale: ArrayLike) -> Counts:
    """Histograms (int64 [L, 512]) of ``x / scale`` from those of ``x``; ``scale`` is [L], positive and finite.

    Exact for a power of two while values stay normal numbers; another scale moves by the nearest half octave. Values
    that leave the range are counted in its first or last bin.
    """
    shift = np.rint(2 * np.log2(np.broadcast_to(np.asarray(scale, dtype=np.float64), hist.shape[:1]))).astype(np.int64)
    if not shift.any():
        return hist
    target = np.clip(np.arange(BINS)[None, :] - shift[:, None], 0, _FINITE_BINS - 1)
    moved = np.zeros_like(hist)
    np.add.at(moved, (np.arange(len(hist))[:, None], target), hist)
    return moved


@dataclass(frozen=True, slots=True)
class Shares:
    """Of finite non-zero elements: what rounds to zero, lies above the maximum (at least, at most), and lands on one of
    the three smallest magnitudes of the format, its two lowest octaves. NaN where that is not known."""

    under: Floats
    over_low: Floats
    over_high: Floats
    floor: Floats


def shares_in_format(
    hist: Counts, absmin: ArrayLike, absmax: ArrayLike, scale: ArrayLike, names: Sequence[str]
) -> Shares:
    """The shares of each row of ``hist`` (int64 [L, 512]) in the format ``names[row]`` after multiplication by
    ``scale``.

    ``absmin``, ``absmax`` and ``scale`` broadcast to [L]. Shares are not known without elements, or at a scale that is
    not positive and finite. ``KeyError`` for an unknown format.
    """
    factor = np.broadcast_to(np.asarray(scale, dtype=np.float64), hist.shape[:1])
    cumulative = np.cumsum(hist, axis=1)

    def count(threshold: Floats) -> Bracket:
        return count_at_or_below(hist, threshold, absmin, absmax, cumulative=cumulative)

    return _shares(count, cumulative[:, -1], factor, names)


def sparse_shares(hist: SparseHistograms, scale: ArrayLike, names: Sequence[str]) -> Shares:
    """As ``shares_in_format``, where the extremes are not known."""
    factor = np.broadcast_to(np.asarray(scale, dtype=np.float64), hist.first.shape)
    return _shares(hist.at_or_below, hist.total, factor, names)


def _shares(count: Callable[[Floats], Bracket], total: Counts | Floats, factor: Floats, names: Sequence[str]) -> Shares:
    limits = [formats[name] for name in names]
    usable = np.where((factor > 0) & np.isfinite(factor), factor, np.nan)
    zero, largest, lowest = (
        np.array(values) / usable
        for values in (
            [f.zero_at_or_below for f in limits],
            [f.max for f in limits],
            [3 * f.min_subnormal for f in limits],
        )
    )
    under, fits, near = count(zero), count(largest), count(lowest)
    of = np.where((total > 0) & ~np.isnan(usable), total, np.nan)
    return Shares(
        under=under.estimate / of,
        over_low=(total - fits.high) / of,
        over_high=(total - fits.low) / of,
        floor=(near.estimate - under.estimate) / of,
    )


def _no_elements() -> Counts:
    hist = np.zeros(BINS, dtype=np.int64)
    hist.flags.writeable = False
    return hist


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """Statistics of the elements of one or more tensors; ``Summary()`` is that of no elements.

    ``count`` includes non-finite elements; ``absmax``, ``absmin`` (smallest non-zero magnitude), ``sum``, ``sumsq``
    and ``hist`` (int64 [512]) cover the finite ones. With nothing finite and non-zero, ``absmax`` is 0.0 and
    ``absmin`` inf. ``hist_n`` is the number of elements that went into the histogram. Sums are taken in float64, whose
    range holds the squares of all float32 numbers.
    """

    count: int = 0
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    absmax: float = 0.0
    absmin: float = math.inf
    sum: float = 0.0
    sumsq: float = 0.0
    hist: Counts = field(default_factory=_no_elements, repr=False)
    hist_n: int = 0

    @staticmethod
    def merged(summaries: Iterable[Summary]) -> Summary:
        """All of ``summaries`` as one."""
        total = Summary()
        for summary in summaries:
            total = total.merge(summary)
        return total

    def merge(self, other: Summary) -> Summary:
        """The summary of the elements of both; associative and commutative (float sums up to rounding)."""
        return Summary(
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            nans=self.nans + other.nans,
            infs=self.infs + other.infs,
            absmax=max(self.absmax, other.absmax),
            absmin=min(self.absmin, other.absmin),
            sum=self.sum + other.sum,
            sumsq=self.sumsq + other.sumsq,
            hist=self.hist + other.hist,
            hist_n=self.hist_n + other.hist_n,
        )

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nans - self.infs

    @property
    def mean(self) -> float:
        """Mean of the finite elements; NaN without any."""
        return self.sum / self.finite if self.finite else math.nan

    @property
    def rms(self) -> float:
        """Root of the mean square of the finite elements; NaN without any."""
        return math.sqrt(self.sumsq / self.finite) if self.finite else math.nan

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite elements."""
        return math.sqrt(self.sumsq)

    def underflow(self, format: str, scale: float = 1.0) -> float:  # noqa: A002 (the promised name)
        """Share of the finite non-zero elements that round to zero in ``format`` after multiplication by ``scale``.

        NaN without such elements. Exact when ``scale`` is a power of two and the threshold is a normal fp32 number;
        else within 2 % for smooth distributions. ``ValueError`` for an unknown format or a scale that is not positive.
        """
        threshold = format_named(format).zero_at_or_below / _positive(scale)
        return self._share(self._at_or_below(threshold).estimate)

    def overflow(self, format: str, scale: float = 1.0) -> tuple[float, float]:  # noqa: A002
        """Bounds (low, high) on the share of finite non-zero elements above the maximum of ``format`` at ``scale``.

        Both are 0.0 exactly when nothing is above it; NaN without finite non-zero elements. ``ValueError`` as for
        ``underflow``.
        """
        fits = self._at_or_below(format_named(format).max / _positive(scale))
        total = self.hist.sum()
        return self._share(total - fits.high), self._share(total - fits.low)

    def headroom(self, format: str, scale: float = 1.0) -> float:  # noqa: A002
        """log2(max / (absmax * scale)) in bits; negative is over the limit.

        -inf when there are non-finite elements, inf when nothing is finite and non-zero. ``ValueError`` as for
        ``underflow``.
        """
        limits = format_named(format)
        return -math.inf if self.nans or self.infs else limits.headroom(self.absmax, _positive(scale))

    def _at_or_below(self, threshold: float) -> Bracket:
        return count_at_or_below(self.hist, threshold, self.absmin, self.absmax)

    def _share(self, elements: ArrayLike) -> float:
        total = int(self.hist.sum())
        return float(elements) / total if total else math.nan  # type: ignore[arg-type]


def _positive(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale!r}")
    return float(scale)
