"""LLaMA-Factory's ``trainer_log.jsonl``: one JSON object a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from floatscope_server.readers.decoded import decoded, real
from floatscope_server.readers.names import meaning
from floatscope_server.readers.rows import Broken, Item, LogFormat, Row
from floatscope_server.readers.text import lines, number, step_of

__all__ = ["TRAINER_LOG", "TrainerLog"]

_DURATION = re.compile(r"(?:(\d{1,9}) days?, )?(\d{1,9}):(\d\d):(\d\d)")
_LEAST_SECONDS = 20.0
"""The clock is printed in whole seconds: over less the time of a step would be off by more than 5 %."""
_RESUMED = 0.5
"""A process that took up the training again has spent less than this share of the time for each step so far."""


def _text(value: str) -> float | None:
    """A number in quotes or a duration in seconds; None for what is neither."""
    if found := _DURATION.fullmatch(value):
        days, hours, minutes, seconds = found.groups()
        return float(((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds))
    return number(value)


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record; null is "not measured"."""
    found: dict[str, float] = {}
    for name, value in content.items():
        # By the exact type, the most frequent first: this is the loop in which the time goes. A bool is no number.
        kind = type(value)
        if kind is float:
            found[name] = value
        elif kind is int:
            found[name] = real(value)
        elif kind is str and (known := _text(value)) is not None:
            found[name] = known
    return found


class TrainerLog:
    """Rows from lines, one at a time. Several ranks may have written the file, and the same process anew."""

    def __init__(self) -> None:
        self._step = -1
        self._elapsed = 0.0
        self._from: tuple[int, float] | None = None

    def read(self, line: int, text: str) -> Item | None:
        """The row of a line; None where it is of another kind."""
        if '"current_steps"' not in text:
            return None
        try:
            content = decoded(text)
        except ValueError:
            return Broken(line=line, why="the JSON of a record does not end or is damaged")
        step = step_of(content.get("current_steps")) if isinstance(content, dict) else None
        if step is None:
            return Broken(line=line, why="current_steps is no number")
        values = _numbers(content)
        values.pop("current_steps", None)
        row = Row(line=line, step=step, values=values, meaning=meaning(values))
        self._clock(row)
        return row

    def _clock(self, row: Row) -> None:
        """Whether the process was started anew, and the time for each step."""
        elapsed = row.values.get("elapsed_time")
        if elapsed is None or row.step <= 0:
            return
        if row.step < self._step and elapsed / row.step < _RESUMED * self._elapsed / self._step:
            row.restart = True
            self._step, self._from = -1, None
        if row.step > self._step:
            self._step, self._elapsed = row.step, elapsed
            if self._from is None:
                self._from = row.step, elapsed
            step, before = self._from
            if elapsed - before >= _LEAST_SECONDS:
                row.meaning["step_time_s"] = (elapsed - before) / (row.step - step)
                self._from = row.step, elapsed


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    log = TrainerLog()
    for line, text in lines(chunks):
        item = log.read(line, text)
        if item is not None:
            yield item


TRAINER_LOG = LogFormat("llamafactory-trainer-log", _read, late=32)
