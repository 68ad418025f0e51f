"""Limits of one step across all kinds of tensor: which cells are near, which crossed, and which one came first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from floatscope_server.rules.limits import Limits, LimitState, Trend, judge
from floatscope_server.rules.producer import Producer
from floatscope_server.rules.record import Record
from floatscope_server.rules.tensors import BACKWARD, Bool, LayerTable, Rows
from floatscope_server.rules.verdict import Finding, Severity, Verdict

__all__ = ["Cell", "Crossings", "broken_finding", "limit_findings"]

_BROKEN_FAMILY = "nonfinite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A crossed limit: ``tensor`` of ``layer``, at position ``row`` of its rows."""

    tensor: str
    layer: int
    row: int
    format: str

    def detail(self, table: LayerTable) -> dict[str, Any]:
        """As an alert's ``detail.limit``."""
        return {"layer": table.name(self.layer), "kind": self.tensor, "format": self.format}


@dataclass(frozen=True, slots=True)
class _Kind:
    rows: Rows
    state: LimitState
    trend: Trend


class Crossings:
    """The limit states of one step of one rank."""

    def __init__(self, rule: Limits, table: LayerTable, record: Record, rank: int) -> None:
        self.rule = rule
        self.table = table
        self.record = record
        self.rank = rank
        self.kinds: dict[str, _Kind] = {}

    def add(self, kind: str, rows: Rows, routine: Bool, trend: Trend) -> None:
        """Judge the rows of one kind and remember their headroom."""
        state = judge(self.rule, self.table.operands(kind), rows, routine)
        trend.push(self.record.step, rows, state.headroom)
        self.kinds[kind] = _Kind(rows, state, trend)

    def place(self, tensor: str, layer: int) -> int:
        """Where in a step a tensor is made: forward by execution order (an input before its output), then backward."""
        order = self.table.place(layer)
        if tensor in BACKWARD:
            return 8 * (self.table.size + 1) - 2 * order + (tensor == "grad")
        return 2 * order + (tensor == "act")

    def cells(self, kind: str, mask: Bool) -> list[Cell]:
        """The marked rows of a kind in causal order."""
        rows = self.kinds[kind].rows
        found = [
            Cell(tensor=kind, layer=layer, row=row, format=fmt)
            for row, layer in zip(np.flatnonzero(mask).tolist(), rows.layers[mask].tolist(), strict=True)
            if (fmt := self.table.format(kind, layer)) is not None
        ]
        return sorted(found, key=lambda cell: self.place(cell.tensor, cell.layer))

    def broken_cells(self) -> list[Cell]:
        """All cells that crossed by not being finite, in causal order."""
        found = [cell for kind, k in self.kinds.items() for cell in self.cells(kind, k.state.broken)]
        return sorted(found, key=lambda cell: self.place(cell.tensor, cell.layer))

    def over_cells(self) -> list[Cell]:
        """All cells whose finite elements are beyond the limit, in causal order."""
        found = [cell for kind, k in self.kinds.items() for cell in self.cells(kind, k.state.over)]
        return sorted(found, key=lambda cell: self.place(cell.tensor, cell.layer))

    def culprit(self, source: Producer | None, since: int | None) -> Cell | None:
        """The non-finite cell that is a crossed limit of its own: the producer's, where its format has a limit that
        can be crossed and no finite crossing explains it already. A skipped step is the scaler's own doing."""
        if source is None or source.first is None or since is not None:
            return None
        if self.record.skipped and source.tensor in BACKWARD:
            return None
        kind = self.kinds.get(source.tensor)
        if kind is None or not self.table.operands(source.tensor).limited[source.first]:
            return None
        if any(cell.layer == source.first for cell in self.over_cells()):
            return None
        row = kind.rows.at(source.first)
        if row < 0 or not kind.state.broken[row]:
            return None
        fmt = self.table.format(source.tensor, source.first)
        assert fmt is not None
        return Cell(tensor=source.tensor, layer=source.first, row=row, format=fmt)

    def leading_to(self, source: Producer | None) -> Cell | None:
        """The crossed limit that let the NaN in: one of the producer's own tensors, else the first of the step."""
        over = self.over_cells()
        if not over:
            return self.culprit(source, None)
        if source is not None and source.first is not None:
            own = [cell for cell in over if cell.layer == source.first]
            if own:
                return own[0]
            if source.alone:
                return None
        return over[0]

    def crossed_verdict(self, cell: Cell, others: int) -> Verdict:
        """The wording of a crossed limit that ``cell`` leads, with ``others`` more of the same cause."""
        kind = self.kinds[cell.tensor]
        operands = self.table.operands(cell.tensor)
        amax = float(kind.rows.amax[cell.row])
        broken = bool(kind.state.broken[cell.row])
        if not np.isfinite(kind.rows.scale[cell.row]):
            reason = "scale_not_finite"
        elif broken and kind.rows.infs[cell.row]:
            reason = "infinite"
        elif broken:
            reason = "nan"
        elif operands.cast[cell.layer]:
            reason = "above_max"
        else:
            reason = "saturated"
        value = amax if not broken else (np.inf if kind.rows.infs[cell.row] else np.nan)
        return self._verdict("limit_crossed", Severity.CRITICAL, reason, cell, float(value), others, {})

    def near_verdict(self, cell: Cell, others: int) -> Verdict:
        """The wording of a limit that is near."""
        kind = self.kinds[cell.tensor]
        headroom = float(kind.state.headroom[cell.row])
        eta = kind.trend.steps_to_overflow(cell.layer, headroom)
        amax = float(kind.rows.amax[cell.row])
        extra = {"steps_to_overflow": None if eta is None else round(eta, 1)}
        return self._verdict("limit_near", Severity.WARNING, "headroom", cell, amax, others, extra)

    def _verdict(
        self, kind: str, severity: Severity, reason: str, cell: Cell, value: float, others: int, extra: dict[str, Any]
    ) -> Verdict:
        found = self.kinds[cell.tensor]
        top = float(self.table.operands(cell.tensor).max[cell.layer])
        headroom = float(found.state.headroom[cell.row])
        return Verdict(
            kind=kind,
            severity=severity,
            reason=reason,
            since_step=self.record.step,
            layer=self.table.name(cell.layer),
            tensor=cell.tensor,
            format=cell.format,
            rank=self.rank,
            value=value,
            threshold=top if kind == "limit_crossed" else top * 2.0**-self.rule.near_bits,
            hits=1 + others,
            detail={
                "max": top,
                "headroom": headroom if np.isfinite(headroom) else None,
                "scale": float(found.rows.scale[cell.row]),
                "nans": int(found.rows.nans[cell.row]),
                "infs": int(found.rows.infs[cell.row]),
                "order": self.table.place(cell.layer),
                **extra,
            },
        )


def limit_findings(crossings: Crossings) -> Iterator[Finding]:
    """Finite values beyond a limit or near it, for each kind of tensor and format."""
    table = crossings.table
    for tensor, kind in crossings.kinds.items():
        state = kind.state
        over = crossings.cells(tensor, state.over)
        near = crossings.cells(tensor, state.near)
        inside = np.zeros(table.size, np.bool_)
        roomy = inside.copy()
        sound = state.judged & ~state.over & ~state.broken
        inside[kind.rows.layers] = sound
        roomy[kind.rows.layers] = sound & ~state.near
        for fmt in table.formats(tensor):
            for name, cells, severity, clear in (
                ("limit_crossed", over, Severity.CRITICAL, inside),
                ("limit_near", near, Severity.WARNING, roomy),
            ):
                yield _finding(
                    crossings, name, f"{tensor}/{fmt}", [c for c in cells if c.format == fmt], severity, clear
                )


def _finding(
    crossings: Crossings, kind: str, family: str, cells: Sequence[Cell], severity: Severity, clear: Bool
) -> Finding:
    rank = crossings.rank
    members = {f"{rank}:{cell.layer}": cell for cell in cells}

    def worded(member: str) -> Verdict:
        word = crossings.crossed_verdict if kind == "limit_crossed" else crossings.near_verdict
        return word(members[member], 0)

    def settled(member: str) -> bool:
        owner, _, layer = member.partition(":")
        return int(owner) == rank and int(layer) < len(clear) and bool(clear[int(layer)])

    return Finding(
        kind=kind,
        family=family,
        step=crossings.record.step,
        rank=rank,
        active=dict.fromkeys(members, severity),
        clear=settled,
        verdict=worded,
        group_steps=crossings.rule.group_steps,
        hold=crossings.rule.hold,
        keep=crossings.rule.keep,
    )


def broken_finding(
    crossings: Crossings, cells: Sequence[Cell], source: Callable[[], Producer | None], *, settled: bool = True
) -> Finding:
    """All cells that are not finite as one crossed limit, led by the producer's. ``settled``: the step says of the
    others that they are sound; during a stretch of NaNs it does not."""
    rank = crossings.rank
    first = source() if cells else None
    ordered = list(cells)
    if first is not None:
        ordered.sort(key=lambda cell: cell.layer != first.first or cell.tensor != first.tensor)
    members: dict[str, Cell] = {}
    for cell in ordered:
        members.setdefault(f"{rank}:{cell.layer}", cell)

    def worded(member: str) -> Verdict:
        return crossings.crossed_verdict(members[member], len(members) - 1)

    def clear(member: str) -> bool:
        return settled and not members and int(member.partition(":")[0]) == rank

    return Finding(
        kind="limit_crossed",
        family=_BROKEN_FAMILY,
        step=crossings.record.step,
        rank=rank,
        active=dict.fromkeys(members, Severity.CRITICAL),
        clear=clear,
        verdict=worded,
        hold=crossings.rule.hold,
        keep=crossings.rule.keep,
    )
