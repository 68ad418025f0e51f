"""The layers of one rank: what the layer rules remember, and their findings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from floatscope_server.rules import limits, producer, underflow
from floatscope_server.rules.crossings import Crossings, broken_finding, limit_findings
from floatscope_server.rules.findings import series_finding, settled
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.record import Record
from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import BACKWARD, Bool, Index, LayerTable, Rows
from floatscope_server.rules.verdict import Finding, Outcome, Severity, Verdict

__all__ = ["LayerStep", "LayerWindow"]

_LISTED = 50
_UNSEEN, _ROUTINE, _ORDINARY = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStep:
    """The tensors of one step of one rank. ``broken`` marks what is not finite beyond a layer's ordinary level."""

    table: LayerTable
    rows: Mapping[str, Rows]
    routine: Mapping[str, Bool]
    broken: Mapping[str, Bool]
    reduced: bool
    grad_nan: bool | None
    grad_inf: bool | None


class LayerWindow:
    """What went before on one rank, by layer index of the run."""

    def __init__(self, rules: RuleParameters, rank: int) -> None:
        self._rules = rules
        self._rank = rank
        self._size = 0
        self._weights: Index = np.full(0, -1, np.int64)
        self._updated: tuple[Index, Index] | None = None
        """The layers whose updates the step before showed, and what these made of the weights."""
        self._routine: dict[str, Index] = {}
        self._trends: dict[str, limits.Trend] = {}
        self._histories: dict[str, underflow.History] = {}

    def see(self, table: LayerTable, rows: Mapping[str, Rows], *, reduced: bool, sound_loss: bool) -> LayerStep:
        """The step's tensors, held against each layer's ordinary level."""
        self._grow(table.size)
        self._take_updates()
        routine: dict[str, Bool] = {}
        broken: dict[str, Bool] = {}
        for kind, found in rows.items():
            usual = routine[kind] = self._routine_rows(kind, found, sound_loss=sound_loss)
            broken[kind] = found.nonfinite & ~(usual & (found.nans == 0))
        grad = rows.get("grad")
        seen = grad is not None and bool(grad.observed.any())
        if "weight" in rows:
            weight = rows["weight"]
            self._weights[weight.layers[weight.observed]] = _finiteness(weight)
        if "update" in rows:
            update = rows["update"]
            self._updated = (update.layers[update.observed], _finiteness(update))
        return LayerStep(
            table=table,
            rows=rows,
            routine=routine,
            broken=broken,
            reduced=reduced,
            grad_nan=bool(grad.nans.any()) if seen and grad is not None else None,
            grad_inf=bool(grad.infs.any()) if seen and grad is not None else None,
        )

    def judge(self, now: LayerStep, record: Record, nonfinite: Outcome, *, since: int | None) -> Iterator[Finding]:
        """Findings of the rules on layers, and that of nonfinite with its producer. ``since``: where an unbroken
        stretch of non-finite steps began, None when the step before was sound."""
        rules = self._rules
        crossings = Crossings(rules.limits, now.table, record, self._rank)
        for kind, rows in now.rows.items():
            crossings.add(kind, rows, now.routine[kind], self._trend(kind))
        source = self._source(now, record)
        yield from limit_findings(crossings)
        culprit = None
        if nonfinite.verdict is None:
            found = broken_finding(crossings, crossings.broken_cells(), source)
        else:
            # The cells that a NaN has poisoned belong to the alert on it. Only the cell that let it in, on the step
            # on which it appeared, is a crossed limit of its own.
            culprit = crossings.culprit(source(), since) if since is None else None
            found = broken_finding(crossings, [] if culprit is None else [culprit], source, settled=False)
        yield found
        finding = series_finding("nonfinite", rules.nonfinite, record.step, self._rank, nonfinite)
        if finding is not None:
            base = nonfinite.verdict
            if base is None:
                yield finding
            else:
                wording = self._wording(now, record, base, crossings, source)
                yield dataclasses.replace(finding, verdict=wording)
        yield from self._underflow(now, record)

    def calm(self, table: LayerTable, spans: Mapping[str, Span]) -> list[Callable[[], None]] | None:
        """How the steps of ``spans`` become part of the past when nothing in them is broken or near a limit; None where
        they have to be judged step by step."""
        self._grow(table.size)
        self._take_updates()
        rules = self._rules
        pushes: list[Callable[[], None]] = []
        for kind, span in spans.items():
            if span.nonfinite and (kind == "weight" or not self._is_routine(kind, span)):
                return None
            operands = table.operands(kind)
            if not np.isnan(operands.max).all():
                headroom = limits.headroom_if_calm(rules.limits, operands, span)
                push = underflow.calm(rules.underflow, operands, span, self._history(kind))
                if headroom is None or push is None:
                    return None
                seen = span.observed & np.isfinite(headroom)
                pushes += [push, partial(self._trend(kind).push_span, span.steps, span.layers, seen, headroom)]
            pushes.append(partial(self._pass, kind, span))
        return pushes

    def _is_routine(self, kind: str, span: Span) -> bool:
        """Whether all that is not finite is the ordinary level of its layer."""
        state = self._routine.get(kind)
        if state is None or span.raw("nans").any():
            return False
        infinite: Bool = (span.raw("infs") > 0).any(axis=0)  # type: ignore[operator]
        return bool((state[span.layers[infinite]] == _ROUTINE).all())

    def _pass(self, kind: str, span: Span) -> None:
        state = self._routine.get(kind)
        if state is None:
            state = self._routine[kind] = np.full(self._size, _UNSEEN)
        seen = span.layers if span.all_observed else span.layers[span.observed.any(axis=0)]
        state[seen] = np.where(state[seen] == _UNSEEN, _ORDINARY, state[seen])
        if kind in ("weight", "update"):
            self._weights[seen] = 1

    def _take_updates(self) -> None:
        """A step computes with the weights that the update before it has left: Adam in fp16, whose eps rounds to zero,
        makes NaN of finite gradients, long before weights are read again."""
        if self._updated is not None:
            layers, finite = self._updated
            self._weights[layers] = finite
            self._updated = None

    def _trend(self, kind: str) -> limits.Trend:
        if kind not in self._trends:
            self._trends[kind] = limits.Trend(self._rules.limits.trend_steps, self._size)
        return self._trends[kind]

    def _history(self, kind: str) -> underflow.History:
        if kind not in self._histories:
            self._histories[kind] = underflow.History(self._rules.underflow, self._size)
        return self._histories[kind]

    def _source(self, now: LayerStep, record: Record) -> Callable[[], producer.Producer | None]:
        cache: list[producer.Producer | None] = []

        def find() -> producer.Producer | None:
            if not cache:
                evidence = producer.Evidence(
                    rows=now.rows,
                    broken=now.broken,
                    weights=self._weights,
                    loss_nonfinite=record.loss_nonfinite,
                    reduced=now.reduced,
                )
                cache.append(producer.find(now.table, evidence))
            return cache[0]

        return find

    def _wording(
        self,
        now: LayerStep,
        record: Record,
        base: Verdict,
        crossings: Crossings,
        source: Callable[[], producer.Producer | None],
    ) -> Callable[[str], Verdict]:
        def worded(_member: str) -> Verdict:
            found = source()
            hit = self._hit_layers(now)
            detail = dict(base.detail)
            detail["layers"] = [now.table.name(layer) for layer in hit[:_LISTED]]
            layer: str | None = None
            tensor: str | None = None
            fmt: str | None = None
            if found is not None:
                detail["producer"] = found.detail(now.table)
                detail |= self._weights_detail(now.table)
                if found.first is not None:
                    layer, tensor = now.table.name(found.first), found.tensor
                    fmt = now.table.format(tensor, found.first)
            limit = crossings.leading_to(found)
            if limit is not None:
                detail["limit"] = limit.detail(now.table)
                if found is None or not found.alone:
                    layer, tensor, fmt = now.table.name(limit.layer), limit.tensor, limit.format
            local = record.loss_nonfinite or (found is not None and found.local)
            rank = self._rank if local or not now.reduced else None
            if rank is None:
                detail["rank"] = "unknown (reduced)"
            return dataclasses.replace(
                base,
                layer=layer,
                tensor=tensor,
                format=fmt,
                rank=rank,
                hits=max(len(hit), 1),
                certainty=0 if found is None else found.certainty,
                detail=detail,
            )

        return worded

    def _weights_detail(self, table: LayerTable) -> dict[str, Any]:
        """Of the weights as they were read last: whose are not finite, and of how many layers it is not known."""
        weights = self._weights[: table.size]
        spoilt = sorted(np.flatnonzero(weights == 0).tolist(), key=table.place)
        unread = int(((weights < 0) & (table.parameters != 0)).sum())
        return {"spoilt_weights": [table.name(layer) for layer in spoilt[:_LISTED]], "unread_weights": unread}

    def _hit_layers(self, now: LayerStep) -> list[int]:
        """Layers with anything that is not finite, forward before backward, each in its order of execution."""
        places: dict[int, int] = {}
        far = 4 * (now.table.size + 1)
        for kind, mask in now.broken.items():
            if kind == "weight":
                continue
            for layer in now.rows[kind].layers[mask & now.rows[kind].observed].tolist():
                order = now.table.place(layer)
                place = far - order if kind in BACKWARD else order
                places[layer] = min(place, places.get(layer, place))
        return sorted(places, key=places.__getitem__)

    def _underflow(self, now: LayerStep, record: Record) -> Iterator[Finding]:
        rule = self._rules.underflow
        for kind, rows in now.rows.items():
            operands = now.table.operands(kind)
            history = self._history(kind)
            seen = underflow.measure(rule, operands, rows, history)
            if not len(seen.rows):
                continue
            history.push(seen)
            warning, critical = underflow.judge(seen, history)
            yield from self._underflow_findings(now, record, kind, seen, warning, critical)

    def _underflow_findings(
        self, now: LayerStep, record: Record, kind: str, seen: underflow.Measure, warning: Bool, critical: Bool
    ) -> Iterator[Finding]:
        rule = self._rules.underflow
        table = now.table
        by_format: dict[str, list[int]] = {}
        for at in np.flatnonzero(warning | critical).tolist():
            by_format.setdefault(table.format(kind, int(seen.layers[at])) or "", []).append(at)
        sound = np.zeros(self._size, np.bool_)
        sound[seen.layers] = ~seen.warned
        for fmt in table.formats(kind):
            chosen = sorted(by_format.get(fmt, []), key=lambda at: table.place(int(seen.layers[at])))
            position = {f"{self._rank}:{int(seen.layers[at])}": at for at in chosen}

            def worded(member: str, position: dict[str, int] = position, fmt: str = fmt) -> Verdict:
                at = position[member]
                alarmed = bool(critical[at])
                baseline = float(seen.baseline[at])
                return Verdict(
                    kind="underflow",
                    severity=Severity.CRITICAL if alarmed else Severity.WARNING,
                    reason="lost" if seen.lost[at] else "coming_cast",
                    since_step=record.step,
                    layer=table.name(int(seen.layers[at])),
                    tensor=kind,
                    format=fmt,
                    rank=self._rank if kind != "grad" or not now.reduced else None,
                    value=float(seen.share[at]),
                    threshold=rule.critical_share if alarmed else rule.warning_share,
                    detail={"baseline": None if math.isnan(baseline) else baseline, "scale": float(seen.scale[at])},
                )

            yield Finding(
                kind="underflow",
                family=f"{kind}/{fmt}",
                step=record.step,
                rank=self._rank,
                active={
                    member: Severity.CRITICAL if critical[at] else Severity.WARNING for member, at in position.items()
                },
                clear=settled(sound, self._rank),
                verdict=worded,
                group_steps=rule.group_steps,
                hold=rule.hold,
                keep=rule.keep,
            )

    def _routine_rows(self, kind: str, rows: Rows, *, sound_loss: bool) -> Bool:
        """Which rows have infinities as their ordinary level: beside a sound loss in a layer's first recording of an
        activation they are a mask or a router."""
        if kind not in self._routine:
            self._routine[kind] = np.full(self._size, _UNSEEN)
        state = self._routine[kind]
        fresh = rows.observed & (state[rows.layers] == _UNSEEN)
        if fresh.any():
            usual = (rows.infs > 0) & (rows.nans == 0) & (kind not in BACKWARD) & sound_loss
            state[rows.layers[fresh]] = np.where(usual[fresh], _ROUTINE, _ORDINARY)
        routine: Bool = state[rows.layers] == _ROUTINE
        return routine

    def _grow(self, size: int) -> None:
        missing = size - self._size
        if missing <= 0:
            return
        self._size = size
        self._weights = np.concatenate([self._weights, np.full(missing, -1, np.int64)])
        for kind, state in self._routine.items():
            self._routine[kind] = np.concatenate([state, np.full(missing, _UNSEEN)])
        for trend in self._trends.values():
            trend.grow(size)
        for history in self._histories.values():
            history.grow(size)


def _finiteness(rows: Rows) -> Index:
    """Of each row that was observed: 1 finite, 0 not."""
    found: Index = np.where(rows.nonfinite[rows.observed], 0, 1)
    return found
