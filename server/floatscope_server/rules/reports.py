"""Findings that come from outside the tensors: events, gaps, the clock, the layer table, ranks side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from floatscope import wire
from floatscope._chips import FP8
from floatscope_server.rules import precision, stalled, telemetry
from floatscope_server.rules.findings import Held, layer_finding, series_finding
from floatscope_server.rules.parameters import RuleParameters
from floatscope_server.rules.tensors import LayerTable
from floatscope_server.rules.verdict import OK, Finding, Outcome, Severity, Verdict

__all__ = ["REPORTED", "ReportWindow"]

REPORTED = frozenset({"gpu_fault", "data_gap", "stalled"})
"""Kinds that a step without a report may end."""

_NOBODY = 0
"""The rank of findings about a run as a whole."""


class ReportWindow:
    """What was reported of one attempt. ``hung_at``: the step at which the run said that it hangs."""

    def __init__(self, rules: RuleParameters) -> None:
        self._rules = rules
        self.hung_at: int | None = None

    def events(self, events: Sequence[wire.Event], rank: int) -> Iterator[Finding]:
        """Findings of the events of a block."""
        rules = self._rules
        for event in events:
            if event.kind == "hang":
                self.hung_at = event.step
                what, text = str(event.detail.get("what", "hang")), str(event.detail.get("text", ""))
                outcome = stalled.hung(event.step, what, text, rank)
                yield from self._one("stalled", rules.stalled, event.step, outcome)
            if event.kind in ("hang", "gpu_fault"):
                yield from self._one("gpu_fault", rules.gpu_fault, event.step, telemetry.judge_fault(event))
            elif event.kind == "coverage":
                outcome = telemetry.judge_coverage(rules.coverage_low, event)
                yield from self._one("coverage_low", rules.coverage_low, event.step, outcome)

    def step(self, step: int) -> Iterator[Finding]:
        """That a step came without a report: what was reported before may end."""
        rules = self._rules
        yield from self._one("gpu_fault", rules.gpu_fault, step, OK)
        yield from self._one("data_gap", rules.data_gap, step, OK)
        if self.hung_at is None or step > self.hung_at:
            self.hung_at = None
            yield from self._one("stalled", rules.stalled, step, OK)

    def gap(self, first: int, last: int, count: int, reason: str, rank: int) -> Iterator[Finding]:
        """Records that were lost."""
        outcome = telemetry.gap(first, last, count, reason, rank)
        yield from self._one("data_gap", self._rules.data_gap, last, outcome)

    def tick(self, window: stalled.Window, now: float) -> Iterator[Finding]:
        """What the clock says, ``now`` in seconds since 1970."""
        if self.hung_at is not None:
            return
        outcome = stalled.judge(self._rules.stalled, window, now)
        yield from self._one("stalled", self._rules.stalled, window.last_step, outcome, at=now)

    def formats(
        self, layers: Mapping[int, wire.Layer], table: LayerTable, fp8: FP8 | None, step: int
    ) -> Iterator[Finding]:
        """What the layers' formats say beside what they declare and what the chip executes."""
        rules = self._rules
        for kind, rule, found, severity in (
            (
                "precision_mismatch",
                rules.precision_mismatch,
                precision.find_precision(layers.values()),
                Severity.WARNING,
            ),
            (
                "format_mismatch",
                rules.format_mismatch,
                precision.find_formats(layers.values(), fp8),
                Severity.CRITICAL,
            ),
        ):
            by_layer = {mismatch.layer: mismatch for mismatch in found}
            clear = np.ones(table.size, np.bool_)
            clear[list(by_layer)] = False

            def worded(
                layer: int,
                kind: str = kind,
                severity: Severity = severity,
                by_layer: Mapping[int, precision.Mismatch] = by_layer,
            ) -> Verdict:
                mismatch = by_layer[layer]
                return Verdict(
                    kind=kind,
                    severity=severity,
                    reason=mismatch.reason,
                    since_step=step,
                    layer=table.name(layer),
                    tensor=mismatch.kind,
                    format=mismatch.format,
                )

            active = dict.fromkeys(by_layer, severity)
            yield layer_finding(kind, rule, step, _NOBODY, active, clear, worded, family="")

    def _one(self, kind: str, rule: Held, step: int, outcome: Outcome, *, at: float | None = None) -> Iterator[Finding]:
        finding = series_finding(kind, rule, step, _NOBODY, outcome, at=at)
        if finding is not None:
            yield finding
