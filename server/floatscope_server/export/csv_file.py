"""CSV: a row per layer and step, and one per point of a scalar."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from floatscope_server.export.rows import SCALAR, Piece, Selection

__all__ = ["write_csv"]


def write_csv(selection: Selection, path: Path) -> None:
    """UTF-8 with a header. A field is empty where nothing was observed; numbers are what they were, to the last bit of
    a float32, "nan", "inf" and "-inf" among them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(_Lines(file))
        writer.writerow(["run", "attempt", "step", "kind", "layer", *selection.metrics, "name", "value"])
        for piece in selection.pieces():
            writer.writerows(_rows(selection.run, piece))
        empty = [""] * (1 + len(selection.metrics))
        for points in selection.points():
            columns = (points.attempts.tolist(), points.steps.tolist(), points.values.tolist())
            writer.writerows(
                [selection.run, attempt, step, SCALAR, *empty, points.name, repr(value)]
                for attempt, step, value in zip(*columns, strict=True)
            )


class _Lines:
    """Ends them with a line feed alone. To the csv module itself carriage returns must be part of the end of a line: it
    would not quote one in a layer's name otherwise, and readers would take it for the end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def _rows(run: str, piece: Piece) -> Iterator[list[object]]:
    observed = ~np.all(list(piece.missing.values()), axis=0)
    for at, (step, attempt) in enumerate(zip(piece.steps.tolist(), piece.attempts.tolist(), strict=True)):
        columns = [_texts(values[at], piece.missing[name][at]) for name, values in piece.metrics.items()]
        for layer, there, *texts in zip(piece.layers, observed[at].tolist(), *columns, strict=True):
            if there:
                yield [run, attempt, step, piece.kind, layer, *texts, "", ""]


def _texts(values: npt.NDArray[np.float32], missing: npt.NDArray[np.bool_]) -> list[str]:
    # 9 significant digits tell every float32 from its neighbours.
    return ["" if absent else f"{value:.9g}" for value, absent in zip(values.tolist(), missing.tolist(), strict=True)]
