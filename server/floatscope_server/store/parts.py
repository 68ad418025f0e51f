"""Checks what an agent sent and renumbers its layers to the run's.

A part that cannot be used is left out alone, with a reason; the rest of its batch is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, REQUIRED_FIELDS
from floatscope_server.store.layermap import LayerMap, Renumbered
from floatscope_server.store.reach import OUT_OF_REACH, within_reach

__all__ = [
    "MAX_RANK",
    "MAX_STEP",
    "MAX_STEPS",
    "Checked",
    "acceptable_layer",
    "any_nonfinite",
    "bounded",
    "check_body",
    "fit_cost",
]

MAX_STEP = 1 << 53
"""First step number that a browser could not tell from its neighbour."""
MAX_STEPS = 1 << 16
MAX_NAME = 512
MAX_SHORT_NAME = 200
MAX_SERIES = 4096
MAX_EVENTS = 4096
MAX_DETAIL = 64
MAX_WRITER_LAYERS = 1 << 20
MAX_RANK = 1 << 20
HISTOGRAM_BINS = 512
NANOSECONDS = 1_000_000_000

_FIGURES = tuple(name for name in wire.Device.__struct_fields__ if name not in ("time_ns", "backend", "index"))

_P = TypeVar("_P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What can be stored of a body, and how many parts were left out for each reason."""

    body: wire.Body
    dropped: Counter[str]


def _shown(text: str) -> str:
    return repr(text[:40])


def acceptable_layer(layer: wire.Layer) -> str | None:
    """Why ``layer`` cannot be stored, or None."""
    if not 0 <= layer.index < MAX_WRITER_LAYERS:
        return "layer index out of range"
    if not 0 < len(layer.name) <= MAX_NAME:
        return f"layer name longer than {MAX_NAME} characters or empty"
    if len(layer.module_type) > MAX_SHORT_NAME:
        return f"module type longer than {MAX_SHORT_NAME} characters"
    if not (0 <= layer.parameters < 1 << 63 and -1 <= layer.order < 1 << 31):
        return "layer parameters or order out of range"
    texts = (layer.name, layer.module_type, *(t for o in layer.operands for t in (o.kind, o.format, o.role, o.scaling)))
    if any("\0" in text for text in texts):
        return "layer with a NUL character"
    if len(layer.operands) > len(wire.KINDS):
        return "layer with more operands than kinds"
    if any(max(map(len, (o.kind, o.format, o.role, o.scaling))) > MAX_SHORT_NAME for o in layer.operands):
        return "operand with a name out of bounds"
    return None


def fit_cost(cost: wire.Cost | None) -> dict[str, Any] | None:
    """``cost`` for its row; None when there is none, or when it is no share."""
    if cost is None or not all(math.isfinite(x) and x >= 0 for x in (cost.share, cost.mean, cost.budget)):
        return None
    every = {kind: n for kind, n in cost.every.items() if len(kind) <= MAX_SHORT_NAME and 0 <= n < MAX_STEP}
    return {
        "share": cost.share,
        "mean": cost.mean,
        "budget": cost.budget,
        "limit": cost.limit[:MAX_SHORT_NAME],
        "every": dict(sorted(every.items())[:MAX_DETAIL]),
    }


def bounded(value: int) -> int:
    """The nearest count that a column and a browser hold."""
    return min(max(value, 0), MAX_STEP)


def any_nonfinite(summary: wire.Summaries) -> bool:
    """Whether it counts a NaN or an infinity."""
    return any(
        np.frombuffer(field.data, field.dtype).any() for field in summary.fields if field.name in {"nans", "infs"}
    )


def check_body(body: wire.Body, layer_map: LayerMap, newest: int | None) -> Checked:
    """``body`` without what cannot be used and with the run's layer indices; ``body.layers`` is left as it is.

    ``newest`` is the highest step of its attempt so far.
    """
    dropped: Counter[str] = Counter()
    summaries = tuple(_kept(body.summaries, dropped, lambda part: _summaries(part, layer_map, dropped)))
    histograms = tuple(_kept(body.histograms, dropped, lambda part: _histograms(part, layer_map, dropped)))
    scalars = tuple(_kept(body.scalars[:MAX_SERIES], dropped, _scalars))
    events = tuple(_kept(body.events[:MAX_EVENTS], dropped, _event))
    devices = tuple(_kept(body.devices[:MAX_EVENTS], dropped, _device))
    for name, parts, limit in (
        ("scalar series", body.scalars, MAX_SERIES),
        ("events", body.events, MAX_EVENTS),
        ("device samples", body.devices, MAX_EVENTS),
    ):
        if len(parts) > limit:
            dropped[f"more than {limit} {name} in one block"] += len(parts) - limit
    kept, far, known = within_reach(
        msgspec.structs.replace(
            body, summaries=summaries, histograms=histograms, scalars=scalars, events=events, devices=devices
        ),
        newest,
    )
    if far:
        dropped[OUT_OF_REACH] += far
    first = min((a for a, _ in known), default=0)
    last = max((b for _, b in known), default=-1)
    return Checked(body=msgspec.structs.replace(kept, first_step=first, steps=last - first + 1), dropped=dropped)


def _kept(parts: Iterable[_P], dropped: Counter[str], check: Callable[[_P], _P | str]) -> Iterator[_P]:
    for part in parts:
        result = check(part)
        if isinstance(result, str):
            dropped[result] += 1
        else:
            yield result


def _span(first: int, steps: int) -> str | None:
    if not 0 <= first < MAX_STEP:
        return f"step {first} out of range"
    if not 1 <= steps <= MAX_STEPS:
        return f"part of {steps} steps; 1 to {MAX_STEPS} are allowed"
    return None


def _placement(part: wire.Summaries | wire.Histograms) -> str | None:
    if part.placement not in wire.PLACEMENTS:
        return f"unknown placement {_shown(part.placement)}"
    return None if -1 <= part.copy_of < MAX_RANK else f"copy of rank {part.copy_of}, which is out of range"


def _renumber(layers: bytes, layer_map: LayerMap) -> Renumbered | str:
    """The run's indices, -1 where the agent never named the layer."""
    if not layers or len(layers) % 4:
        return "layer indices of a wrong size"
    return layer_map.renumbered(layers)


_ITEM_BYTES = {dtype: np.dtype(dtype).itemsize for dtype in wire.DTYPES}
_UNNAMED = "summary of a layer that was never named"


def _summaries(part: wire.Summaries, layer_map: LayerMap, dropped: Counter[str]) -> wire.Summaries | str:
    if part.kind not in wire.KINDS:
        return f"unknown kind {_shown(part.kind)}"
    if reason := _span(part.first_step, part.steps) or _placement(part):
        return reason
    numbers = _renumber(part.layers, layer_map)
    if isinstance(numbers, str):
        return numbers
    rows, stored = numbers
    fields: dict[str, wire.Field] = {}
    for field in part.fields:
        if field.dtype not in wire.DTYPES:
            return f"unknown dtype {_shown(field.dtype)}"
        if field.name not in FIELD_DTYPES:
            dropped[f"unknown field {_shown(field.name)}"] += 1
            continue
        if field.dtype != FIELD_DTYPES[field.name]:
            return f"field {field.name} of dtype {field.dtype}; it is {FIELD_DTYPES[field.name]}"
        if len(field.data) != part.steps * len(rows) * _ITEM_BYTES[field.dtype]:
            return f"field {field.name} of a wrong size"
        fields[field.name] = field
    for name in REQUIRED_FIELDS:
        if name not in fields:
            return f"summary without {name}"
    if stored is None:
        named = rows >= 0
        dropped[_UNNAMED] += int((~named).sum())
        if not named.any():
            return _UNNAMED
        stored = rows[named].astype("<u4").tobytes()
        fields = {name: _columns(field, part.steps, named) for name, field in fields.items()}
    elif stored == part.layers and len(fields) == len(part.fields):
        return part
    return msgspec.structs.replace(part, layers=stored, fields=tuple(fields.values()))


def _columns(field: wire.Field, steps: int, keep: npt.NDArray[np.bool_]) -> wire.Field:
    data = np.frombuffer(field.data, field.dtype).reshape(steps, -1)[:, keep]
    return msgspec.structs.replace(field, data=data.tobytes())


def _histograms(part: wire.Histograms, layer_map: LayerMap, dropped: Counter[str]) -> wire.Histograms | str:
    if part.kind not in wire.KINDS:
        return f"unknown kind {_shown(part.kind)}"
    if reason := _span(part.first_step, part.steps) or _placement(part):
        return reason
    numbers = _renumber(part.layers, layer_map)
    if isinstance(numbers, str):
        return numbers
    rows, stored = numbers
    n = len(rows)
    if len(part.first) != 2 * n or len(part.length) != 2 * n or len(part.sampled) != 8 * n:
        return "histograms of a wrong size"
    first = np.frombuffer(part.first, "<u2")
    length = np.frombuffer(part.length, "<u2")
    if (first.astype(np.int64) + length > HISTOGRAM_BINS).any():
        return f"histogram beyond bin {HISTOGRAM_BINS - 1}"
    if len(part.counts) != 8 * int(length.sum(dtype=np.int64)):
        return "histograms of a wrong size"
    if stored is None:
        named = rows >= 0
        dropped[_UNNAMED] += int((~named).sum())
        if not named.any():
            return _UNNAMED
        counts = np.frombuffer(part.counts, "<u8")[np.repeat(named, length)]
        sampled = np.frombuffer(part.sampled, "<i8")[named]
        return msgspec.structs.replace(
            part,
            layers=rows[named].astype("<u4").tobytes(),
            first=first[named].tobytes(),
            length=length[named].tobytes(),
            sampled=sampled.tobytes(),
            counts=counts.tobytes(),
        )
    return msgspec.structs.replace(part, layers=stored)


def _scalars(part: wire.Scalars) -> wire.Scalars | str:
    if not 0 < len(part.name) <= MAX_SHORT_NAME or not part.name.isprintable():
        return f"scalar name longer than {MAX_SHORT_NAME} characters, empty or not printable"
    if not part.steps or len(part.steps) % 8 or len(part.steps) != len(part.values):
        return "scalars of a wrong size"
    steps = np.frombuffer(part.steps, "<i8")
    if steps.min() < 0 or steps.max() >= MAX_STEP:
        return "scalars with a step out of range"
    return part


def _event(event: wire.Event) -> wire.Event | str:
    if not 0 <= event.step < MAX_STEP:
        return "event with a step out of range"
    if not 0 < len(event.kind) <= MAX_SHORT_NAME or not event.kind.isprintable():
        return "event with a kind out of bounds"
    texts: Iterable[str] = (*event.detail, *(v for v in event.detail.values() if isinstance(v, str)))
    if len(event.detail) > MAX_DETAIL or any(len(text) > MAX_NAME for text in texts):
        return "event with too much detail"
    return event


def _device(device: wire.Device) -> wire.Device | str:
    if not 0 < device.time_ns < MAX_STEP * NANOSECONDS or not 0 <= device.index < MAX_WRITER_LAYERS:
        return "device sample with a time or index out of range"
    if any(text is not None and len(text) > MAX_SHORT_NAME for text in (device.backend, device.pci, device.name)):
        return f"device sample with a name longer than {MAX_SHORT_NAME} characters"
    if any(isinstance(value := getattr(device, name), int) and not 0 <= value < MAX_STEP for name in _FIGURES):
        return "device sample with a count out of range"
    return device
