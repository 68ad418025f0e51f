"""From step records to encoded bodies: consecutive steps share arrays, and nothing exceeds the size of a block."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from floatscope import wire
from floatscope._record import StepRecord, SummaryRows

__all__ = ["BLOCK_OVERHEAD", "Batch", "Loss", "empty_batch", "pack", "yield_the_interpreter"]

BLOCK_OVERHEAD = 64
"""Most bytes that ``wire.Block`` adds around its body: tag, field names, seq, CRC and length take 40."""

_HISTOGRAM_ROWS = 256
"""Rows made sparse at once: 256 x 512 counts take about 0.3 ms, and the interpreter lock is free in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """An encoded ``wire.Body`` with its CRC-32, and the steps, records and layer entries that are in it."""

    first: int
    last: int
    records: int
    body: bytes
    crc: int
    layers: tuple[wire.Layer, ...] = ()
    continued: bool = False
    """More of the last step follows in the next batch."""
    names_only: bool = False
    """Nothing but ``layers``, whose own batch is lost."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory and, but for the frame, bytes on the wire."""
        return len(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """``records`` of steps ``first`` to ``last`` that will never be sent, for ``reason``."""

    first: int
    last: int
    records: int
    reason: str

    @property
    def nbytes(self) -> int:
        """A loss takes no part in any byte limit."""
        return 0

    def merged(self, other: Loss) -> Loss:
        """Both losses as one; the reason is ours."""
        return replace(
            self,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            records=self.records + other.records,
        )


def empty_batch() -> Batch:
    """Nothing, for a number that must be used up."""
    body = wire.encode(wire.Body())
    return Batch(first=0, last=0, records=0, body=body, crc=zlib.crc32(body))


def pack(records: Sequence[StepRecord], max_bytes: int, *, continued: bool = False) -> Iterator[Batch | Loss]:
    """Encode ``records``, in order, into bodies that fit a block of ``max_bytes``.

    A step too large for one block is cut by kind, then by layers, and all but the last of its bodies say that they
    are ``continued``; with ``continued`` the very last body does too. What cannot be cut (a single name longer than a
    block) comes back as a ``Loss`` with reason "too_large", what no message can hold with "unencodable".
    """
    limit = max_bytes - BLOCK_OVERHEAD
    group: list[StepRecord] = []
    size = 0
    for record in records:
        estimate = _estimate(record)
        if group and size + estimate > limit:
            yield from _encode(group, limit, continued=False)
            group, size = [], 0
        group.append(record)
        size += estimate
    if group:
        yield from _encode(group, limit, continued=continued)


def _encode(group: Sequence[StepRecord], limit: int, *, continued: bool) -> Iterator[Batch | Loss]:
    # Only a guess at the size keeps most groups small enough; the encoded length decides.
    encoded = _encoded(group, continued=continued)
    first, last = min(record.step for record in group), max(record.step for record in group)
    if encoded is not None and len(encoded[1]) <= limit:
        body, data = encoded
        yield Batch(
            first=first,
            last=last,
            records=len(group),
            body=data,
            crc=zlib.crc32(data),
            layers=body.layers,
            continued=continued,
        )
        return
    if len(group) > 1:
        middle = len(group) // 2
        yield from _encode(group[:middle], limit, continued=False)
        yield from _encode(group[middle:], limit, continued=continued)
        return
    parts = _cut(group[0]) if encoded is not None else []
    if not parts:
        yield Loss(first=first, last=last, records=1, reason="unencodable" if encoded is None else "too_large")
        return
    *before, end = parts
    pieces = [
        *chain.from_iterable(_encode([part], limit, continued=True) for part in before),
        *_encode([end], limit, continued=continued),
    ]
    # The record counts once, with its last piece: only then is all of it on the server.
    for piece in pieces[:-1]:
        yield replace(piece, records=0)
    yield pieces[-1]


def _encoded(group: Sequence[StepRecord], *, continued: bool) -> tuple[wire.Body, bytes] | None:
    """None for something that no message can hold, which then costs its own record only."""
    try:
        body = _body(group, continued=continued)
        return body, wire.encode(body)
    except (TypeError, ValueError, OverflowError):  # a name with a lone surrogate, a number beyond 64 bits
        return None


def _estimate(record: StepRecord) -> int:
    size = 64 + 48 * len(record.scalars) + 128 * (len(record.events) + len(record.layers) + len(record.devices))
    for rows in record.summaries:
        size += 256 + rows.layers.nbytes + sum(field.nbytes for field in rows.fields.values())
        if rows.hist is not None:
            size += 16 * len(rows.layers) + 8 * int(np.count_nonzero(rows.hist))
    return size


def _cut(record: StepRecord) -> tuple[StepRecord, ...]:
    """Smaller records of the same step that hold the same together; () when there is nothing left to cut.

    The layer table goes with the first: rows must not arrive before the layers that they mean.
    """
    alone = StepRecord(step=record.step, scalars={}, summaries=())
    kinds = record.summaries
    if len(kinds) > 1:
        middle = len(kinds) // 2
        return replace(record, summaries=kinds[:middle]), replace(alone, summaries=kinds[middle:])
    if kinds and (record.scalars or record.events or record.layers or record.devices):
        return replace(record, summaries=()), replace(alone, summaries=kinds)
    if kinds:
        rows = len(kinds[0].layers)
        if rows < 2:
            return ()
        halves = slice(None, rows // 2), slice(rows // 2, None)
        return tuple(replace(alone, summaries=(_rows(kinds[0], half),)) for half in halves)
    if len(record.layers) > 1:
        middle = len(record.layers) // 2
        return replace(alone, layers=record.layers[:middle]), replace(record, layers=record.layers[middle:])
    if len(record.events) > 1:
        middle = len(record.events) // 2
        return replace(record, events=record.events[:middle]), replace(alone, events=record.events[middle:])
    if len(record.scalars) > 1:
        names = list(record.scalars)
        halves_of_names = names[: len(names) // 2], names[len(names) // 2 :]
        first, second = ({name: record.scalars[name] for name in half} for half in halves_of_names)
        return replace(record, scalars=first), replace(alone, scalars=second)
    single = (
        replace(alone, layers=record.layers),
        replace(alone, events=record.events),
        replace(alone, scalars=record.scalars),
        replace(alone, devices=record.devices),
    )
    parts = tuple(part for part in single if part != alone)
    return parts if len(parts) > 1 else ()


def _rows(rows: SummaryRows, half: slice) -> SummaryRows:
    return replace(
        rows,
        layers=rows.layers[half],
        fields={name: field[half] for name, field in rows.fields.items()},
        hist=None if rows.hist is None else rows.hist[half],
    )


def _body(group: Sequence[StepRecord], *, continued: bool) -> wire.Body:
    steps = [record.step for record in group if record.scalars or record.summaries or record.events or record.layers]
    summaries: list[wire.Summaries] = []
    histograms: list[wire.Histograms] = []
    for run in _runs(group):
        summaries.append(_summaries(run))
        if sampled := [(step, rows) for step, rows in run if rows.hist is not None]:
            histograms.append(_histograms(sampled))
        yield_the_interpreter()
    return wire.Body(
        continued=continued,
        first_step=min(steps, default=0),
        steps=max(steps) - min(steps) + 1 if steps else 0,
        layers=tuple({layer.index: layer for record in group for layer in record.layers}.values()),
        summaries=tuple(summaries),
        histograms=tuple(histograms),
        scalars=_scalars(group),
        events=tuple(event for record in group for event in record.events),
        devices=tuple(device for record in group for device in record.devices),
    )


_Run = list[tuple[int, SummaryRows]]


def _runs(group: Sequence[StepRecord]) -> list[_Run]:
    """Per kind and placement, stretches of consecutive steps that have the same rows and the same fields."""
    done: list[_Run] = []
    open_runs: dict[tuple[str, str, int], _Run] = {}
    for record in group:
        for rows in record.summaries:
            place = rows.kind, rows.placement, rows.copy_of
            run = open_runs.get(place)
            if run is not None and run[-1][0] + 1 == record.step and _same_rows(run[-1][1], rows):
                run.append((record.step, rows))
            else:
                open_runs[place] = run = [(record.step, rows)]
                done.append(run)
    return done


def _same_rows(one: SummaryRows, other: SummaryRows) -> bool:
    if one.fields.keys() != other.fields.keys():
        return False
    return one.layers is other.layers or np.array_equal(one.layers, other.layers)


def _summaries(run: _Run) -> wire.Summaries:
    first_step, first = run[0]
    fields = []
    for name in first.fields:
        values = _little(np.stack([rows.fields[name] for _, rows in run]))
        fields.append(wire.Field(name=name, dtype=values.dtype.str, data=values.tobytes()))
    return wire.Summaries(
        kind=first.kind,
        first_step=first_step,
        steps=len(run),
        layers=_little(first.layers).tobytes(),
        fields=tuple(fields),
        placement=first.placement,
        copy_of=first.copy_of,
    )


def _histograms(sampled: _Run) -> wire.Histograms:
    """The histograms of ``sampled`` added up; it spans the steps from the first to the last that had one."""
    first_step, rows = sampled[0]
    total = np.zeros((len(rows.layers), 512), dtype=np.int64)
    elements = np.zeros(len(rows.layers), dtype=np.int64)
    for _, step_rows in sampled:
        assert step_rows.hist is not None
        total += step_rows.hist
        elements += step_rows.fields["count"].astype(np.int64)
    parts = []
    for start in range(0, len(total), _HISTOGRAM_ROWS):
        parts.append(_sparse(total[start : start + _HISTOGRAM_ROWS]))
        yield_the_interpreter()
    first, length, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return wire.Histograms(
        kind=rows.kind,
        first_step=first_step,
        steps=sampled[-1][0] - first_step + 1,
        layers=_little(rows.layers).tobytes(),
        first=_little(first).tobytes(),
        length=_little(length).tobytes(),
        sampled=_little(elements).tobytes(),
        counts=_little(counts).tobytes(),
        placement=rows.placement,
        copy_of=rows.copy_of,
    )


def _sparse(
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint64]]:
    """First occupied bin, number of bins up to the last occupied one, and the counts between, row after row."""
    occupied = counts != 0
    bins = counts.shape[1]
    first = occupied.argmax(axis=1)
    end = np.where(occupied.any(axis=1), bins - occupied[:, ::-1].argmax(axis=1), 0)
    column = np.arange(bins)
    inside = (column >= first[:, None]) & (column < end[:, None])
    return first.astype(np.uint16), np.maximum(end - first, 0).astype(np.uint16), counts[inside].astype(np.uint64)


def _scalars(group: Sequence[StepRecord]) -> tuple[wire.Scalars, ...]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for record in group:
        for name, value in record.scalars.items():
            steps, values = series.setdefault(name, ([], []))
            steps.append(record.step)
            values.append(value)
    return tuple(
        wire.Scalars(
            name=name,
            steps=np.asarray(steps, dtype="<i8").tobytes(),
            values=np.asarray(values, dtype="<f8").tobytes(),
        )
        for name, (steps, values) in series.items()
    )


def _little(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def yield_the_interpreter() -> None:
    """Let the training's thread go on: one in pure Python keeps the interpreter lock for up to 5 ms at a time."""
    time.sleep(0)
