"""Holds what `floatscope check --json` says of a case against the case's expected file."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["faults"]

_LEVEL = {"info": 0, "warning": 1, "critical": 2}
_REASONS = {"loss_zero", "grad_norm_frozen", "stale_grad_norm", "lr_frozen", "throughput_drop"}
"""Kinds that may be a reason of another kind."""
_MILD = re.compile(r"nothing critical may fire|none may be critical")
_FORBIDS = re.compile(r"(?:(?:file )?([ab]): )?(\w+)(?: (critical|at warning or above))?(?: at (?:step )?(\d+))?")
_MIB = 2**20
_FIELDS = (
    ("vram total bytes", "vram_total_bytes", 1),
    ("vram used bytes", "vram_used_bytes", 1),
    ("used_vram mb", "vram_used_bytes", _MIB),
    ("total_vram mb", "vram_total_bytes", _MIB),
    ("gpu use %", "busy_percent", 1),
    ("gfx_activity %", "busy_percent", 1),
    ("memory activity %", "memory_busy_percent", 1),
    ("power w", "power_watts", 1),
)

Json = dict[str, Any]


def _number(value: Any) -> Any:  # noqa: ANN401 - JSON
    names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return names.get(value, value) if isinstance(value, str) else value


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - JSON
    one, other = _number(one), _number(other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return bool((math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-5))
    return bool(one == other)


def _kind(alert: Json) -> str:
    """The kind with the family of the format before it, as the expected files name limits."""
    kind, form = str(alert["kind"]), alert["format"] or ""
    if kind in ("limit_near", "limit_crossed"):
        return f"fp16_{kind}" if form == "fp16" else f"fp8_{kind}" if form[:4] in ("e4m3", "e5m2") else f"{form}_{kind}"
    return kind


def _is(alert: Json, kind: str) -> bool:
    return _kind(alert) == kind or (kind in _REASONS and alert["reason"] == kind)


def _level(alert: Json) -> int:
    return _LEVEL[alert["severity"]]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def faults(expected: Json, results: list[Json]) -> list[str]:
    """What is wrong with ``results``, one for each input of the case; empty if all is right."""
    alerts = [alert for result in results for alert in result["alerts"]]
    found = [*_of_devices(expected["parse"], results)] if "devices" in results[0] else []
    if len(results) == 1:
        found += _of_parse(expected, results[0])
    found += _of_alerts([w for w in expected["alerts"] if isinstance(w, dict)], alerts)
    for text in expected.get("no_alerts", []):
        if isinstance(text, str) and _forbidden(text, results):
            found.append(f"false {text}")
    limit = 1 if expected["alerts"] == [] else 2 if _MILD.search(str(expected.get("certainty"))) else 3
    found += [f"healthy, yet {_kind(a)} at {a['first_step']}" for a in alerts if _level(a) >= limit]
    return found


def _of_parse(expected: Json, result: Json) -> list[str]:
    want = expected["parse"]
    found = []
    # The record that names the version of an event file is none of a training.
    slack = {0, 1} if expected["format"] == "tensorboard-events" else {0}
    if isinstance(want.get("records"), int) and want["records"] - result["records"] not in slack:
        found.append(f"{result['records']} records, not {want['records']}")
    series = {_plain(name): points for name, points in result["series"].items()}
    every = [point for points in series.values() for point in points]
    for sample in want.get("samples", []):
        if sample["step"] is None or "devices" in result:
            continue
        points = series.get(_plain(sample["series"]), every)
        if not any(_same(step, sample["step"]) and _same(value, sample["value"]) for step, value in points):
            found.append(f"{sample['series']} at {sample['step']} is not {sample['value']}")
    return found


def _of_devices(want: Json, results: list[Json]) -> list[str]:
    cards = [card for result in results for card in result["devices"]]
    found = []
    if want.get("devices", len(cards)) != len(cards):
        found.append(f"{len(cards)} cards, not {want['devices']}")
    for sample in want.get("samples", []):
        words = sample["series"].lower()
        known = next(((field, unit) for text, field, unit in _FIELDS if text in words), None)
        if sample["step"] is None and known is not None:
            field, unit = known
            pool = results["ab".index(words[0])]["devices"] if words[:2] in ("a:", "b:") else cards
            if not any(_same(card[field], sample["value"] * unit) for card in pool):
                found.append(f"no card has {field} {sample['value']}")
    return found


def _of_alerts(wanted: list[Json], alerts: list[Json]) -> list[str]:
    found: list[str] = []
    seen: set[str] = set()
    for want in wanted:
        if want.get("optional") or want["certainty"].startswith("judgement"):
            continue
        kind, need = want["kind"], _LEVEL[want["severity"]]
        hits = [a for a in alerts if _is(a, kind)]
        if not want.get("by"):
            low, high = want["steps"]
            earliest = min(w["steps"][0] for w in wanted if w["kind"] == kind)
            early = [a for a in hits if a["first_step"] < earliest and _level(a) >= max(need, 1)]
            if kind != "grad_norm_spike" and early:
                found.append(f"{kind} too early, at {early[0]['first_step']}")
            # An alert of the kind's first window that is still open counts in its second.
            hits = [
                a
                for a in hits
                if low <= a["first_step"] <= high
                or (kind in seen and a["first_step"] <= high and a["last_step"] >= low)
            ]
        seen.add(kind)
        if max(map(_level, hits), default=-1) < need:
            found.append(f"no {want['severity']} {kind} in {want['steps']}")
    return found


def _forbidden(text: str, results: list[Json]) -> bool:
    """Whether a loud alert of what a line of ``no_alerts`` rules out is there: KIND, KIND critical, KIND at STEP, "step
    STEP: ... limit", "file b: everything"."""
    if at := re.match(r"step (\d+): .*limit", text):
        file, kind, floor, step = None, "limit", None, at[1]
    else:
        forbids = _FORBIDS.match(text)
        assert forbids is not None
        file, kind, floor, step = forbids.groups()
    pool = [results["ab".index(file)]] if file else results
    return any(
        _level(a) >= (2 if floor == "critical" else 1)
        and (kind == "everything" or _kind(a) == kind or (kind == "limit" and "_limit_" in _kind(a)))
        and (not step or a["first_step"] == int(step))
        for result in pool
        for a in result["alerts"]
    )
