"""What the client answers: numpy arrays with what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HeatMap", "Histogram", "Series"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A scalar. Each array has an entry per point: the first ``steps`` (int64) of a cell of ``cell`` steps, its mean in
    ``values``, and ``min`` and ``max`` (float64). ``n`` points are behind them."""

    name: str
    cell: int
    n: int
    steps: I64
    values: F64
    min: F64
    max: F64

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """bool, as long as ``steps``: False throughout, a step that was not logged is not there. A NaN is the
        scalar's."""
        return np.zeros(self.steps.shape, np.bool_)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas has no types here
        """A DataFrame by step with the columns ``value``, ``min``, ``max``."""
        index = _pandas().Index(self.steps, name="step")
        return _pandas().DataFrame({"value": self.values, "min": self.min, "max": self.max}, index=index)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """``values`` (float32 [layers, columns]) of a metric: a column begins at a step of ``steps`` (int64) and covers
    ``cell`` of them. NaN where nothing was observed, and there ``missing`` (bool) is True; layers are in execution
    order. ``unit`` is that of the values ("bits", "share", ...)."""

    kind: str
    metric: str
    format: str
    unit: str
    cell: int
    steps: I64
    layers: tuple[str, ...]
    formats: tuple[str | None, ...]
    values: npt.NDArray[np.float32]
    missing: npt.NDArray[np.bool_]

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas has no types here
        """A DataFrame with a row per layer and a column per step; NaN where nothing was observed."""
        pandas = _pandas()
        return pandas.DataFrame(
            self.values, index=pandas.Index(self.layers, name="layer"), columns=pandas.Index(self.steps, name="step")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How a layer's magnitudes were distributed.

    ``counts`` (int64 [columns, bins]) has a row for each stretch of steps: ``first_steps``, ``steps`` of them, over
    ``sampled`` elements (int64 [columns] each). Bin i counts finite magnitudes above ``edges[i]`` and up to
    ``edges[i + 1]`` (float64 [bins + 1]); zeros are in none. ``complete`` (bool [columns]): every rank has reported.
    """

    layer: str
    kind: str
    edges: F64
    counts: I64
    first_steps: I64
    steps: I64
    sampled: I64
    complete: npt.NDArray[np.bool_]

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """bool [columns]: stretches of which no element was sampled."""
        missing: npt.NDArray[np.bool_] = self.sampled == 0
        return missing

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas has no types here
        """A DataFrame with a row per stretch, by its first step, and a column per bin, by its lower edge."""
        pandas = _pandas()
        return pandas.DataFrame(
            self.counts,
            index=pandas.Index(self.first_steps, name="step"),
            columns=pandas.Index(self.edges[:-1], name="above"),
        )


def _pandas() -> Any:  # noqa: ANN401 - pandas has no types here
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("to_pandas() needs pandas; type: pip install pandas", name="pandas") from error
