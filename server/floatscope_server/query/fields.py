"""Statistics that are derived when read: one plane [steps, layers] of float32 per metric.

A cell that was not observed holds the payload ``wire.MISSING_BITS``, and nothing else is a NaN: statistics cover finite
elements only, and NaNs are counted in ``nonfinite``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope_server.frame import Frame, headroom_bits

__all__ = ["METRICS", "MISSING", "Metric", "headroom"]

MISSING = np.array([wire.MISSING_BITS], np.uint32).view(np.float32)[0]

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
    """How a metric is read. ``worst`` is the end that a pooled cell shows.

    ``executed`` means that it was counted in the format the layer ran in, and exists in no other. ``merged`` are the
    fields of which it is made where the worst of the ranks is not what they give together.
    """

    unit: str
    worst: str
    plane: Callable[[Frame, Limits], Plane]
    executed: bool = False
    merged: tuple[str, ...] = ()


METRICS = {
    "headroom": Metric(unit="bits", worst="min", plane=headroom),
    "absmax": Metric(unit="", worst="max", plane=_absmax),
    "absmin": Metric(unit="", worst="min", plane=_absmin),
    "rms": Metric(unit="", worst="max", plane=_rms, merged=("nans", "infs", "sumsq")),
    "mean": Metric(unit="", worst="max", plane=_mean, merged=("nans", "infs", "sum")),
    "zeros": Metric(unit="share", worst="max", plane=_zeros, merged=("zeros",)),
    "underflow": Metric(unit="share", worst="max", plane=_executed("under"), executed=True, merged=("under",)),
    "overflow": Metric(unit="share", worst="max", plane=_executed("over_high"), executed=True, merged=("over_high",)),
    "nonfinite": Metric(unit="elements", worst="max", plane=_nonfinite, merged=("nans", "infs")),
}
