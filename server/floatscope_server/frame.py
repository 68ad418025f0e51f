"""Summaries as arrays, decoded once for the rules and for what is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from floatscope import wire

__all__ = ["FIELD_DTYPES", "REQUIRED_FIELDS", "Frame", "headroom_bits"]

FIELD_DTYPES = {
    "count": "<i8",
    "zeros": "<i8",
    "nans": "<i8",
    "infs": "<i8",
    "absmax": "<f4",
    "absmin": "<f4",
    "sum": "<f8",
    "sumsq": "<f8",
    "scale": "<f4",
    "under": "<f4",
    "over_low": "<f4",
    "over_high": "<f4",
    "floor": "<f4",
}
REQUIRED_FIELDS = ("count", "zeros", "nans", "infs", "absmax")
"""Every stored summary has these; ``store.parts`` leaves out one that does not."""

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded ``wire.Summaries``: ``fields`` hold [steps, layers], ``layers`` the run's indices."""

    first_step: int
    steps: int
    layers: npt.NDArray[np.int64]
    fields: dict[str, npt.NDArray[np.generic]]
    placement: str = ""
    copy_of: int = -1

    @classmethod
    def of(cls, part: wire.Summaries) -> Frame:
        """Views on the bytes of ``part``; nothing is copied."""
        return cls(
            first_step=part.first_step,
            steps=part.steps,
            layers=np.frombuffer(part.layers, "<u4").astype(np.int64),
            fields={f.name: np.frombuffer(f.data, f.dtype).reshape(part.steps, -1) for f in part.fields},
            placement=part.placement,
            copy_of=part.copy_of,
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
            placement=self.placement,
            copy_of=self.copy_of,
        )

    def only(self, names: Collection[str]) -> Frame:
        """With no other fields than ``names``; nothing is copied."""
        if self.fields.keys() <= set(names):
            return self
        return replace(self, fields={name: field for name, field in self.fields.items() if name in names})

    def __getitem__(self, name: str) -> F64:
        """A field as float64; NaN where the agent did not send it."""
        field = self.fields.get(name)
        if field is None:
            return np.full((self.steps, len(self.layers)), np.nan)
        return field.astype(np.float64)

    @property
    def observed(self) -> npt.NDArray[np.bool_]:
        """Where anything was measured."""
        observed: npt.NDArray[np.bool_] = self.fields["count"] > 0  # type: ignore[operator]
        return observed

    @property
    def scale(self) -> F64:
        """The factor at the cast; 1 where none was reported."""
        scale = self["scale"]
        return np.where(np.isnan(scale), 1.0, scale)

    @property
    def amax(self) -> F64:
        """The largest finite magnitude as the format meets it, that is, times the scale. NaN for an all-zero tensor
        under an infinite scale, which is what the cast gives."""
        with np.errstate(invalid="ignore"):
            return self["absmax"] * self.scale

    @property
    def nonfinite(self) -> F64:
        """NaNs and infinities per cell."""
        return self["nans"] + self["infs"]


def headroom_bits(amax: F64, log2_top: F64) -> F64:
    """log2(top / amax) in bits: ``amax`` as the format meets it, ``log2_top`` of the format's largest number.

    +inf for an ``amax`` of 0, -inf for one that is infinite or NaN, NaN where ``log2_top`` is.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = log2_top - np.log2(amax)
    return np.where(np.isnan(amax) & ~np.isnan(log2_top), -np.inf, bits)
