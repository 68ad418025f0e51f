"""Values that round to zero: at a coming cast, or already lost in the format a tensor is stored in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import F64, Bool, Index, Operands, Rows

__all__ = ["History", "Measure", "Underflow", "calm", "judge", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Underflow:
    """What rounds to zero is measured against the layer's own past: zeros that were always there never count."""

    warning_share: float = 0.10
    """Share of the finite non-zero elements at or below what rounds to zero (or of zeros gained): warning."""
    critical_share: float = 0.50
    """The same, critical."""
    baseline_ratio: float = 3.0
    """A warning also needs the share to be this many times the lowest running median of the layer."""
    floor_share: float = 0.05
    """Lost values are believed only when at least this share of what is left lies in the format's lowest two
    octaves: a distribution that is cut off leaves a shoulder there, dead units do not."""
    steps: int = 20
    """Observations out of ``of_steps`` in which the share must be exceeded."""
    of_steps: int = 50
    baseline_steps: int = 20
    """Observations in a running median."""
    group_steps: int = 50
    """Layers that start to lose values within this many steps of the first are one alert, led by that one."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One step of one kind, for the rows where something could be compared.

    ``rows`` are their positions and ``layers`` the run's layer indices. ``share`` is what rounds to zero (``lost``:
    the zero share), ``baseline`` the layer's own level, NaN before there is one. ``warned`` and ``alarmed`` say which
    exceed the two shares at this step.
    """

    rows: Index
    layers: Index
    share: F64
    baseline: F64
    scale: F64
    lost: Bool
    warned: Bool
    alarmed: Bool


class History:
    """The past of each layer of one kind: ring buffers [observations, layers], each layer with its own position.

    The baseline of a coming cast is the lowest running median of its share. That of a stored tensor is the lowest
    running median of its zero share at the present scale or a higher one: a lower scale only loses more.
    """

    def __init__(self, rule: Underflow, layers: int) -> None:
        self._rule = rule
        self._recent = np.full((rule.baseline_steps, layers), np.inf)
        self._warned = np.zeros((rule.of_steps, layers), np.bool_)
        self._alarmed = np.zeros((rule.of_steps, layers), np.bool_)
        self._seen = np.zeros(layers, np.int64)
        self.baseline = np.full(layers, np.nan)
        self.baseline_scale = np.zeros(layers)

    def grow(self, layers: int) -> None:
        """Make room for ``layers`` layers."""
        missing = layers - len(self._seen)
        if missing <= 0:
            return
        more = History(self._rule, missing)
        for name in ("_recent", "_warned", "_alarmed"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)], axis=1))
        for name in ("_seen", "baseline", "baseline_scale"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))

    def push(self, now: Measure) -> None:
        """Remember one observation of each of the layers in ``now``."""
        rule, layers = self._rule, now.layers
        seen = self._seen[layers]
        self._warned[seen % rule.of_steps, layers] = now.warned
        self._alarmed[seen % rule.of_steps, layers] = now.alarmed
        self._recent[seen % rule.baseline_steps, layers] = now.share
        self._seen[layers] += 1
        # Unused slots hold infinity and sort last, so the median of n records is at (n - 1) // 2.
        filled = np.minimum(seen + 1, rule.baseline_steps)
        median = np.sort(self._recent[:, layers], axis=0)[(filled - 1) // 2, np.arange(len(layers))]
        known = self.baseline[layers]
        lower = np.isnan(known) | (median < known)
        self.baseline[layers] = np.where(lower, median, known)
        self.baseline_scale[layers] = np.where(lower, now.scale, self.baseline_scale[layers])

    def push_span(self, layers: Index, share: F64, scale: F64) -> bool:
        """``push`` of S observations of each of ``layers`` [L], none of them warned of: ``share`` and ``scale`` [S, L].
        False, and nothing pushed, where the layers differ in how far they are or are not warm."""
        rule, steps = self._rule, len(share)
        n = rule.baseline_steps
        seen = int(self._seen[layers[0]])
        known = self.baseline[layers]
        if seen < n or (self._seen[layers] != seen).any() or np.isnan(known).any():
            return False
        past = (seen - n + 1 + np.arange(n - 1)) % n
        window = np.concatenate((self._recent[past][:, layers], share))
        # The median is below the baseline where that many of the window are.
        below: Index = np.cumsum(window < known, axis=0, dtype=np.int64)
        below[n:] -= below[:-n].copy()
        lower = np.flatnonzero((below[n - 1 :] > (n - 1) // 2).any(axis=0))
        if len(lower):
            medians = np.sort(sliding_window_view(window[:, lower], n, axis=0), axis=-1)[..., (n - 1) // 2]
            least = np.argmin(medians, axis=0)
            column = np.arange(len(lower))
            self.baseline[layers[lower]] = medians[least, column]
            self.baseline_scale[layers[lower]] = scale[least, lower]
        for ring, length in ((self._warned, rule.of_steps), (self._alarmed, rule.of_steps)):
            at = (seen + np.arange(max(steps - length, 0), steps)) % length
            ring[at[:, None], layers] = False
        at = (seen + np.arange(max(steps - n, 0), steps)) % n
        self._recent[at[:, None], layers] = share[-len(at) :]
        self._seen[layers] += steps
        return True

    def often(self, layers: Index) -> tuple[Bool, Bool]:
        """Which of ``layers`` exceeded the two shares often enough, the newest observation included."""
        warned = self._warned[:, layers].sum(axis=0) >= self._rule.steps
        alarmed = self._alarmed[:, layers].sum(axis=0) >= self._rule.steps
        return warned, alarmed


def measure(rule: Underflow, operands: Operands, rows: Rows, history: History) -> Measure:
    """What this step shows, held against ``history``, which it is not yet part of."""
    known = ~np.isnan(operands.max[rows.layers]) & rows.observed
    cast = operands.cast[rows.layers]
    at = np.flatnonzero(known & np.where(cast, ~np.isnan(rows.under), ~np.isnan(rows.floor)))
    layers, cast = rows.layers[at], cast[at]
    share = np.where(cast, rows.under[at], rows.zeros[at])
    baseline = history.baseline[layers]
    level = np.where(np.isnan(baseline), share, baseline)
    gained = share - level
    # Only a scale no higher than the baseline's can have cost values, and only with a shoulder at the format's floor.
    lost = ~cast & (rows.scale[at] <= history.baseline_scale[layers]) & (rows.floor[at] >= rule.floor_share)
    alarmed = np.where(cast, share > rule.critical_share, lost & (gained > rule.critical_share))
    risen = (share > rule.warning_share) & (share > rule.baseline_ratio * level)
    warned = alarmed | np.where(cast, risen, lost & (gained > rule.warning_share))
    return Measure(
        rows=at,
        layers=layers,
        share=share,
        baseline=baseline,
        scale=rows.scale[at],
        lost=~cast,
        warned=warned,
        alarmed=alarmed,
    )


def judge(now: Measure, history: History) -> tuple[Bool, Bool]:
    """Which rows of ``now`` are a warning and which critical; ``now`` is in ``history`` already."""
    often, very = history.often(now.layers)
    return often & now.warned, very & now.alarmed


def calm(rule: Underflow, operands: Operands, span: Span, history: History) -> Callable[[], None] | None:
    """How a span becomes part of ``history``; None where some cell may be above a share, so that it has to be judged
    step by step."""
    if not (span.has("under") or span.has("floor")):
        return _nothing
    known = ~np.isnan(operands.max[span.layers]) & span.observed
    cast = operands.cast[span.layers]
    under, floor = span.field("under"), span.field("floor")
    known &= np.where(cast, ~np.isnan(under), ~np.isnan(floor))
    if not known.any():
        return _nothing
    share = np.where(cast, under, span.zeros)
    least = min(rule.warning_share, rule.critical_share)
    with np.errstate(invalid="ignore"):
        above = ~(share <= least) & (cast | ~(floor < rule.floor_share))
    if (above & known).any():
        return None

    def push() -> None:
        columns = np.flatnonzero(known.any(axis=0))
        if known[:, columns].all() and history.push_span(
            span.layers[columns], share[:, columns], span.scale[:, columns]
        ):
            return
        for step in span.steps.tolist():
            seen = measure(rule, operands, span.rows(step), history)
            if len(seen.rows):
                history.push(seen)

    return push


def _nothing() -> None:
    """There is nothing to remember."""
