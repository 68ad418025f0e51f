"""The layer table of a run as questions need it, read again only when it has changed."""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from sqlmodel import Session, select

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.jsontext import Plain
from floatscope_server.models import LayerRow
from floatscope_server.operands import has_headroom, operand_of
from floatscope_server.query.fields import Metric
from floatscope_server.query.line import BadQueryError
from floatscope_server.query.memory import now_of
from floatscope_server.store.ledger import layer_of

__all__ = ["LayerTables", "RunLayers", "in_execution_order", "run_layers"]

_T = TypeVar("_T")

_MOST = 32
"""Tables that are kept; one of 2000 layers takes 2 MB with all that is made of it."""

_STALE_S = 2.0
"""Where another process may write: as old as a table may be."""

_KEY = "floatscope_layers"


@dataclass(slots=True)
class RunLayers:
    """``layers`` by index. ``digest`` is another one for every other content."""

    layers: Mapping[int, wire.Layer]
    digest: str
    _made: dict[object, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, layers: Mapping[int, wire.Layer]) -> RunLayers:
        """With its digest."""
        text = msgspec.msgpack.encode([layers[index] for index in sorted(layers)])
        return cls(layers, hashlib.sha256(text).hexdigest()[:32])

    @property
    def ordered(self) -> list[wire.Layer]:
        """In execution order."""
        return self._once("order", lambda: in_execution_order(self.layers))

    def formats(self, kind: str, chosen: str, how: Metric) -> dict[int, str | None]:
        """The format that each layer is measured against: the one it meets for ``kind``, or the ``chosen`` one.

        ``BadQueryError`` if ``chosen`` is neither "auto" nor a format.
        """
        if chosen != "auto" and chosen not in formats:
            raise BadQueryError(f"unknown format {chosen[:40]!r}; known are auto, {', '.join(formats)}")

        def make() -> dict[int, str | None]:
            found: dict[int, str | None] = {}
            for layer in self.layers.values():
                operand = operand_of(layer, kind)
                met = None if operand is None else operand.format
                # Shares were counted while training, in the format of that moment: another one needs the histograms.
                other = chosen if not how.executed or met == chosen else None
                found[layer.index] = met if chosen == "auto" else other
            return found

        return self._once(("formats", kind, chosen, how.executed), make)

    def limits(self, kind: str, chosen: str, how: Metric) -> npt.NDArray[np.float64]:
        """log2 of the largest number of each layer's format, by layer index; NaN where there is nothing to measure
        against: no format, or for headroom an operand that fills its own format by construction."""
        formats_of = self.formats(kind, chosen, how)
        return self._once(
            ("limits", kind, chosen, how.executed),
            lambda: _limits(self.layers, formats_of, kind, executed=how.executed),
        )

    def rows(self, kind: str, chosen: str, how: Metric) -> dict[int, Plain]:
        """What an answer says of each layer."""
        formats_of = self.formats(kind, chosen, how)

        def make() -> dict[int, Plain]:
            return {
                layer.index: Plain(
                    {
                        "index": layer.index,
                        "name": layer.name,
                        "format": formats_of[layer.index],
                        "scaling": None if (operand := operand_of(layer, kind)) is None else operand.scaling,
                        "order": layer.order,
                    }
                )
                for layer in self.layers.values()
            }

        return self._once(("rows", kind, chosen, how.executed), make)

    def _once(self, key: object, make: Callable[[], _T]) -> _T:
        if key not in self._made:
            self._made[key] = make()
        made: _T = self._made[key]
        return made


class LayerTables:
    """Tables of runs, as they were at a version that ``version`` gives: it is another one before anybody is told that a
    layer has changed. ``shared``: other processes write too, of which it knows nothing."""

    def __init__(self, version: Callable[[], int], *, shared: bool) -> None:
        self.version = version
        self._shared = shared
        self._tables: OrderedDict[int, tuple[int, float, RunLayers]] = OrderedDict()

    def attach(self, session: Session, version: int) -> None:
        """Let ``run_layers`` of ``session`` use what is kept; ``version`` is from before its snapshot."""
        session.info[_KEY] = self, version

    def of(self, session: Session, run_id: int, version: int) -> RunLayers:
        """The table of a run."""
        held = self._tables.get(run_id)
        now = time.monotonic()
        if held is not None and held[0] >= version and not (self._shared and now - held[1] > _STALE_S):
            return held[2]
        if now_of(session) is not None and held is not None and held[0] >= version:
            # This server alone writes, or there would be nothing of the run in memory.
            return held[2]
        table = _read(session, run_id)
        if held is not None and held[2].digest == table.digest:
            table = held[2]
        self._tables[run_id] = version, now, table
        while len(self._tables) > _MOST:
            self._tables.popitem(last=False)
        return table


def run_layers(session: Session, run_id: int) -> RunLayers:
    """The layers of a run."""
    attached = session.info.get(_KEY)
    if attached is None:
        return _read(session, run_id)
    tables, version = attached
    assert isinstance(tables, LayerTables)
    return tables.of(session, run_id, version)


def in_execution_order(layers: Mapping[int, wire.Layer]) -> list[wire.Layer]:
    """Layers by their place in the forward pass; those without one come last."""
    return sorted(layers.values(), key=lambda layer: (layer.order < 0, layer.order, layer.index))


def _limits(
    layers: Mapping[int, wire.Layer], formats_of: Mapping[int, str | None], kind: str, *, executed: bool
) -> npt.NDArray[np.float64]:
    limits = np.full(max(layers, default=-1) + 1, np.nan)
    for layer in layers.values():
        name, operand = formats_of[layer.index], operand_of(layer, kind)
        full = operand is not None and operand.format == name and not has_headroom(operand)
        if name is not None and not (full and not executed):
            limits[layer.index] = math.log2(formats[name].max)
    return limits


def _read(session: Session, run_id: int) -> RunLayers:
    rows = session.exec(select(LayerRow).where(LayerRow.run_id == run_id))
    return RunLayers.of({row.idx: layer_of(row) for row in rows})
