"""Moments and readings of cards as bodies of the wire protocol."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from floatscope import wire
from floatscope._packing import BLOCK_OVERHEAD, Batch
from floatscope_server.check.extremes import LayerIndex
from floatscope_server.check.timeline import Moment
from floatscope_server.readers import Reading

__all__ = ["Bodies", "Piece"]

_AGENTS = {"lm loss": "loss", "grad norm": "grad_norm"}
"""What the readers leave under Megatron's names, under the agent's."""
_NAMES_AT_ONCE = 2000
"""Series of one body; the server takes 4096."""


@dataclass(slots=True)
class Piece:
    """What came of the items up to one of them; ``read`` says how far that is."""

    read: dict[str, Any]
    moments: list[Moment] = field(default_factory=list)
    readings: list[tuple[int, Reading]] = field(default_factory=list)
    """With the row of each among those of its card."""


class Bodies:
    """Encodes for one writer: it knows which layers have been announced."""

    def __init__(self, *, alone: bool) -> None:
        """``alone``: readings of cards are all there is, and their rows are the steps."""
        self._alone = alone
        self._layers = LayerIndex()
        self._announced = 0

    def skip(self, moment: Moment) -> None:
        """The moment was sent before: its layers have their numbers."""
        self._layers.summaries(moment.step, moment.extremes)
        self._announced = len(self._layers.layers)

    def encode(self, pieces: Sequence[Piece], max_bytes: int) -> Iterator[Batch]:
        """``pieces`` of one attempt, steps in order, as bodies for blocks of ``max_bytes``."""
        body = self._body(pieces)
        data = wire.encode(body)
        if len(data) <= max_bytes - BLOCK_OVERHEAD and len(body.scalars) <= _NAMES_AT_ONCE:
            yield _batch(body, data, sum(len(piece.moments) + len(piece.readings) for piece in pieces))
        elif len(pieces) > 1:
            # The layers are numbered by now, whichever half names them.
            middle = len(pieces) // 2
            self._announced -= len(body.layers)
            yield from self.encode(pieces[:middle], max_bytes)
            yield from self.encode(pieces[middle:], max_bytes)
        else:
            yield from _cut(body, max_bytes)

    def _body(self, pieces: Sequence[Piece]) -> wire.Body:
        moments = [moment for piece in pieces for moment in piece.moments]
        readings = [one for piece in pieces for one in piece.readings]
        summaries = tuple(s for m in moments if m.extremes for s in self._layers.summaries(m.step, m.extremes))
        fresh = [layer for index, layer in self._layers.layers.items() if index >= self._announced]
        self._announced = len(self._layers.layers)
        points = [(moment.step, _scalars_of(moment)) for moment in moments]
        events = [event for moment in moments for event in _events_of(moment)]
        for row, reading in readings:
            step = row if self._alone else 0
            card = f"card{reading.device.index}"
            events += [
                wire.Event(step=step, kind="gpu_fault", detail={"what": what, "device": card})
                for what in reading.faults
            ]
            if self._alone:
                points.append((row, {f"{card}/{name}": value for name, value in reading.values.items()}))
        steps = [step for step, _ in points]
        read = pieces[-1].read | ({"samples": True} if self._alone else {})
        events.append(wire.Event(step=max(steps, default=0), kind="read", detail=read))
        return wire.Body(
            first_step=min(steps, default=0),
            steps=max(steps) - min(steps) + 1 if steps else 0,
            layers=tuple(fresh),
            summaries=summaries,
            scalars=_series(points),
            events=tuple(events),
            devices=tuple(
                [device for moment in moments for device in moment.devices] + [one.device for _, one in readings]
            ),
        )


def _batch(body: wire.Body, data: bytes, records: int, *, continued: bool = False) -> Batch:
    return Batch(
        first=body.first_step,
        last=body.first_step + max(body.steps, 1) - 1,
        records=records,
        body=data,
        crc=zlib.crc32(data),
        layers=body.layers,
        continued=continued,
    )


def _cut(body: wire.Body, max_bytes: int) -> Iterator[Batch]:
    """A step that is too large for one block: in several, and how far the log is read goes with the last."""
    rest = msgspec.structs.replace(body, scalars=())
    size = max(1, min(_NAMES_AT_ONCE, max_bytes // 2048))
    for start in range(0, len(body.scalars), size):
        part = wire.Body(
            continued=True,
            first_step=body.first_step,
            steps=body.steps,
            scalars=body.scalars[start : start + size],
        )
        yield _batch(part, wire.encode(part), 0, continued=True)
    yield _batch(rest, wire.encode(rest), 1)


def _scalars_of(moment: Moment) -> dict[str, float]:
    """The file's own names and the agent's. A norm that is printed scaled is there as printed and unscaled."""
    scalars = dict(moment.values)
    for name, value in moment.meaning.items():
        scalars.setdefault(_AGENTS.get(name, name), value)
    return scalars


def _events_of(moment: Moment) -> Iterator[wire.Event]:
    told = False
    for found in moment.happenings:
        told = told or found.event.kind == "skipped"
        yield wire.Event(step=moment.step, kind=found.event.kind, detail=found.event.detail)
    if moment.meaning.get("skipped", 0.0) > 0 and not told:
        yield wire.Event(step=moment.step, kind="skipped")


def _series(points: Iterable[tuple[int, dict[str, float]]]) -> tuple[wire.Scalars, ...]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for step, scalars in points:
        for name, value in scalars.items():
            steps, values = series.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    return tuple(
        wire.Scalars(name=name, steps=np.array(steps, "<i8").tobytes(), values=np.array(values, "<f8").tobytes())
        for name, (steps, values) in series.items()
    )
