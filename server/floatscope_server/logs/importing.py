"""Files as they are, into a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from floatscope import wire
from floatscope_server.logs.channel import Channel, ChannelError, Where
from floatscope_server.logs.source import (
    Log,
    LogError,
    chunks_of,
    counts_done_steps,
    ended_lines,
    framework_of,
    log_name,
)
from floatscope_server.logs.stream import Counts, DivergedError, Item, Progress, Stream
from floatscope_server.readers import Broken, Extreme, Happening, LogFormat, Named, Row
from floatscope_server.readers.catalogue import KNOWN
from floatscope_server.readers.extremes import LAYER_EXTREMES
from floatscope_server.readers.text import step_of

__all__ = ["Imported", "Importer", "Items", "in_order"]

_GOODBYE_S = 30.0
_GENERATIONS = 64
"""Logs of one name in one run that begin alike and go on otherwise."""


@dataclass(slots=True)
class Items:
    """Reads a format and notes what it is and what could not be read.

    ``beside``: the format of the training's log that it goes with, empty where it goes with none.
    """

    format: LogFormat
    name: str = ""
    beside: str = ""
    found: int = 0
    broken: int = 0
    first_broken: Broken | None = None

    def of(self, chunks: Iterator[bytes]) -> Iterator[Item]:
        """The items that say something, at the steps of a run: those of a log that counts steps done begin at 0 too."""
        self.name = self.name or self.format.name
        # Whoever writes layers down beside a training's log numbers them as it does.
        counts_done = self.format is LAYER_EXTREMES and counts_done_steps(self.beside)
        for item in self.format.read(chunks):
            if isinstance(item, Named):
                self.name = item.format
            elif isinstance(item, Broken) or (isinstance(item, Row) and step_of(item.step) is None):
                why = item.why if isinstance(item, Broken) else f"{item.step} is no step"
                self.first_broken = self.first_broken or Broken(line=item.line, why=why)
                self.broken += 1
            else:
                self.found += 1
                if counts_done or counts_done_steps(self.name):
                    _number_from_0(item)
                yield item


def _number_from_0(item: Item) -> None:
    """After n steps a log speaks of step n - 1; what was evaluated before the first one goes to that."""
    if isinstance(item, Row | Extreme):
        item.step = max(0, item.step - 1)
    elif isinstance(item, Happening):
        item.event = msgspec.structs.replace(item.event, step=max(0, item.event.step - 1))


@dataclass(slots=True)
class Imported:
    """What became of one file. ``state``: new, known (the server had all of it), grown, or shorter than what it has."""

    log: Log
    format: str
    state: str = "new"
    counts: Counts = field(default_factory=Counts)
    unread: int = 0
    first_unread: Broken | None = None


class Importer:
    """Sends logs as one run, one after the other. ``attempt``: that of a training which is there already, 0 without;
    ``beside``: the format of the log that it came from, empty for an agent's."""

    def __init__(self, where: Where, run: str, *, alone: bool, attempt: int = 0, beside: str = "") -> None:
        self._where = where
        self._run = run
        self._alone = alone
        self._attempt = attempt
        self._beside = beside
        self._channels: list[Channel] = []

    def take(self, log: Log) -> Imported:
        """Send ``log``. Raises ``LogError`` and ``ChannelError``."""
        for generation in range(_GENERATIONS):
            try:
                return self._send(log, generation)
            except DivergedError:
                for channel in self._channels:
                    channel.leave()
        raise LogError(f"{log.path}: begins like {_GENERATIONS} others of this name, and goes on otherwise")

    def close(self) -> None:
        """Wait until the server has everything. Raises ``ChannelError``."""
        channels, self._channels = self._channels, []
        for channel in channels:
            if not channel.close("finished", _GOODBYE_S):
                why = channel.trouble or "it stores nothing"
                raise ChannelError(f"the server at {self._where.server} did not take all: {why}; import again")

    def _abandon(self) -> None:
        for channel in self._channels:
            channel.abandon()
        self._channels = []

    def _send(self, log: Log, generation: int) -> Imported:
        items = Items(log.format, beside=self._beside)
        done = Imported(log, log.format.name)
        config: dict[str, Any] = {"source": "import", "file": log_name(log.path)}

        def begin(writer: str, attempt: int) -> Channel:
            identity = wire.Identity(run=self._run, writer=writer, attempt=attempt)
            known = {"format": items.name, "framework": framework_of(items.name)}
            channel = Channel(self._where, identity, config | {name: value for name, value in known.items() if value})
            self._channels.append(channel)
            return channel

        stream = Stream(
            log.format,
            begin,
            key=f"{self._run}/{log_name(log.path)}",
            alone=self._alone and log.samples,
            attempt=self._attempt if log.beside else 0,
            generation=generation,
        )
        try:
            for part in log.parts:
                stream.begin_part()
                for item in items.of(ended_lines(log.format, chunks_of(part))):
                    stream.take(item)
            stream.finish()
        except OSError as error:
            raise LogError(f"{log.path}: {error.strerror or error}") from error
        except (ChannelError, LogError):
            self._abandon()
            raise
        if not items.found:
            raise LogError(f"{log.path}: {_why(items)}")
        done.format, done.counts = items.name, stream.counts
        done.unread, done.first_unread = items.broken, items.first_broken
        if stream.progress is Progress.BEHIND:
            done.state = "shorter"
        elif stream.counts.skipped:
            done.state = "grown" if stream.counts.records else "known"
        self._settle(log, items.name, stream.counts)
        return done

    def _settle(self, log: Log, name: str, counts: Counts) -> None:
        """What comes next goes beside the training that was just sent, or was there already."""
        if log.beside:
            return
        self._beside = name
        if counts.attempts:
            self._attempt = counts.attempts[-1]


def _why(items: Items) -> str:
    if items.first_broken is not None:
        return f"line {items.first_broken.line}: {items.first_broken.why}"
    return f"no record of a known format: {KNOWN}"


def in_order(logs: Sequence[Log]) -> list[Log]:
    """Those of trainings first."""
    return sorted(logs, key=lambda log: log.beside)
