"""One judgement, and what a list of them amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["Status", "Verdict", "as_json", "exit_status", "ok", "table", "warning", "wrong"]

Status = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``item`` names what was looked at, ``value`` what was found; ``why`` and ``fix`` are empty where it is ok."""

    item: str
    status: Status
    value: str
    why: str = ""
    fix: str = ""


def ok(item: str, value: object) -> Verdict:
    """Nothing to do."""
    return Verdict(item=item, status="ok", value=str(value))


def warning(item: str, value: object, why: str, fix: str) -> Verdict:
    """It works, at a price or by luck."""
    return Verdict(item=item, status="warning", value=str(value), why=why, fix=fix)


def wrong(item: str, value: object, why: str, fix: str) -> Verdict:
    """It does not work, or not as somebody believes."""
    return Verdict(item=item, status="wrong", value=str(value), why=why, fix=fix)


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """1 if any of them is bad news, else 0."""
    return int(any(verdict.status != "ok" for verdict in verdicts))


def as_json(verdicts: Iterable[Verdict]) -> list[dict[str, str]]:
    """Plain data: item, status, value, why, fix."""
    return [asdict(verdict) for verdict in verdicts]


def table(verdicts: Sequence[Verdict]) -> str:
    """For a terminal, the worst first; of each group the order is kept."""
    rank = {"wrong": 0, "warning": 1, "ok": 2}
    width = max((len(verdict.item) for verdict in verdicts), default=0)
    lines = []
    for verdict in sorted(verdicts, key=lambda verdict: rank[verdict.status]):
        lines.append(f"{verdict.status:<8} {verdict.item:<{width}}  {verdict.value}")
        lines += [f"{'':9}{label}: {text}" for label, text in (("why", verdict.why), ("fix", verdict.fix)) if text]
    return "\n".join(lines)
