"""The figures beside what is promised, and the machine that they are from."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import floatscope
from floatscope_server.bench.measure import Plan

__all__ = ["GOALS", "Goal", "growth_text", "ingest_text", "query_text", "report"]

_WIDE = 600
"""Layers up to which the goals of 300 hold; above, those of 2000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """``at_most`` or ``at_least`` that much, on SQLite and on PostgreSQL; None where nothing is promised."""

    figure: str
    what: str
    unit: str
    at_most: Callable[[Plan], float | None] = lambda _: None
    at_least: Callable[[Plan], float | None] = lambda _: None

    def verdict(self, plan: Plan, value: float) -> tuple[str, bool | None]:
        """The goal in words, and whether it is met."""
        most, least = self.at_most(plan), self.at_least(plan)
        if most is not None:
            return f"<= {_figure(most)}", value <= most
        if least is not None:
            return f">= {_figure(least)}", value >= least
        return "", None


def _heat_map(plan: Plan) -> float:
    return 50 if plan.settings.postgres or plan.layers > _WIDE else 25


def _flat(value: float | None) -> Callable[[Plan], float | None]:
    return lambda _: value


GOALS = (
    Goal(
        figure="ingest_samples_per_s",
        what="acknowledged as on disk",
        unit="samples/s",
        at_least=lambda plan: None if plan.batch < 10 else 4e6 if plan.settings.postgres else 5e6,
    ),
    Goal(
        figure="blocks_per_s",
        what="blocks acknowledged",
        unit="blocks/s",
        at_least=lambda plan: 500 if plan.batch == 1 else None,
    ),
    Goal(figure="sealed_samples_per_s", what="brought into tiles", unit="samples/s"),
    Goal(
        figure="cpu_s_per_1e9_samples",
        what="CPU, ingest to tiles",
        unit="s per 1e9 samples",
        at_most=lambda plan: None if plan.settings.postgres else 90,
    ),
    Goal(figure="ack_p50_ms", what="acknowledgement p50, as fast as can be", unit="ms"),
    Goal(figure="ack_p99_ms", what="acknowledgement p99, as fast as can be", unit="ms"),
    Goal(figure="paced_ack_p99_ms", what="acknowledgement p99, beside the questions", unit="ms", at_most=_flat(50)),
    Goal(
        figure="bytes_per_sample",
        what="disk",
        unit="B/sample",
        at_most=lambda plan: None if plan.settings.postgres else 2.5,
    ),
    Goal(figure="heatmap_p50_ms", what="heat map, any range, p50", unit="ms"),
    Goal(figure="heatmap_p99_ms", what="heat map, any range, p99", unit="ms", at_most=_heat_map),
    Goal(figure="heatmap_whole_p50_ms", what="heat map, whole run, p50", unit="ms"),
    Goal(figure="heatmap_whole_p99_ms", what="heat map, whole run, p99", unit="ms", at_most=_heat_map),
    Goal(figure="scalars_p99_ms", what="scalars, any range, p99", unit="ms", at_most=_flat(10)),
    Goal(figure="layer_p99_ms", what="one layer, all metrics, any range, p99", unit="ms", at_most=_flat(50)),
    Goal(figure="latest_p99_ms", what="latest values, p99", unit="ms", at_most=_flat(5)),
    Goal(figure="tail_p99_ms", what="what came since, p99", unit="ms", at_most=_flat(5)),
    Goal(figure="compare_heatmaps_p99_ms", what="heat maps of 5 runs, p99", unit="ms", at_most=_flat(125)),
    Goal(figure="compare_scalars_p99_ms", what="scalars of 5 runs, p99", unit="ms", at_most=_flat(50)),
    Goal(figure="ingest_pace_kept", what="pace kept by ingest beside the questions", unit="", at_least=_flat(0.95)),
    Goal(figure="reopen_s", what="reopened, to the first heat map", unit="s", at_most=_flat(1)),
    Goal(figure="rss_mb", what="anonymous memory", unit="MB", at_most=lambda plan: None if plan.layers > 300 else 300),
)


def report(plan: Plan, results: dict[str, object]) -> dict[str, Any]:
    """What ``--json`` prints: figures without a value left out."""
    return {
        "machine": machine(),
        "engine": "postgresql" if plan.settings.postgres else f"sqlite {sqlite3.sqlite_version}",
        "over": "http" if plan.http else "process",
        "steps": plan.steps,
        "layers": plan.layers,
        "kinds": plan.kinds,
        "ranks": plan.ranks,
        "results": {name: value for name, value in results.items() if value is not None},
        "goals": _goals(plan, results),
    }


def _goals(plan: Plan, results: dict[str, object]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for goal in GOALS:
        value = results.get(goal.figure)
        if isinstance(value, int | float):
            words, met = goal.verdict(plan, value)
            row = {"figure": goal.figure, "what": goal.what, "value": value, "unit": goal.unit, "goal": words}
            # Without what its threads waited for a core.
            own = results.get(goal.figure.replace("_p", "_own_p", 1))
            rows.append({**row, "met": met, "own": own if own != value else None})
    return rows


def machine() -> dict[str, object]:
    """What it was measured on, and what else the machine did: its load of the last minute."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line)
        model = next(names, model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "floatscope": floatscope.__version__,
    }


def query_text(found: dict[str, Any]) -> str:
    """A table for people."""
    return "\n".join([*_head(found), *_table(found["goals"]), *_peers(found)])


ingest_text = query_text


def growth_text(found: dict[str, Any]) -> str:
    """A line for each length."""
    figures = ("heatmap_whole_p50_ms", "heatmap_p50_ms", "heatmap_p99_ms", "layer_p99_ms", "scalars_p99_ms")
    columns = (*figures, "ingest_samples_per_s", "bytes_per_sample", "reopen_s", "rss_mb")
    lines = _head(found["growth"][0])[:1]
    lines.append(" ".join(["steps".rjust(9), *(name.rjust(len(name)) for name in columns)]))
    for each in found["growth"]:
        values = each["results"]
        cells = [_figure(values[name]).rjust(len(name)) if name in values else "-".rjust(len(name)) for name in columns]
        lines.append(" ".join([f"{each['steps']:9}", *cells]))
    longest = [each for each in found["growth"] if each["steps"] >= 100_000]
    if len(longest) > 1:
        first, last = (each["results"]["heatmap_whole_p50_ms"] for each in (longest[0], longest[-1]))
        verdict = "meets" if last / first <= 1.5 else "misses"
        lines.append(
            f"heat map of the whole run, p50, from {longest[0]['steps']} to {longest[-1]['steps']} steps: "
            f"{last / first:.2f}x, {verdict} <= 1.5x"
        )
    return "\n".join(lines)


def _head(found: dict[str, Any]) -> list[str]:
    of = found["machine"]
    size = f"{found['steps']} steps x {found['layers']} layers x {found['kinds']} kinds x 8 statistics"
    if found["ranks"] > 1:
        size += f" x {found['ranks']} ranks"
    where = f"{of['cpu']}, {of['cores']} cores, load {of['load']:.1f}; Python {of['python']}, {found['engine']}"
    return [f"{where}; over {found['over']}", size]


def _table(goals: list[dict[str, Any]]) -> list[str]:
    width = max(len(row["what"]) for row in goals)
    lines = []
    for row in goals:
        verdict = {None: "", True: "meets", False: "misses"}[row["met"]]
        line = f"  {row['what']:{width}}  {_figure(row['value']):>10} {row['unit']:17} {verdict:6} {row['goal']:8}"
        own = "" if row["own"] is None else f"  {_figure(row['own'])} without waiting for a core"
        lines.append((line + own).rstrip())
    missed = sum(row["met"] is False for row in goals)
    promised = sum(row["met"] is not None for row in goals)
    return [*lines, f"{promised - missed} of {promised} goals met" + (f", {missed} missed" if missed else "")]


def _peers(found: dict[str, Any]) -> list[str]:
    lines = []
    for peer in found.get("peers", []):
        if "missing" in peer:
            lines.append(f"{peer['name']}: not measured; {peer['missing']}")
            continue
        figures = ", ".join(f"{name} {_figure(value)}" for name, value in peer["results"].items())
        lines.append(f"{peer['name']}, {peer['steps']} steps: {figures}")
    return lines


def _figure(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}e6"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
