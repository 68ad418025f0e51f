"""Decides how often each kind of reading is taken, so that the agent's own cost stays within a budget. Pure.

The model is the sum of what is measured: a fixed cost of every step, and for each kind of reading its cost divided by
its interval. It does not depend on the intervals in force, so a decision does not feed back into the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from floatscope._log import percentage

__all__ = ["KINDS", "WIDEST", "Change", "Governor", "StepCost"]

KINDS = ("activations", "histograms", "updates", "weights", "gradients")
"""In the order in which their intervals are widened; they are narrowed in the reverse one."""
WIDEST = {"activations": 1000, "histograms": 1000, "updates": 10_000, "weights": 10_000, "gradients": 100}
"""Steps; an interval that was given wider is left alone."""

_WARM_UP = 2
"""Steps whose cost says nothing: memory is allocated and code compiled in them."""
_FIRST_DECISION = 5
"""Steps: three after the warm-up, one of which may have met a stall. Until then everything is read as it was asked for,
and that of a short run is what those steps cost."""
_DECIDE_EVERY = 8
_STEPS = 63
"""Newest steps whose median is taken for the time of a step; a stall or a slow batch among them does not count."""
_SAMPLES = 5
"""Newest readings of a kind whose median is taken."""
_LONGEST_JUMP = 8
"""Times that an interval grows at most before the kind was read once more: one reading may have met a stall."""
_AIM = 0.85
"""Of the budget: what widening aims at, so that noise does not ask for it again at once."""
_NARROW_BELOW = 0.65
"""Of the budget: what a narrower interval may come to."""
_PLAIN_EXCESS = 1.5
"""Of the budget: more is acted upon at once, less if the next look finds it again."""
_NEGLIGIBLE = 0.05
"""Of the budget: a kind that costs less is not widened, nothing would be gained by it."""
_DWELL = 64
_LONGEST_DWELL = 8192
"""Steps after a change before an interval is narrowed. Doubles each time that a narrowing had to be taken back."""
_MOST_BACKGROUND = 3.0
"""Times the cost on the training thread: beyond that the threads do what no interval changes."""


class StepCost(NamedTuple):
    """What one step took, in seconds, ours included, and what of it was ours."""

    step_s: float
    fixed_s: float
    """Whatever was or was not read."""
    readings: Mapping[str, float]
    """By kind (gradients, activations, weights, updates), of what was read in this step; histograms are in these."""
    histograms: bool
    background_s: float = 0.0
    """Of the agent's threads, where they take time from the training's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From now on ``kind`` is read every ``every`` steps."""

    kind: str
    every: int
    because: str


@dataclass(slots=True)
class _Samples:
    """Costs of one kind of reading in seconds, without and with histograms."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    full: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    fresh: bool = False
    """Read since the last widening."""

    def add(self, seconds: float, *, histograms: bool) -> None:
        (self.full if histograms else self.plain).append(seconds)
        self.fresh = True

    @property
    def known(self) -> bool:
        return bool(self.plain or self.full)

    def costs(self) -> tuple[float, float]:
        """Seconds of a reading without histograms, and what they add to it."""
        if not self.plain:
            # What a reading costs without them shows as soon as they are taken less often.
            return 0.0, _typical(self.full)
        plain = _typical(self.plain)
        return plain, max(0.0, _typical(self.full) - plain) if self.full else 0.0


class Governor:
    """``finest`` gives the narrowest interval of each kind in steps, 0 (or none) for one that is not read.

    ``budget`` is a share of the step time without us, 0 for none: then the intervals stay as they are given, and the
    cost is measured all the same. Ranks that decide differently still meet: intervals are ``finest`` times a power of
    two, so that the steps of the wider are among those of the narrower.
    """

    def __init__(self, finest: Mapping[str, int], budget: float) -> None:
        self.budget = budget
        self._finest = dict.fromkeys(KINDS, 0) | dict(finest)
        self.every = dict(self._finest)
        self._allowed = budget or math.inf
        self._samples = {kind: _Samples() for kind in KINDS if kind != "histograms"}
        self._base: deque[float] = deque(maxlen=_STEPS)
        self._fixed: deque[float] = deque(maxlen=_STEPS)
        self._costs: list[StepCost] = []
        """Of steps that are not among the rest yet."""
        self._background = self._foreground = 0.0
        self._seen = 0
        self._decided = self._changed = 0
        self._dwell = _DWELL
        self._narrowed: int | None = None
        self._exceeded = False
        self._spent_s = self._trained_s = 0.0

    def due(self, kind: str, step: int) -> bool:
        """Whether ``kind`` is to be read in ``step``."""
        every = self.every[kind]
        return every > 0 and step % every == 0

    def observe(self, cost: StepCost, *, suspended: bool = False) -> list[Change]:
        """Take in a finished step; what changes from the next one on. While ``suspended`` nothing does."""
        self._costs.append(cost)
        if len(self._costs) >= _DECIDE_EVERY:
            self._take_in()
        wait = _DECIDE_EVERY if self._decided else _FIRST_DECISION
        if suspended or self._seen + len(self._costs) - self._decided < wait:
            return []
        self._take_in()
        self._decided = self._seen
        return list(self._decide())

    def _take_in(self) -> None:
        # Several steps at once: only the first of them finds the caches as the training left them.
        for cost in self._costs:
            self._seen += 1
            ours = cost.fixed_s + sum(cost.readings.values())
            self._spent_s += ours + cost.background_s
            self._trained_s += max(0.0, cost.step_s - ours)
            if self._seen <= _WARM_UP:
                continue
            for kind, seconds in cost.readings.items():
                self._samples[kind].add(seconds, histograms=cost.histograms)
            self._base.append(max(cost.step_s - ours, 1e-9))
            self._fixed.append(cost.fixed_s)
            self._background += 0.02 * (cost.background_s - self._background)
            self._foreground += 0.02 * (ours - self._foreground)
        self._costs.clear()

    @property
    def measured(self) -> bool:
        """Whether the cost of any step is known."""
        self._take_in()
        return bool(self._base)

    @property
    def share(self) -> float:
        """Cost at the present intervals, as a share of the step time; 0 before anything is known."""
        self._take_in()
        return self._model().share(self.every) if self._base else 0.0

    @property
    def mean(self) -> float:
        """Cost of all steps so far, as a share of their time."""
        self._take_in()
        return self._spent_s / self._trained_s if self._trained_s > 0 else 0.0

    @property
    def limit(self) -> str:
        """What costs most while the share is above the budget; empty while it is not."""
        self._take_in()
        if not self._base:
            return ""
        model = self._model()
        if model.share(self.every) <= self._allowed:
            return ""
        parts = {"what every step costs, whatever is read": model.fixed}
        parts |= {f"{kind} every {self.every[kind]} steps": model.part(kind, self.every) for kind in KINDS}
        return max(parts, key=lambda name: parts[name])

    def _model(self) -> _Model:
        # What the threads do follows from what they are given.
        threads = min(self._background / max(self._foreground, 1e-12), _MOST_BACKGROUND)
        weight = (1 + threads) / median(self._base)
        costs = {kind: samples.costs() for kind, samples in self._samples.items() if samples.known}
        return _Model(
            fixed=median(self._fixed) * weight,
            costs={kind: (plain * weight, extra * weight) for kind, (plain, extra) in costs.items()},
        )

    def _decide(self) -> Iterator[Change]:
        model = self._model()
        share = model.share(self.every)
        exceeded, self._exceeded = self._exceeded, share > self._allowed
        if share > _PLAIN_EXCESS * self._allowed or (exceeded and self._exceeded):
            wanted = self._widened(model)
        elif self._exceeded:
            return
        elif self._seen - self._changed >= self._dwell:
            wanted = self._narrowed_once(model)
        else:
            return
        because = f"the agent costs {percentage(share)} of the step time and may cost {100 * self.budget:.3g} %"
        for kind in (kind for kind in KINDS if wanted[kind] != self.every[kind]):
            if wanted[kind] > self.every[kind] and kind in self._samples:
                self._samples[kind].fresh = False
            self.every[kind] = wanted[kind]
            self._changed = self._seen
            yield Change(kind=kind, every=wanted[kind], because=because)

    def _widened(self, model: _Model) -> dict[str, int]:
        plan = dict(self.every)
        for kind in KINDS:
            while (
                model.share(plan) > _AIM * self._allowed
                and 0 < 2 * plan[kind] <= WIDEST[kind]
                and model.part(kind, plan) > _NEGLIGIBLE * self._allowed
            ):
                plan[kind] *= 2
        # The plan is right if the samples are; it is carried out as far as one can trust them.
        wanted = {kind: min(every, self._furthest(kind)) for kind, every in plan.items()}
        if wanted != self.every and self._narrowed is not None:
            if self._seen - self._narrowed < 4 * self._dwell:
                self._dwell = min(2 * self._dwell, _LONGEST_DWELL)
            self._narrowed = None
        return wanted

    def _furthest(self, kind: str) -> int:
        if kind != "histograms" and not self._samples[kind].fresh:
            return self.every[kind]
        return _LONGEST_JUMP * self.every[kind]

    def _narrowed_once(self, model: _Model) -> dict[str, int]:
        for kind in reversed(KINDS):
            wanted = self.every | {kind: self.every[kind] // 2}
            if self.every[kind] > self._finest[kind] and model.share(wanted) < _NARROW_BELOW * self._allowed:
                self._narrowed = self._seen
                return wanted
        return self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """Costs as shares of the step time: ``costs`` of one reading by kind, without histograms and what they add."""

    fixed: float
    costs: Mapping[str, tuple[float, float]]

    def share(self, every: Mapping[str, int]) -> float:
        """Of everything, at these intervals."""
        return self.fixed + sum(
            plain / every[kind] + extra / _both(every[kind], every["histograms"])
            for kind, (plain, extra) in self.costs.items()
        )

    def part(self, kind: str, every: Mapping[str, int]) -> float:
        """Of ``kind``, at these intervals."""
        if kind == "histograms":
            return sum(extra / _both(every[k], every[kind]) for k, (_, extra) in self.costs.items())
        plain, extra = self.costs.get(kind, (0.0, 0.0))
        return plain / every[kind] + extra / _both(every[kind], every["histograms"]) if plain or extra else 0.0


def _both(one: int, other: int) -> float:
    """Steps between two that are multiples of both intervals; never, when one of them is off."""
    return math.lcm(one, other) or math.inf


def _typical(samples: deque[float]) -> float:
    # Of two the smaller: the other one may have met a stall.
    return median(samples) if len(samples) > 2 else min(samples)
