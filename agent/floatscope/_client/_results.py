"""What the client answers: numpy arrays with what belongs to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope._client._block import missing_of

__all__ = ["HeatMap", "Histogram", "Latest", "LayerSeries", "Series"]

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

    @classmethod
    def of(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Series:
        """What the server says of a series."""
        return cls(
            name=meta["name"],
            cell=meta["cell"],
            n=meta["n"],
            steps=arrays["steps"],
            values=arrays["values"],
            min=arrays["min"],
            max=arrays["max"],
        )

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
class LayerSeries:
    """Metrics of a layer: for each a ``Series`` on the same steps, its unit, and the format that it was measured in
    (None: the layer has none). What was not observed is NaN."""

    layer: str
    kind: str
    metrics: Mapping[str, Series]
    units: Mapping[str, str]
    formats: Mapping[str, str | None]

    @classmethod
    def of(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> LayerSeries:
        """What the server says of a layer."""
        metrics = {}
        for name in meta["units"]:
            values, low, high = (arrays[f"{name}/{key}"].astype(np.float64) for key in ("values", "min", "max"))
            metrics[name] = Series(
                name=name,
                cell=meta["cell"],
                n=int(np.isfinite(values).sum()),
                steps=arrays["steps"],
                values=values,
                min=low,
                max=high,
            )
        return cls(
            layer=meta["layer"], kind=meta["kind"], metrics=metrics, units=meta["units"], formats=meta["formats"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The newest of each of ``layers``: its step in ``steps`` (int64; -1: nothing lately), and by metric its ``values``
    (float64; NaN: not observed)."""

    kind: str
    layers: tuple[str, ...]
    steps: I64
    values: Mapping[str, F64]

    @classmethod
    def of(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Latest:
        """What the server says."""
        return cls(
            kind=meta["kind"],
            layers=tuple(meta["names"]),
            steps=arrays["steps"],
            values={
                name.removeprefix("values/"): array.astype(np.float64)
                for name, array in arrays.items()
                if name.startswith("values/")
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """``values`` (float32 [layers, columns]) of a metric: a column begins at a step of ``steps`` (int64) and covers
    ``cell`` of them. NaN where nothing was observed, and there ``missing`` (bool) is True; layers are in execution
    order. ``unit`` is that of the values ("bits", "share", ...). ``resolution`` is larger than ``cell`` where only
    columns of so many steps are left of what was observed."""

    kind: str
    metric: str
    format: str
    unit: str
    cell: int
    resolution: int
    steps: I64
    layers: tuple[str, ...]
    formats: tuple[str | None, ...]
    values: npt.NDArray[np.float32]
    missing: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, meta: Mapping[str, Any], values: npt.NDArray[np.float32]) -> HeatMap:
        """What the server says of a heat map."""
        return cls(
            kind=meta["kind"],
            metric=meta["metric"],
            format=meta["format"],
            unit=meta["unit"],
            cell=meta["cell"],
            resolution=meta["resolution"],
            steps=np.array(meta["columns"], np.int64),
            layers=tuple(layer["name"] for layer in meta["layers"]),
            formats=tuple(layer["format"] for layer in meta["layers"]),
            values=values,
            missing=missing_of(values),
        )

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

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Histogram:
        """What the server says of the histograms of a layer."""
        columns = found["columns"]
        used = [column for column in columns if len(column["counts"])]
        low = min((column["first"] for column in used), default=0)
        high = max((column["first"] + len(column["counts"]) for column in used), default=low)
        counts = np.zeros((len(columns), high - low), np.int64)
        for row, column in zip(counts, columns, strict=True):
            at = column["first"] - low if len(column["counts"]) else 0
            row[at : at + len(column["counts"])] = column["counts"]
        return cls(
            layer=found["layer"],
            kind=found["kind"],
            # The edge i is the float32 with bits i << 22; after the last bin comes infinity.
            edges=(np.arange(low, high + 1, dtype=np.uint32) << 22).view(np.float32).astype(np.float64),
            counts=counts,
            first_steps=_integers(columns, "first_step"),
            steps=_integers(columns, "steps"),
            sampled=_integers(columns, "sampled"),
            complete=np.array([column["complete"] for column in columns], np.bool_),
        )

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


def _integers(columns: list[dict[str, Any]], key: str) -> I64:
    return np.array([column[key] for column in columns], np.int64)


def _pandas() -> Any:  # noqa: ANN401 - pandas has no types here
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("to_pandas() needs pandas; type: pip install pandas", name="pandas") from error
