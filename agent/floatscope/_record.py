"""What the training thread hands to the sender: one pending record per optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floatscope import wire

__all__ = [
    "EventRecord",
    "LostRecord",
    "NoThreadError",
    "PendingRecord",
    "RecordLostError",
    "Sink",
    "StepRecord",
    "SummaryRows",
    "Trouble",
    "encodable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRows:
    """The statistics of one kind at one step, a row per layer.

    ``layers`` is uint32 [L]. ``fields`` holds every field of ``wire.Summaries``, each [L]: count, zeros, nans, infs
    int64; sum, sumsq float64; absmax, absmin, scale, under, over_low, over_high, floor float32 (the last four with the
    payload ``wire.MISSING_BITS`` where nothing is known). ``hist`` is int64 [L, 512], or None when not taken.
    ``placement`` and ``copy_of`` are those of ``wire.Summaries``; rows that differ in them are kept apart.
    """

    kind: str
    layers: NDArray[np.uint32]
    fields: dict[str, NDArray[np.generic]]
    hist: NDArray[np.int64] | None = None
    placement: str = ""
    copy_of: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Everything one rank knows about one optimizer step. ``layers`` lists entries new or changed since the last."""

    step: int
    scalars: dict[str, float]
    summaries: tuple[SummaryRows, ...]
    events: tuple[wire.Event, ...] = ()
    layers: tuple[wire.Layer, ...] = ()
    devices: tuple[wire.Device, ...] = ()
    spare_histograms: bool = False
    """The histograms were not due in this step: they are for the flight recorder alone."""
    everything: bool = False
    """All that is not switched off was read, because of a closer look, and is here."""

    def thinned(self) -> StepRecord:
        """What of the record is sent."""
        if not self.spare_histograms:
            return self
        return replace(self, summaries=tuple(replace(rows, hist=None) for rows in self.summaries))


def encodable(name: str) -> str:
    """``name`` with what UTF-8 has no bytes for (lone surrogates) as an escape: an "a" and one is "a\\ud800"."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


class PendingRecord(Protocol):
    """A step whose numbers may still be on their way from the device."""

    @property
    def step(self) -> int:
        """The optimizer step, known before the numbers are (a drop declares it)."""

    @property
    def nbytes(self) -> int:
        """Host memory that the record holds, in bytes."""

    @property
    def layers(self) -> tuple[wire.Layer, ...]:
        """Entries new or changed since the last record, known before the numbers are: a drop may not lose names."""

    def ready(self) -> bool:
        """Whether ``resolve`` would not wait for the device. Never blocks."""

    def resolve(self) -> StepRecord:
        """The numbers; ``RecordLostError`` if there are none. Not for the training thread: it derives shares from
        histograms."""


class RecordLostError(Exception):
    """There will be no numbers; ``reason`` is what the gap in their place says."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the record is lost: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """A ``PendingRecord`` in place of one that is lost: the loss is declared, and no name is lost with it.

    ``reason``: "internal" for an error of ours, "transfer_full" where the host memory for transfers was in use.
    """

    step: int
    layers: tuple[wire.Layer, ...]
    nbytes: int = 128
    reason: str = "internal"

    def ready(self) -> bool:
        """There is nothing to wait for."""
        return True

    def resolve(self) -> StepRecord:
        """``RecordLostError``."""
        raise RecordLostError(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A ``PendingRecord`` of an event alone, between two steps."""

    event: wire.Event
    layers: tuple[wire.Layer, ...] = ()
    nbytes: int = 1024

    @property
    def step(self) -> int:
        """That of the event."""
        return self.event.step

    def ready(self) -> bool:
        """There is nothing to wait for."""
        return True

    def resolve(self) -> StepRecord:
        """The event."""
        return StepRecord(step=self.event.step, scalars={}, summaries=(), events=(self.event,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The loss or a gradient of ``step`` was not finite.

    ``skipped``: beside a finite loss, so that it is the scaler's ordinary work. ``first``: the step before was sound.
    ``shown``: outputs were read in it, which tell where it came from, or all that can be, as in compiled code.
    """

    step: int
    skipped: bool
    first: bool
    shown: bool


class NoThreadError(RuntimeError):
    """The process may not start another thread."""


class Sink(Protocol):
    """Where records go: ``put``, then ``finish``, then ``close``. Only ``close`` waits."""

    @property
    def cpu_s(self) -> float:
        """Processor time of the sink's threads so far, in seconds."""

    def orders(self) -> Sequence[wire.Focus | wire.Alert | Trouble]:
        """What the server has said since the last call, and what the records have shown."""

    def report(self, cost: wire.Cost) -> None:
        """Tell the server, with its next beat, what the agent costs."""

    def put(self, record: PendingRecord) -> None:
        """Take over ``record``, or drop and count it. Never raises."""

    def finish(self, reason: str) -> None:
        """No record follows, for ``reason``: begin to send what is left, for at most 5 s from now."""

    def close(self) -> None:
        """Wait until that is done, and stop."""

    def abandon(self) -> None:
        """Stop at once, whatever is left."""
