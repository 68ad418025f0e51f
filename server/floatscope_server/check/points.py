"""The series of a file, in a bounded amount of memory."""

from __future__ import annotations

import tempfile
from array import array
from types import TracebackType

import numpy as np
import numpy.typing as npt

__all__ = ["Points"]

_MOST = 1 << 20
"""Points in memory, 16 bytes each; then they go to a temporary file."""
_POINT_BYTES = 16


class Points:
    """Collects points by series; a context manager, for the file that holds what does not fit."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[array[int], array[float]]] = {}
        self._chunks: dict[str, list[tuple[int, int]]] = {}
        self._count = 0
        self._end = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Points:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """The series in the order in which they came."""
        return list(self._open)

    def add(self, name: str, step: int, value: float) -> None:
        """One point."""
        held = self._open.get(name)
        if held is None:
            held = self._open[name] = array("q"), array("d")
        held[0].append(step)
        held[1].append(value)
        self._count += 1
        if self._count >= _MOST:
            self._spill()

    def _spill(self) -> None:
        for name, (steps, values) in self._open.items():
            if not steps:
                continue
            self._file.seek(self._end)
            self._file.write(steps.tobytes() + values.tobytes())
            self._chunks.setdefault(name, []).append((self._end, len(steps)))
            self._end += _POINT_BYTES * len(steps)
            self._open[name] = array("q"), array("d")
        self._count = 0

    def of(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Steps and values of a series by step, one point a step: the last one of the file."""
        steps, values = [], []
        for offset, length in self._chunks.get(name, []):
            self._file.seek(offset)
            data = self._file.read(_POINT_BYTES * length)
            steps.append(np.frombuffer(data, np.int64, length))
            values.append(np.frombuffer(data, np.float64, length, 8 * length))
        held = self._open[name]
        steps.append(np.array(held[0], np.int64))
        values.append(np.array(held[1], np.float64))
        all_steps, all_values = np.concatenate(steps), np.concatenate(values)
        if (np.diff(all_steps) > 0).all():
            return all_steps, all_values
        # Of equal steps np.unique finds the first, so the order is turned round.
        kept, last = np.unique(all_steps[::-1], return_index=True)
        return kept, all_values[::-1][last]
