"""Statistics that are derived when read: one plane [steps, layers] of float32 per metric.

A cell that was not observed holds the payload ``wire.MISSING_BITS``; an observed NaN holds the ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floatscope import wire

__all__ = ["METRICS", "MISSING", "Frame", "Metric", "headroom"]

MISSING = np.array([wire.MISSING_BITS], np.uint32).view(np.float32)[0]

Plane = npt.NDArray[np.float32]
Limits = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded ``wire.Summaries``: ``fields`` hold [steps, layers], ``layers`` the run's indices."""

    first_step: int
    steps: int
    layers: npt.NDArray[np.int64]
    fields: dict[str, npt.NDArray[np.generic]]

    @classmethod
    def of(cls, part: wire.Summaries) -> Frame:
        """Views on the bytes of ``part``; nothing is copied."""
        return cls(
            first_step=part.first_step,
            steps=part.steps,
            layers=np.frombuffer(part.layers, "<u4").astype(np.int64),
            fields={f.name: np.frombuffer(f.data, f.dtype).reshape(part.steps, -1) for f in part.fields},
        )

    def between(self, first: int, last: int) -> Frame:
        """The steps from ``first`` to ``last``, one of which must be in it; nothing is copied."""
        low = max(first - self.first_step, 0)
        high = min(last - self.first_step + 1, self.steps)
        return Frame(
            first_step=self.first_step + low,
            steps=high - low,
            layers=self.layers,
            fields={name: field[low:high] for name, field in self.fields.items()},
        )

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        """A field as float64; NaN where the agent did not send it."""
        field = self.fields.get(name)
        if field is None:
            return np.full((self.steps, len(self.layers)), np.nan)
        return field.astype(np.float64)

    @property
    def nonfinite(self) -> npt.NDArray[np.float64]:
        """NaNs and infinities per cell."""
        return np.nan_to_num(self["nans"]) + np.nan_to_num(self["infs"])


def _plane(values: npt.NDArray[np.float64], observed: npt.NDArray[np.bool_]) -> Plane:
    plane = values.astype(np.float32)
    plane[np.isnan(plane) | ~observed] = MISSING
    return plane


def headroom(frame: Frame, log2_max: Limits) -> Plane:
    """log2(max / (absmax x scale)) in bits, ``log2_max`` [layers] being NaN for a layer without a format.

    -inf where anything was not finite, +inf where all was zero.
    """
    scale = frame["scale"]
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = log2_max - np.log2(frame["absmax"]) - np.where(scale > 0, np.log2(scale), 0.0)
    bits = np.where((frame.nonfinite > 0) & ~np.isnan(log2_max), -np.inf, bits)
    return _plane(bits, frame["count"] > 0)


def _absmax(frame: Frame, _: Limits) -> Plane:
    return _plane(frame["absmax"], frame["count"] > 0)


def _absmin(frame: Frame, _: Limits) -> Plane:
    absmin = frame["absmin"]
    return _plane(absmin, (frame["count"] > 0) & np.isfinite(absmin))


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
    return _plane(frame.nonfinite, frame["count"] > 0)


def _executed(name: str) -> Callable[[Frame, Limits], Plane]:
    def share(frame: Frame, log2_max: Limits) -> Plane:
        return _plane(frame[name], (frame["count"] > 0) & ~np.isnan(log2_max))

    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How a metric is read. ``worst`` is the end that a pooled cell shows.

    ``executed`` means that it was counted in the format the layer ran in, and exists in no other.
    """

    unit: str
    worst: str
    plane: Callable[[Frame, Limits], Plane]
    executed: bool = False


METRICS = {
    "headroom": Metric(unit="bits", worst="min", plane=headroom),
    "absmax": Metric(unit="", worst="max", plane=_absmax),
    "absmin": Metric(unit="", worst="min", plane=_absmin),
    "rms": Metric(unit="", worst="max", plane=_rms),
    "mean": Metric(unit="", worst="max", plane=_mean),
    "zeros": Metric(unit="share", worst="max", plane=_zeros),
    "underflow": Metric(unit="share", worst="max", plane=_executed("under"), executed=True),
    "overflow": Metric(unit="share", worst="max", plane=_executed("over_high"), executed=True),
    "nonfinite": Metric(unit="elements", worst="max", plane=_nonfinite),
}
