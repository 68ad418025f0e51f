"""Series as tables: ``metrics.csv`` of Lightning's CSVLogger and its like, and JSON objects a line with a step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from floatscope_server.readers.decoded import decoded, real
from floatscope_server.readers.names import canonical, meaning
from floatscope_server.readers.rows import Broken, Item, LogFormat, Row
from floatscope_server.readers.text import cells, lines, number, step_of

__all__ = ["SERIES_CSV", "SERIES_JSONL", "is_series_header", "is_series_object"]

_STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "current_step")
_TRAIN_LOSS = ("train_loss", "train_loss_step")
_LR = re.compile(r"lr-\w+(?:/\w+)?")


def _step_name(names: Any) -> str | None:  # noqa: ANN401 - a mapping or a sequence of names
    return next((name for name in _STEPS if name in names), None)


def _known(name: str) -> bool:
    return canonical(name) is not None or name in _TRAIN_LOSS


def _meaning(values: dict[str, float]) -> dict[str, float]:
    """The rules' names. Here a train_loss is the loss of a step, and Lightning names the rate after the optimizer."""
    found = meaning(values)
    for name in _TRAIN_LOSS:
        if name in values:
            found.setdefault("loss", values[name])
    for name in values:
        if _LR.fullmatch(name):
            found.setdefault("lr", values[name])
    return found


def is_series_header(text: str) -> bool:
    """Whether a line names columns, a step and a series that the rules know among them."""
    names = [name.strip() for name in text.split(",")]
    return _step_name(names) is not None and any(_known(name) for name in names)


def is_series_object(text: str) -> bool:
    """Whether ``text`` begins with an object on one line that has a step and a series that the rules know."""
    try:
        content = decoded(text.split("\n", 1)[0])
    except ValueError:
        return False
    return isinstance(content, dict) and _step_name(content) is not None and any(map(_known, content))


class _Rows:
    """Rows in the order of the file; one whose step goes back begins anew."""

    def __init__(self) -> None:
        self._last = -1

    def row(self, line: int, step: int, values: dict[str, float]) -> Row:
        known = _meaning(values)
        trains = "loss" in known
        row = Row(line=line, step=step, values=values, meaning=known, restart=trains and step < self._last)
        if trains:
            self._last = step
        return row


def _read_csv(chunks: Iterator[bytes]) -> Iterator[Item]:
    names: list[str] | None = None
    rows = _Rows()
    for line, text in lines(chunks):
        if names is None or is_series_header(text):
            names = [name.strip() for name in text.split(",")] if is_series_header(text) else names
            continue
        found = cells(text)
        if len(found) != len(names):
            yield Broken(line=line, why=f"{len(found)} values for {len(names)} columns")
            continue
        values = {n: v for n, cell in zip(names, found, strict=True) if cell and (v := number(cell)) is not None}
        named = _step_name(values)
        step = None if named is None else step_of(values.pop(named))
        if step is None:
            yield Broken(line=line, why="the step is no number")
        elif values:
            yield rows.row(line, step, values)


def _read_jsonl(chunks: Iterator[bytes]) -> Iterator[Item]:
    rows = _Rows()
    for line, text in lines(chunks):
        if not text.lstrip().startswith("{"):
            continue
        try:
            content = decoded(text)
        except ValueError:
            yield Broken(line=line, why="the JSON of a record does not end or is damaged")
            continue
        named = _step_name(content)
        step = None if named is None else step_of(content.pop(named))
        values = {name: real(v) for name, v in content.items() if type(v) in (float, int)}
        # JSON has no NaN: some write it as a string.
        for name, told in content.items():
            if isinstance(told, str) and (value := number(told)) is not None and not math.isfinite(value):
                values[name] = value
        if step is not None and values:
            yield rows.row(line, step, values)


SERIES_CSV = LogFormat("series-csv", _read_csv, late=1, cuttable=True)
SERIES_JSONL = LogFormat("series-jsonl", _read_jsonl, late=1)
