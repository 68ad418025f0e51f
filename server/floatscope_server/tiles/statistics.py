"""What a stream of summaries keeps of a layer and step: statistics at level 0, what pages show at the levels above.

The numbers are in the database and are never given to something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["POOLED", "RAW", "Agg", "Kept", "Stat"]


class Stat(IntEnum):
    """A statistic. Those up to FLOOR are at level 0, the fields of ``wire.Summaries`` with ``mean`` and ``rms`` for
    ``sum`` and ``sumsq`` (sum = mean x finite count, sumsq = rms^2 x finite count: a float32 sumsq would overflow)."""

    COUNT = 1
    ZEROS = 2
    NANS = 3
    INFS = 4
    ABSMAX = 5
    ABSMIN = 6
    MEAN = 7
    RMS = 8
    SCALE = 9
    UNDER = 10
    OVER_LOW = 11
    OVER_HIGH = 12
    FLOOR = 13
    ZERO_SHARE = 20
    """Zeros over count."""
    NONFINITE = 21
    """NaNs and infinities."""
    LOG2_AMAX = 22
    """log2(absmax x scale), from which headroom in any format follows; -inf for an all-zero tensor."""
    STEPS = 23
    """Steps of the cell in which the layer was observed."""
    RANKS = 24
    """No numbers but ``rank_sets.RankSets``, at level 0 of what several ranks send."""


class Agg(IntEnum):
    """What a plane is of its cell. At level 0 ``VALUE`` is that of all ranks merged. Statistics of ``POOLED`` have
    ``MAX`` and ``MIN`` there too: over what merges as one and each rank that does not, and for ``LOG2_AMAX`` over the
    ranks. ``RANK`` of ``ABSMAX`` is the rank of the largest magnitude. Above it ``MAX``, ``MIN`` and ``MEAN`` are over
    the steps (of the value at level 0; of ``MAX`` and ``MIN`` over the ranks where there are such), ``SUM`` is of
    histograms.

    A plane that equals another bit for bit is not stored: at level 0 ``MAX`` and ``MIN`` give way to ``VALUE`` (or to
    what ``planes.derived`` makes of it), above it ``MIN`` and ``MEAN`` to ``MAX``. A flag of the tile that is stored
    says which are stored apart; one that is and has no row is missing throughout. ``WEIGHT`` is how many steps a
    ``MEAN`` is of, where that is not ``Stat.STEPS``: a mean is over finite values only.
    """

    VALUE = 0
    MAX = 1
    MIN = 2
    MEAN = 3
    SUM = 4
    RANK = 5
    WEIGHT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How a statistic is kept. ``exact``: all bits of it, and as float64 where float32 cannot hold a count."""

    exact: bool = False


RAW: dict[Stat, Kept] = {
    Stat.COUNT: Kept(exact=True),
    Stat.ZEROS: Kept(exact=True),
    Stat.NANS: Kept(exact=True),
    Stat.INFS: Kept(exact=True),
    Stat.ABSMAX: Kept(),
    Stat.ABSMIN: Kept(),
    Stat.MEAN: Kept(),
    Stat.RMS: Kept(),
    Stat.SCALE: Kept(exact=True),
    Stat.UNDER: Kept(),
    Stat.OVER_LOW: Kept(),
    Stat.OVER_HIGH: Kept(),
    Stat.FLOOR: Kept(),
}
"""Level 0."""

POOLED: dict[Stat, Kept] = {
    Stat.ABSMAX: Kept(),
    Stat.ABSMIN: Kept(),
    Stat.MEAN: Kept(),
    Stat.RMS: Kept(),
    Stat.UNDER: Kept(),
    Stat.OVER_HIGH: Kept(),
    Stat.FLOOR: Kept(),
    Stat.ZERO_SHARE: Kept(),
    Stat.NONFINITE: Kept(exact=True),
    Stat.LOG2_AMAX: Kept(),
    Stat.STEPS: Kept(exact=True),
}
"""The levels above; ``STEPS`` has ``MAX`` alone."""
