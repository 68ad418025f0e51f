"""What ``runs`` and ``show`` print for people, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from floatscope._log import percentage

__all__ = ["LISTED", "counted", "run_lines", "runs_lines"]

LISTED = 20
"""Most names or steps in a row; of the rest only the count is said."""

_FAMILY = 5
"""Scalars of as many layers, alike in all but the layer, become one line."""
_WORST = 3
_MANIFOLD = 10
"""From this multiple of the budget on a cost is said as one: percentages would be four digits long."""


def counted(count: int, singular: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{count} {singular}{'' if count == 1 else 's'}"


def runs_lines(runs: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each run."""
    if not runs:
        yield "no runs yet"
        return
    width = max(len(run["name"]) for run in runs)
    for run in runs:
        archived = ", archived" if run["archived_at"] else ""
        yield (
            f"{run['name']:{width}}  {run['state']:8}  {run['steps']:>8} {'step ' if run['steps'] == 1 else 'steps'}  "
            f"loss {_number(run['last']['loss'])}  worst headroom {_headroom(run['worst'])}  {_alerts(run)}{archived}"
        )


def _headroom(worst: dict[str, Any] | None) -> str:
    if worst is None:
        return "-"
    bits = "NaN or Inf" if worst["headroom"] == "-Infinity" else f"{_number(worst['headroom'])} bits"
    return f"{bits} in {worst['layer']}"


def _alerts(run: dict[str, Any]) -> str:
    opened = [f"{count} {severity}" for severity, count in run["alerts"].items() if count]
    resolved = sum(run["alerts_past"].values())
    if not opened and not resolved:
        return "no alerts"
    return ", ".join([*(opened or ["no open alerts"]), *([f"{resolved} resolved"] if resolved else [])])


def run_lines(run: dict[str, Any]) -> Iterator[str]:
    """One run: what it is, what it costs, its scalars, and what went wrong."""
    attempts = counted(len(run["attempts"]), "attempt")
    yield f"{run['run']}: {run['state']}, {counted(run['steps'], 'step')}, {attempts}, ranks {run['ranks']}"
    yield f"{counted(len(run['layers']), 'layer')}; observed: {_observed(run['coverage']['observed'])}"
    yield _overhead(run["overhead"], over=run["state"] not in ("live", "stalled"))
    yield from _verdicts(run)
    yield from _scalars(run["scalars"], {layer["name"] for layer in run["layers"]})
    skipped = run["skipped_steps"]
    for one in skipped[:LISTED]:
        yield f"skipped step {one['step']}: {one['layer'] or 'layer unknown'}, rank {one['rank']}{_skippers(one)}"
    if len(skipped) > LISTED:
        yield f"and {counted(len(skipped) - LISTED, 'more skipped step')}"
    for change in {change["kind"]: change for change in run.get("sampling", [])}.values():
        yield (
            f"{change['kind']} read {_interval(change['every'])} since step {change['step']}, rank {change['rank']}: "
            f"{change['because']}"
        )
    for alert in run["alerts"]:
        reason = f" ({alert['resolved_reason']})" if alert["resolved_reason"] else ""
        yield (
            f"{alert['severity']} {alert['kind']} at step {alert['first_step']}, {alert['state']}{reason}: "
            f"{alert['message']}"
        )
    for gap in run["gaps"]:
        yield f"gap in steps {gap['first']} to {gap['last']}, rank {gap['rank']}: {gap['count']} x {gap['reason']}"


def _skippers(skipped: dict[str, Any]) -> str:
    """Which optimizers a step was skipped for, where it was for several."""
    if len(skipped["optimizers"]) < 2:
        return ""
    pairs = zip(skipped["optimizers"], skipped["scales"], strict=True)
    return "; " + ", ".join(f"optimizer {number} at scale {scale:g}" for number, scale in pairs)


def _observed(layers: dict[str, int]) -> str:
    """Of how many layers each kind is known: "act 40, grad 40"."""
    return ", ".join(f"{kind} {count}" for kind, count in layers.items()) or "nothing"


def _verdicts(run: dict[str, Any]) -> Iterator[str]:
    """What the doctor found at the last start that is not ok; what it found on several hosts once, with their names."""
    hosts = [one for one in run["doctor"]["hosts"] if one["attempt"] == run["attempts"][-1]["n"]]
    said: dict[str, list[str]] = {}
    for one in hosts:
        for verdict in one["verdicts"]:
            if verdict["status"] in ("warning", "wrong"):
                item, value, why, fix = (verdict[name] for name in ("item", "value", "why", "fix"))
                said.setdefault(f"{verdict['status']}: {item} {value}: {why}; {fix}", []).append(one["host"])
    for text, where in said.items():
        shown = ", ".join(where[:LISTED]) + (f" and {len(where) - LISTED} more" if len(where) > LISTED else "")
        yield f"doctor{f' on {shown}' if len(hosts) > 1 else ''}, {text}"


def _overhead(overhead: dict[str, Any], *, over: bool) -> str:
    share, budget = overhead["share"], overhead["budget"]
    if share is None:
        return "overhead: not told" if over else "overhead: not known yet"
    of_budget = f", {_portion(share / budget)} the budget of {100 * budget:.3g} %" if budget else ", no budget"
    limit = f" ({overhead['limit']})" if overhead["limit"] else ""
    reads = ", ".join(f"{kind} {_interval(every)}" for kind, every in overhead["every"].items())
    return f"overhead: {percentage(share)} of the step time{of_budget}{limit}" + (f"; reads {reads}" if reads else "")


def _portion(share: float) -> str:
    return f"{100 * share:.3g} % of" if share < _MANIFOLD else f"{share:.0f} times"


def _interval(every: int) -> str:
    return "never" if every == 0 else "every step" if every == 1 else f"every {every} steps"


def _scalars(scalars: dict[str, Any], layers: set[str]) -> Iterator[str]:
    families: dict[str, dict[str, Any]] = {}
    of: dict[str, str] = {}
    for name, series in scalars.items():
        if found := _family(name, layers):
            family, layer = found
            families.setdefault(family, {})[layer] = series
            of[name] = family
    for name, series in scalars.items():
        members = families.get(of.get(name, ""), {})
        if len(members) < _FAMILY:
            last, low, high = (_number(series[key]) for key in ("last", "min", "max"))
            points = counted(series["n"], "point")
            yield f"  {name}: {last} at step {series['last_step']} (between {low} and {high}, {points})"
        elif series is next(iter(members.values())):
            yield f"  {of[name]}: {len(members)} layers, {_worst(of[name], members)}"


def _family(name: str, layers: set[str]) -> tuple[str, str] | None:
    """``name`` with a star for its layer, and the layer: of KIND/LAYER and blocks/KIND/LAYER/FIGURE."""
    parts = name.split("/")
    for first in (1, 2):
        for last in (len(parts), len(parts) - 1):
            if (layer := "/".join(parts[first:last])) in layers:
                return "/".join([*parts[:first], "*", *parts[last:]]), layer
    return None


def _worst(family: str, members: dict[str, Any]) -> str:
    """The extremes over the run: the lowest of minima, the highest of all else."""
    key, sign, word = ("min", 1.0, "lowest") if family.endswith("_min") else ("max", -1.0, "highest")

    def rank(layer: str) -> tuple[bool, float]:
        value = float(members[layer][key])
        return math.isnan(value), sign * value

    if len({series[key] for series in members.values()}) == 1:
        return f"{word} {_number(next(iter(members.values()))[key])} in each"
    worst = sorted(members, key=rank)[:_WORST]
    return f"{word} {', '.join(f'{_number(members[layer][key])} in {layer}' for layer in worst)}"


def _number(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"
