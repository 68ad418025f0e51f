"""A file read to its end: what it is, its series, its cards, and the alerts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope import wire
from floatscope_server.check.points import Points
from floatscope_server.check.replay import Fired, Replay
from floatscope_server.check.timeline import Moment, Timeline
from floatscope_server.logs.source import chunks_of, framework_of
from floatscope_server.readers import HEAD_BYTES, Broken, Extreme, Happening, Named, Reading, Row, detect
from floatscope_server.readers.names import canonical
from floatscope_server.readers.text import step_of
from floatscope_server.rules import RuleParameters

__all__ = ["Report", "UnreadableError", "check"]

_NO_TEXT = tuple(bytes([byte]) for byte in (*range(9), *range(14, 27)))
_INSTEAD: dict[type[OSError], str] = {
    FileNotFoundError: "; a recorded run is judged with --data DIR or --server URL",
    IsADirectoryError: "; name the files in it, or load it into a server with `floatscope import`",
}


class UnreadableError(Exception):
    """The text says which line of which file, and why."""


@dataclass(slots=True, kw_only=True)
class Report:
    """``canonical`` maps the rules' names to the file's own, ``devices`` holds the last reading of each card by its
    index. ``skipped`` are the lines that could not be read: the first of them and their number."""

    file: str
    format: str
    records: int = 0
    first_step: int | None = None
    last_step: int | None = None
    canonical: dict[str, str] = field(default_factory=dict)
    devices: dict[int, wire.Device] = field(default_factory=dict)
    alerts: list[Fired] = field(default_factory=list)
    first_broken: Broken | None = None
    broken: int = 0

    @property
    def framework(self) -> str:
        """Whose settings messages name."""
        return framework_of(self.format)

    def device_list(self) -> list[dict[str, Any]]:
        """The cards as JSON."""
        return [
            {
                "index": device.index,
                "pci": device.pci,
                "name": device.name,
                "vram_used_bytes": device.vram_used_bytes,
                "vram_total_bytes": device.vram_total_bytes,
                "busy_percent": device.busy_percent,
                "memory_busy_percent": device.memory_busy_percent,
                "power_watts": device.power_watts,
                "temperature_celsius": device.temperature_celsius,
            }
            for _, device in sorted(self.devices.items())
        ]


class _Checking:
    def __init__(self, report: Report, late: int, rules: RuleParameters, points: Points | None) -> None:
        self._report = report
        self._timeline = Timeline(late)
        self._replay = Replay(rules)
        self._points = points
        self._rows: dict[int, int] = {}
        self._known: set[str] = set()

    def take(self, item: Row | Happening | Reading | Extreme) -> None:
        """The next item."""
        if isinstance(item, Row):
            self._moments(self._timeline.row(item))
        elif isinstance(item, Happening):
            self._moments(self._timeline.happening(item))
        elif isinstance(item, Extreme):
            self._moments(self._timeline.extreme(item))
        else:
            self._reading(item)

    def finish(self) -> None:
        self._moments(self._timeline.finish())
        self._replay.finish()
        report = self._report
        report.records += self._timeline.records
        report.alerts = self._replay.alerts

    def _moments(self, moments: Iterator[Moment]) -> None:
        report = self._report
        for moment in moments:
            report.first_step = moment.step if report.first_step is None else min(report.first_step, moment.step)
            report.last_step = moment.step if report.last_step is None else max(report.last_step, moment.step)
            if moment.values:
                self._keep(moment)
            self._replay.take(moment)

    def _keep(self, moment: Moment) -> None:
        for name, value in moment.values.items():
            if name not in self._known:
                self._known.add(name)
                meant = canonical(name)
                if meant is not None:
                    self._report.canonical.setdefault(meant[0], name)
            if self._points is not None:
                self._points.add(name, moment.step, value)

    def _reading(self, item: Reading) -> None:
        if not item.values:
            self._timeline.reading(item)
            return
        index = item.device.index
        row = self._rows[index] = self._rows.get(index, -1) + 1
        self._replay.reading(item, row)
        self._report.records += 1
        self._report.devices[index] = item.device
        if self._points is not None:
            for name, value in item.values.items():
                self._points.add(f"card{index}/{name}", row, value)


def check(path: Path, rules: RuleParameters, points: Points | None) -> Report:
    """Read the file at ``path`` and judge it; its series go to ``points``.

    Raises UnreadableError when it cannot be opened or is of no known format.
    """
    chunks = chunks_of(path)
    head = b""
    try:
        for chunk in chunks:
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
        log_format = detect(head)
        report = Report(file=str(path), format=log_format.name)
        checking = _Checking(report, log_format.late, rules, points)
        found = False
        for item in log_format.read(itertools.chain([head], chunks)):
            if isinstance(item, Named):
                report.format = item.format
            elif isinstance(item, Broken) or (isinstance(item, Row) and step_of(item.step) is None):
                report.first_broken = report.first_broken or Broken(line=item.line, why=_why_not(item))
                report.broken += 1
            else:
                found = True
                checking.take(item)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}{_INSTEAD.get(type(error), '')}") from error
    if not found:
        raise UnreadableError(f"{path}: {_why(head, report)}")
    checking.finish()
    return report


def _why_not(item: Broken | Row) -> str:
    return item.why if isinstance(item, Broken) else f"{item.step} is no step"


def _why(head: bytes, report: Report) -> str:
    if report.first_broken is not None:
        return f"line {report.first_broken.line}: {report.first_broken.why}"
    if not head.strip():
        return "line 1: the file is empty"
    if sum(head.count(byte) for byte in _NO_TEXT) > len(head) // 100:
        return "line 1: binary data of no known format"
    line = 1 + head[: len(head) - len(head.lstrip())].count(b"\n")
    begins = head.lstrip().splitlines()[0][:60].decode("utf-8", "replace")
    return f"line {line}: no record of a known format here or below; it begins {begins!r}"
