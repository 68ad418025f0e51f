"""Parquet, by pyarrow: the rows of the CSV in typed columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from floatscope_server.export.rows import SCALAR, Piece, Points, Selection

__all__ = ["write_parquet"]

_TEXT = pa.dictionary(pa.int32(), pa.string())


def write_parquet(selection: Selection, path: Path) -> None:
    """Statistics are float32, ``value`` is float64; null where nothing was observed, while NaN stays NaN. A row group
    for each piece."""
    schema = pa.schema(
        [
            *(("run", _TEXT), ("attempt", pa.int64()), ("step", pa.int64()), ("kind", _TEXT), ("layer", _TEXT)),
            *((metric, pa.float32()) for metric in selection.metrics),
            *(("name", _TEXT), ("value", pa.float64())),
        ]
    )
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for columns in _tables(selection):
            rows = len(columns["step"])
            arrays = [_array(columns.get(field.name), field.type, rows) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _tables(selection: Selection) -> Iterator[dict[str, Any]]:
    for piece in selection.pieces():
        yield {"run": selection.run, "kind": piece.kind, **_statistics(piece)}
    for points in selection.points():
        yield {"run": selection.run, "kind": SCALAR, "name": points.name, **_values(points)}


def _statistics(piece: Piece) -> dict[str, Any]:
    observed = ~np.all(list(piece.missing.values()), axis=0)
    at, layers = np.nonzero(observed)
    names = pa.DictionaryArray.from_arrays(pa.array(layers.astype(np.int32)), pa.array(piece.layers, pa.string()))
    metrics = {
        name: pa.array(values[observed], pa.float32(), mask=piece.missing[name][observed])
        for name, values in piece.metrics.items()
    }
    return {"attempt": piece.attempts[at], "step": piece.steps[at], "layer": names, **metrics}


def _values(points: Points) -> dict[str, Any]:
    return {"attempt": points.attempts, "step": points.steps, "value": points.values}


def _array(values: Any, kind: Any, rows: int) -> Any:  # noqa: ANN401 - pyarrow has no types here
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, str):
        indices = pa.array(np.zeros(rows, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([values], pa.string()))
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
