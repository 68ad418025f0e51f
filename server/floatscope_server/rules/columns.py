"""The series of many steps of one rank as arrays, under the names that the rules use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from floatscope import wire
from floatscope_server.rules.record import EVAL_LOSS, GRAD_NORM, LOSS, LOSS_SCALE, LR, STEP_TIME
from floatscope_server.rules.series import Recent
from floatscope_server.rules.tensors import F64, Bool, Index

__all__ = ["Column", "Columns", "Measured"]

_FIELDS: Mapping[str, Sequence[str]] = {
    "loss": LOSS,
    "eval_loss": EVAL_LOSS,
    "grad_norm": GRAD_NORM,
    "loss_scale": LOSS_SCALE,
    "lr": LR,
    "step_time_s": STEP_TIME,
    "clip_coef": ("clip_coef",),
    "skipped": ("skipped",),
    "raw_loss_nonfinite": ("raw_loss_nonfinite",),
}
_MAIN = frozenset({"loss", "grad_norm", "loss_scale"})
"""Fields that are of the first name which the run logs, at whatever step (``record.main_value``)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a ``Record`` at N steps. ``values`` [N] count only where it is ``present`` [N]; a NaN that is there
    was logged."""

    values: F64
    present: Bool

    def cut(self, first: int, end: int) -> Column:
        """The steps at positions ``first`` up to ``end``; nothing is copied."""
        return Column(self.values[first:end], self.present[first:end])

    def over(self, other: Column) -> Column:
        """This one, and where it is absent the other."""
        return Column(np.where(self.present, self.values, other.values), self.present | other.present)

    def listed(self) -> list[float | None]:
        """By step, None where it is absent."""
        values: list[float | None] = self.values.tolist()
        if self.present.all():
            return values
        return [value if there else None for value, there in zip(values, self.present.tolist(), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The M records of a series among N steps, and the medians that they are held against. ``at`` [M] are their
    positions. Those V that are finite and not zero (``counts`` [M]) enter the window: ``medians`` [V + 1] are from
    before the first of them and after each, ``before`` [M] says how many came before a record."""

    at: Index
    values: F64
    counts: Bool
    before: Index
    medians: F64

    @classmethod
    def of(cls, column: Column, recent: Recent) -> Measured:
        """``recent`` must be full."""
        at = np.flatnonzero(column.present)
        values = column.values[at]
        counts = np.isfinite(values) & (values != 0)
        return cls(
            at=at,
            values=values,
            counts=counts,
            before=np.cumsum(counts) - counts,
            medians=recent.medians(values[counts]),
        )

    def cut(self, steps: int) -> Measured:
        """Of the first ``steps`` of the N."""
        end = int(np.searchsorted(self.at, steps))
        if end == len(self.at):
            return self
        counts = self.counts[:end]
        return Measured(
            at=self.at[:end],
            values=self.values[:end],
            counts=counts,
            before=self.before[:end],
            medians=self.medians[: int(counts.sum()) + 1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """``steps`` [N] rise. ``names`` tells of each logged name at which of them it was; ``fields`` are those of
    ``Record`` that were logged at any. ``grads`` [N]: where gradients were observed, all of them finite."""

    steps: Index
    names: Mapping[str, Bool]
    fields: Mapping[str, Column]
    grads: Bool

    @classmethod
    def of(
        cls, scalars: Iterable[wire.Scalars], grads: Collection[int], others: Collection[int], seen: Collection[str]
    ) -> Columns | None:
        """The series of one body. ``grads`` are steps at which gradients were observed, ``others`` steps with other
        tensors, ``seen`` the names that the run has logged before. None where the steps of a series do not rise, or
        where a name comes up that counts from then on in place of another."""
        series: dict[str, tuple[Index, F64]] = {}
        for one in scalars:
            steps = np.frombuffer(one.steps, "<i8")
            if one.name in series or (len(steps) > 1 and not (steps[1:] > steps[:-1]).all()):
                return None
            series[one.name] = steps, np.frombuffer(one.values, "<f8")
        observed = sorted({*grads, *others})
        parts = [steps for steps, _ in series.values()]
        if observed:
            parts.append(np.array(observed, np.int64))
        all_steps = _union(parts)
        made = {name: _column(all_steps, steps, values) for name, (steps, values) in series.items()}
        fields: dict[str, Column] = {}
        for field, names in _FIELDS.items():
            counting = _counting(names, made, seen) if field in _MAIN else names
            if counting is None:
                return None
            for name in reversed(counting):
                if name in made:
                    fields[field] = made[name].over(fields[field]) if field in fields else made[name]
        return cls(
            steps=all_steps,
            names={name: column.present for name, column in made.items()},
            fields=fields,
            grads=np.isin(all_steps, list(grads)) if observed else np.zeros(len(all_steps), np.bool_),
        )

    def present(self, *fields: str) -> Bool:
        """At which of the N steps any of ``fields`` was logged."""
        found = np.zeros(len(self.steps), np.bool_)
        for field in fields:
            if field in self.fields:
                found |= self.fields[field].present
        return found

    def listed(self, field: str) -> list[float | None]:
        """A field by step, None where it is absent."""
        column = self.fields.get(field)
        return [None] * len(self.steps) if column is None else column.listed()

    def cut(self, first: int, end: int) -> Columns:
        """The steps at positions ``first`` up to ``end``; nothing is copied."""
        if first == 0 and end >= len(self.steps):
            return self
        return Columns(
            steps=self.steps[first:end],
            names={name: present[first:end] for name, present in self.names.items()},
            fields={field: column.cut(first, end) for field, column in self.fields.items()},
            grads=self.grads[first:end],
        )

    def values_at(self, at: int, scalars: Iterable[wire.Scalars]) -> dict[str, float]:
        """What was logged at the step at position ``at``, in the order of the series."""
        step = self.steps[at]
        found: dict[str, float] = {}
        for one in scalars:
            if self.names[one.name][at]:
                where = int(np.searchsorted(np.frombuffer(one.steps, "<i8"), step))
                found[one.name] = float(np.frombuffer(one.values, "<f8", 1, 8 * where)[0])
        return found


def _counting(names: Sequence[str], made: Mapping[str, Column], seen: Collection[str]) -> Sequence[str] | None:
    """Of ``names`` the one that counts at all steps; None where another one counts before it comes up."""
    known = [name for name in names if name in made or name in seen]
    if known and known[0] not in seen:
        first = int(np.argmax(made[known[0]].present))
        if any(made[name].present[:first].any() for name in known if name in made):
            return None
    return known[:1]


def _union(parts: Sequence[Index]) -> Index:
    if not parts:
        return np.zeros(0, np.int64)
    first = parts[0]
    if all(len(part) == len(first) and (part == first).all() for part in parts[1:]):
        return first
    return np.unique(np.concatenate(parts))


def _column(all_steps: Index, steps: Index, values: F64) -> Column:
    if len(steps) == len(all_steps):
        return Column(values, np.ones(len(steps), np.bool_))
    at = np.searchsorted(all_steps, steps)
    spread = np.full(len(all_steps), np.nan)
    spread[at] = values
    present = np.zeros(len(all_steps), np.bool_)
    present[at] = True
    return Column(spread, present)
