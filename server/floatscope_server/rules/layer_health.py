"""The slower course of one rank's layers: extreme scales, dead gradients, and how far the optimizer moves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np

from floatscope_server.rules import dead_gradient, scale_extreme, update_ratio
from floatscope_server.rules.findings import Grouped, layer_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import Bool, LayerTable, Rows
from floatscope_server.rules.verdict import Finding, Severity, Verdict

__all__ = ["LayerHealth"]


class _Wording(Protocol):
    def __call__(self, row: int, layer: int) -> Verdict: ...


class LayerHealth:
    """What went before on one rank, by layer index of the run."""

    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self._rules = rules
        self._rank = rank
        self._size = 0
        self._extremes: dict[str, scale_extreme.Extremes] = {}
        self._lives = dead_gradient.Lives(0)
        self._moves = update_ratio.Moves(0)

    def judge(
        self, table: LayerTable, rows: Mapping[str, Rows], broken: Mapping[str, Bool], step: int, *, reduced: bool
    ) -> Iterator[Finding]:
        """Findings about the tensors of ``step``; ``broken`` marks what is not finite beyond the ordinary."""
        self._grow(table.size)
        yield from self._scales(table, rows, broken, step)
        if "grad" in rows:
            yield from self._dead(table, rows["grad"], step, rank=None if reduced else self._rank)
        if "update" in rows or "weight" in rows:
            yield from self._updates(table, rows, step)

    def calm(self, table: LayerTable, spans: Mapping[str, Span]) -> list[Callable[[], None]] | None:
        """How the steps of ``spans``, in which all is finite or routine, become part of the past; None where one of the
        rules may alert."""
        self._grow(table.size)
        rules = self._rules
        pushes: list[Callable[[], None] | None] = []
        for kind, span in spans.items():
            operands = table.operands(kind)
            if operands.scaled.any():
                past = self._extremes.setdefault(kind, scale_extreme.Extremes(self._size))
                pushes.append(scale_extreme.calm(rules.scale_extreme, operands, span, past))
        if "grad" in spans:
            pushes.append(dead_gradient.calm(rules.dead_gradient, spans["grad"], self._lives))
        if "update" in spans or "weight" in spans:
            pushes.append(self._calm_updates(spans))
        found = [push for push in pushes if push is not None]
        return found if len(found) == len(pushes) else None

    def _calm_updates(self, spans: Mapping[str, Span]) -> Callable[[], None] | None:
        """The rule itself, tried on a copy: these kinds are read now and then only."""
        moves = self._moves.copy()
        weight, update = spans.get("weight"), spans.get("update")
        steps = sorted({step for span in (weight, update) if span is not None for step in span.steps.tolist()})
        for step in steps:
            weights, updates = (
                span.rows(step) if span is not None and span.steps[0] <= step <= span.steps[-1] else None
                for span in (weight, update)
            )
            state = update_ratio.judge(self._rules.update_ratio, weights, updates, moves, step)
            if state is not None and (state.high | state.low).any():
                return None
        return partial(self._move_on, moves)

    def _move_on(self, moves: update_ratio.Moves) -> None:
        self._moves = moves

    def _scales(
        self, table: LayerTable, rows: Mapping[str, Rows], broken: Mapping[str, Bool], step: int
    ) -> Iterator[Finding]:
        rule = self._rules.scale_extreme
        nonfinite = any(bool(mask.any()) for mask in broken.values())
        for kind, found in rows.items():
            operands = table.operands(kind)
            if not operands.scaled.any():
                continue
            past = self._extremes.setdefault(kind, scale_extreme.Extremes(self._size))
            state = scale_extreme.judge(rule, operands, found, past, step, nonfinite=nonfinite)
            holds = state.outside | state.vanished | state.followed
            severity = np.where(state.followed, int(Severity.CRITICAL), int(Severity.WARNING))

            def worded(
                row: int, layer: int, kind: str = kind, found: Rows = found, state: scale_extreme.ScaleState = state
            ) -> Verdict:
                scale = float(found.scale[row])
                vanished = bool(state.vanished[row])
                large = scale >= 1
                return Verdict(
                    kind="scale_extreme",
                    severity=Severity.CRITICAL if state.followed[row] else Severity.WARNING,
                    reason="nonfinite_followed" if state.followed[row] else "amax_zero" if vanished else "outside",
                    since_step=step,
                    layer=table.name(layer),
                    tensor=kind,
                    format=table.format(kind, layer),
                    rank=self._rank,
                    value=scale,
                    threshold=rule.highest if large else rule.lowest,
                    detail={"amax": float(found.amax[row]), "scale": scale},
                )

            yield self._finding("scale_extreme", rule, kind, table, found, step, holds, severity, state.judged, worded)

    def _dead(self, table: LayerTable, grad: Rows, step: int, *, rank: int | None) -> Iterator[Finding]:
        rule = self._rules.dead_gradient
        dead, since = dead_gradient.judge(rule, grad, self._lives, step)
        severity = np.full(len(dead), int(Severity.WARNING))

        def worded(row: int, layer: int) -> Verdict:
            return Verdict(
                kind="dead_gradient",
                severity=Severity.WARNING,
                reason="all_zero",
                since_step=int(since[row]),
                layer=table.name(layer),
                tensor="grad",
                format=table.format("grad", layer),
                rank=rank,
                value=0.0,
                detail={"steps": step - int(since[row])},
            )

        yield self._finding("dead_gradient", rule, "", table, grad, step, dead, severity, grad.observed, worded)

    def _updates(self, table: LayerTable, rows: Mapping[str, Rows], step: int) -> Iterator[Finding]:
        rule = self._rules.update_ratio
        updates = rows.get("update")
        state = update_ratio.judge(rule, rows.get("weight"), updates, self._moves, step)
        if updates is None or state is None:
            return
        ratio, since = state.ratio, state.since
        for family, holds, level, limit in (
            ("high", state.high, Severity.WARNING, rule.high),
            ("low", state.low, Severity.INFO, rule.low),
        ):

            def worded(
                row: int, layer: int, family: str = family, level: Severity = level, limit: float = limit
            ) -> Verdict:
                return Verdict(
                    kind="update_ratio",
                    severity=level,
                    reason=family,
                    since_step=int(since[row]),
                    layer=table.name(layer),
                    tensor="update",
                    rank=self._rank,
                    value=float(ratio[row]),
                    threshold=limit,
                    detail={"steps": step - int(since[row]) + 1},
                )

            severity = np.full(len(holds), int(level))
            known = ~np.isnan(ratio)
            yield self._finding("update_ratio", rule, family, table, updates, step, holds, severity, known, worded)

    def _finding(
        self,
        kind: str,
        rule: Grouped,
        family: str,
        table: LayerTable,
        rows: Rows,
        step: int,
        holds: Bool,
        severity: np.ndarray[tuple[int], np.dtype[np.int64]],
        judged: Bool,
        worded: _Wording,
    ) -> Finding:
        at = np.flatnonzero(holds)
        place = {int(rows.layers[row]): int(row) for row in at}
        ordered = sorted(place, key=table.place)
        clear = np.zeros(self._size, np.bool_)
        clear[rows.layers[judged & ~holds]] = True
        return layer_finding(
            kind,
            rule,
            step,
            self._rank,
            {layer: Severity(int(severity[place[layer]])) for layer in ordered},
            clear,
            lambda layer: worded(place[layer], layer),
            family=family,
        )

    def _grow(self, size: int) -> None:
        if size <= self._size:
            return
        self._size = size
        for past in self._extremes.values():
            past.grow(size)
        self._lives.grow(size)
        self._moves.grow(size)
