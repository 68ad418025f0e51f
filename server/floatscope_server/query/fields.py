"""Statistics that are derived when read: one plane of float32 per metric, of a frame [steps, layers] or of a window
[layers, cells].

A cell that was not observed holds the payload ``wire.MISSING_BITS``, and nothing else is a NaN: statistics cover finite
elements only, and NaNs are counted in ``nonfinite``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from floatscope_server.frame import Frame, headroom_bits
from floatscope_server.tiles.codec import MISSING, is_missing
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["AGGREGATES", "METRICS", "MISSING", "Metric", "headroom"]

AGGREGATES = ("worst", "max", "min", "mean")
"""What a cell shows of its steps."""

Plane = npt.NDArray[np.float32]
Limits = npt.NDArray[np.float64]


def _plane(values: npt.NDArray[np.float64], observed: npt.NDArray[np.bool_]) -> Plane:
    plane = values.astype(np.float32)
    plane[np.isnan(plane) | ~observed] = MISSING
    return plane


def headroom(frame: Frame, log2_max: Limits) -> Plane:
    """Headroom in bits, ``log2_max`` [layers] being NaN for a layer without a format.

    -inf where anything was not finite, +inf where all was zero.
    """
    bits = headroom_bits(frame.amax, log2_max)
    bits = np.where((frame.nonfinite > 0) & ~np.isnan(log2_max), -np.inf, bits)
    return _plane(bits, frame.observed)


def _absmax(frame: Frame, _: Limits) -> Plane:
    return _plane(frame["absmax"], frame.observed)


def _absmin(frame: Frame, _: Limits) -> Plane:
    absmin = frame["absmin"]
    return _plane(absmin, (frame.observed) & np.isfinite(absmin))


def _finite(frame: Frame) -> npt.NDArray[np.float64]:
    return frame["count"] - frame.nonfinite


def _ratio(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> Plane:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _plane(part / whole, whole > 0)


def _rms(frame: Frame, _: Limits) -> Plane:
    finite = _finite(frame)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _plane(np.sqrt(frame["sumsq"] / finite), finite > 0)


def _mean(frame: Frame, _: Limits) -> Plane:
    return _ratio(frame["sum"], _finite(frame))


def _zeros(frame: Frame, _: Limits) -> Plane:
    return _ratio(frame["zeros"], frame["count"])


def _nonfinite(frame: Frame, _: Limits) -> Plane:
    return _plane(frame.nonfinite, frame.observed)


def _executed(name: str) -> Callable[[Frame, Limits], Plane]:
    def share(frame: Frame, log2_max: Limits) -> Plane:
        return _plane(frame[name], (frame.observed) & ~np.isnan(log2_max))

    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How a metric is read. ``worst`` is the end that a pooled cell shows. ``stat`` is what is stored of it.

    ``executed`` means that it was counted in the format the layer ran in, and exists in no other; ``may_lack``, that a
    layer can be observed without it. ``over`` makes it a ratio: of what it is in ``of_kind``, the only one that has
    it, to what it is in the kind ``over``.
    """

    unit: str
    worst: str
    stat: Stat
    plane: Callable[[Frame, Limits], Plane]
    executed: bool = False
    may_lack: bool = False
    of_kind: str | None = None
    over: str | None = None

    def wanted(self, agg: str) -> tuple[tuple[Stat, Agg], ...]:
        """The planes of a window from which ``of`` makes the cells; the first says where a layer was observed."""
        of = self._agg(agg)
        if self.stat != Stat.LOG2_AMAX:
            return ((self.stat, of),)
        # Little headroom is a large magnitude. What is not finite in every step leaves none in any.
        turned = {Agg.MAX: Agg.MIN, Agg.MIN: Agg.MAX}.get(of, of)
        return (self.stat, turned), (Stat.NONFINITE, Agg.MAX if of == Agg.MIN else Agg.MIN)

    def of(self, planes: Mapping[tuple[Stat, Agg], npt.NDArray[np.generic]], agg: str, limits: Limits) -> Plane:
        """The cells [layers, cells] of ``planes``, ``limits`` [layers] being log2 of each layer's largest number."""
        wanted = self.wanted(agg)
        values = np.asarray(planes[wanted[0]])
        if self.stat == Stat.LOG2_AMAX:
            known = ~np.isnan(limits)
            bits: Plane = np.subtract(limits.astype(np.float32)[:, None], values, dtype=np.float32)
            broken = np.asarray(planes[wanted[1]]) > 0
            if broken.any():
                bits[broken] = -np.inf
            bits[~known] = MISSING
            gone = np.isnan(values)
            if gone.any():
                bits[gone & is_missing(values)] = MISSING
            return bits
        shown = values.astype(np.float32)
        if self.executed and (unknown := np.isnan(limits)).any():
            shown = shown.copy() if shown is values else shown
            shown[unknown] = MISSING
        return shown

    def _agg(self, agg: str) -> Agg:
        return {"max": Agg.MAX, "min": Agg.MIN, "mean": Agg.MEAN}[self.worst if agg == "worst" else agg]


def _metric(
    stat: Stat, plane: Callable[[Frame, Limits], Plane], *, unit: str = "", worst: str = "max", executed: bool = False
) -> Metric:
    may_lack = stat not in (Stat.LOG2_AMAX, Stat.ABSMAX, Stat.ZERO_SHARE, Stat.NONFINITE)
    return Metric(unit=unit, worst=worst, stat=stat, plane=plane, executed=executed, may_lack=may_lack)


METRICS = {
    "headroom": _metric(Stat.LOG2_AMAX, headroom, unit="bits", worst="min"),
    "absmax": _metric(Stat.ABSMAX, _absmax),
    "absmin": _metric(Stat.ABSMIN, _absmin),
    "rms": _metric(Stat.RMS, _rms),
    "mean": _metric(Stat.MEAN, _mean),
    "zeros": _metric(Stat.ZERO_SHARE, _zeros, unit="share"),
    "underflow": _metric(Stat.UNDER, _executed("under"), unit="share", executed=True),
    "overflow": _metric(Stat.OVER_HIGH, _executed("over_high"), unit="share", executed=True),
    "floor": _metric(Stat.FLOOR, _executed("floor"), unit="share", executed=True),
    "nonfinite": _metric(Stat.NONFINITE, _nonfinite, unit="elements"),
    "ratio": replace(_metric(Stat.RMS, _rms), of_kind="update", over="weight"),
}
