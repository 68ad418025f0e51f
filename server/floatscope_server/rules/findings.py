"""How the outcome of a rule becomes a finding about a series, a card or layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from floatscope_server.rules.tensors import Bool
from floatscope_server.rules.verdict import Finding, Outcome, Severity, Status, Verdict

__all__ = ["Grouped", "Held", "layer_finding", "series_finding", "settled"]


class Held(Protocol):
    """The part of a rule's parameters that the alert machine needs."""

    @property
    def hold(self) -> float: ...
    @property
    def keep(self) -> float: ...


class Grouped(Held, Protocol):
    """The same of a rule on layers."""

    @property
    def group_steps(self) -> int: ...


def series_finding(
    kind: str, rule: Held, step: int, rank: int, outcome: Outcome, *, family: str = "", at: float | None = None
) -> Finding | None:
    """The finding about a series; None when the step has no data for the rule. ``at``: its time in seconds, where the
    rule goes by time."""
    if outcome.status is Status.NO_DATA:
        return None
    verdict = outcome.verdict
    member = str(rank)
    active: dict[str, Severity] = {} if verdict is None else {member: verdict.severity}

    def worded(_member: str) -> Verdict:
        assert verdict is not None
        return verdict

    return Finding(
        kind=kind,
        family=family,
        step=step,
        rank=rank,
        active=active,
        clear=lambda other: other == member and not active,
        verdict=worded,
        hold=rule.hold,
        keep=rule.keep,
        at=at,
    )


def layer_finding(
    kind: str,
    rule: Grouped,
    step: int,
    rank: int,
    active: Mapping[int, Severity],
    clear: Bool,
    verdict: Callable[[int], Verdict],
    *,
    family: str,
) -> Finding:
    """The finding about layers by their index: those for which the condition holds in causal order, a mask of those
    that were seen to be sound, and the wording of the alert that a layer leads."""
    return Finding(
        kind=kind,
        family=family,
        step=step,
        rank=rank,
        active={f"{rank}:{layer}": severity for layer, severity in active.items()},
        clear=settled(clear, rank),
        verdict=lambda member: verdict(int(member.partition(":")[2])),
        group_steps=rule.group_steps,
        hold=rule.hold,
        keep=rule.keep,
    )


def settled(mask: Bool, rank: int) -> Callable[[str], bool]:
    """Whether a member is a layer of ``rank`` that ``mask`` marks."""

    def clear(member: str) -> bool:
        owner, _, layer = member.partition(":")
        return int(owner) == rank and int(layer) < len(mask) and bool(mask[int(layer)])

    return clear
