"""What stands on the screen: pure functions of what is known and of the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope._log import percentage
from floatscope._top.cells import Line, fitted, readable, width_of

__all__ = ["Known", "LayerBits", "frame"]

_MARKS = {"critical": "▲", "warning": "◆", "info": "●"}
_CALM = 16.0
_STATES = {"live": "ok", "failed": "critical", "lost": "critical", "stalled": "warning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBits:
    """Newest headroom of a layer: -inf is something not finite, NaN what was not observed."""

    layer: str
    kind: str
    format: str
    bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the server has said. ``trouble`` says why it says nothing now, ``age_s`` how old what is shown is then."""

    server: str
    runs: Sequence[dict[str, Any]] | None = None
    opened: str | None = None
    layers: Sequence[LayerBits] = ()
    alerts: Sequence[dict[str, Any]] = ()
    devices: Sequence[dict[str, Any]] = field(default=())
    trouble: str | None = None
    age_s: float = 0.0


def frame(known: Known, chosen: int, width: int, height: int) -> list[Line]:
    """At most ``height`` lines; ``chosen`` is the marked line of the list."""
    run = None
    if known.opened is not None:
        run = next((one for one in known.runs or () if one["name"] == known.opened), None)
    title = "floatscope" if known.opened is None else f"floatscope  {readable(known.opened)}"
    lines: list[Line] = [_title(title, known, width)]
    if known.runs is None:
        lines.append([(f"asking {known.server}" if known.trouble is None else "", "dim")])
    elif known.opened is None:
        lines += _list(known.runs, chosen, width, height - 2)
    elif run is None:
        lines.append([("there is no such run, or not any more", "")])
    else:
        lines += _run(run, known, width, height - 2)
    lines = lines[: height - 1]
    keys = "q quit  up/down choose  Enter open" if known.opened is None else "q quit  Esc all runs"
    return [*lines, *([[]] * (height - 1 - len(lines))), [(keys, "dim")]]


def _title(title: str, known: Known, width: int) -> Line:
    if known.trouble is None:
        right, style = readable(known.server), "dim"
    else:
        right, style = readable(f"no link for {known.age_s:.0f} s, trying again: {known.trouble}"), "critical"
    right = right if width_of(right) < width - 20 else fitted(right, max(10, width - 22))
    return [(fitted(title, width - width_of(right) - 1), "bold"), (f" {right}", style)]


def _number(value: float | str | None) -> str:
    return (
        "–"
        if value is None
        else value.replace("-", "−")
        if isinstance(value, str)
        else f"{value:.4g}".replace("-", "−")
    )


def _bits(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "all 0" if value > 0 else "NaN/Inf"
    return f"{value:.{1 if abs(value) >= 0.1 or value == 0 else 2}f}".replace("-", "−")


def _grade(value: float) -> str:
    return "critical" if value < 0 else "warning" if value < 1 else ""


def _real(value: float | str) -> float:
    return float(value)  # "NaN", "Infinity" and "-Infinity" among them


def _open_alerts(run: dict[str, Any]) -> list[tuple[str, str]]:
    pieces = [(f"{_MARKS[name]}{count} ", name) for name, count in run["alerts"].items() if count]
    return pieces or [("–", "dim")]


def _list(runs: Sequence[dict[str, Any]], chosen: int, width: int, height: int) -> list[Line]:
    if not runs:
        return [[], [("no runs yet: floatscope run -- CMD, or floatscope.watch(model, optimizer)", "")]]
    name = max(12, min(40, width - 64, max(width_of(readable(run["name"])) for run in runs)))
    layer = max(0, width - name - 52)
    heading = f"{fitted('RUN', name)} {fitted('STATE', 8)} {fitted('STEP', 8, 'right')} {fitted('LOSS', 9, 'right')}"
    lines: list[Line] = [
        [(f"{heading} {fitted('BITS', 8, 'right')} {fitted('ALERTS', 12)} {fitted('LAYER', layer)}", "dim")]
    ]
    room = max(1, height - 1)
    first = max(0, min(chosen - room // 2, len(runs) - room))
    for at, run in enumerate(runs[first : first + room], first):
        worst = run["worst"]
        headroom = _real(worst["headroom"]) if worst else math.nan
        mark = "reverse" if at == chosen else ""
        alerts = _open_alerts(run)
        used = sum(width_of(text) for text, _ in alerts)
        lines.append(
            [
                (fitted(run["name"], name), mark or "bold"),
                (f" {fitted(run['state'], 8)}", _STATES.get(run["state"], "")),
                (f" {run['steps']:>8} {fitted(_number(run['last']['loss']), 9, 'right')}", ""),
                (f" {fitted(_bits(headroom), 8, 'right')} ", _grade(headroom)),
                *alerts,
                (" " * max(0, 13 - used), ""),
                (fitted(worst["layer"] if worst else "", layer, keep="end"), "dim"),
            ]
        )
    return lines


def _run(run: dict[str, Any], known: Known, width: int, height: int) -> list[Line]:
    last, worst, cost = run["last"], run["worst"], (run["overhead"] or {}).get("share")
    headroom = _real(worst["headroom"]) if worst else math.nan
    lines: list[Line] = [
        [
            (run["state"], _STATES.get(run["state"], "bold")),
            (f"  step {max(0, run['steps'] - 1)}", "bold"),
            (f"  loss {_number(last['loss'])}  grad norm {_number(last['grad_norm'])}", ""),
            (f"  loss scale {_number(last['loss_scale'])}" if last["loss_scale"] is not None else "", ""),
            ("" if cost is None else f"  cost {percentage(cost)}", "dim"),
        ],
        [
            ("worst headroom lately " if worst else "worst headroom ", ""),
            (f"{_bits(headroom)} bits" if worst else "not known yet", _grade(headroom) or "bold"),
            (f"  {readable(worst['layer'])}, {worst['kind']}, step {worst['step']}" if worst else "", ""),
        ],
        [],
    ]
    room = height - len(lines)
    of_devices = min(len(known.devices), max(1, room // 5)) if known.devices else 0
    of_alerts = min(max(1, sum(alert["state"] == "firing" for alert in known.alerts)), max(2, room // 4))
    of_layers = room - of_alerts - of_devices - 3 - bool(of_devices) * 2
    lines += [*_layers(known.layers, width, max(1, of_layers)), [], *_alerts(known.alerts, width, of_alerts)]
    if of_devices:
        lines += [[], *_devices(known.devices, width, of_devices)]
    return lines


def _layers(layers: Sequence[LayerBits], width: int, rows: int) -> list[Line]:
    bar = max(8, min(40, width - 62))
    name = max(12, width - bar - 29)
    heading = f"{fitted('LAYER', name)} {fitted('TENSOR', 8)} {fitted('FORMAT', 8)} {fitted('BITS', 7, 'right')}  "
    lines: list[Line] = [[(f"{heading}16{fitted('limit', bar - 2, 'right')}", "dim")]]
    if not layers:
        lines.append([("no layer has reported lately", "dim")])
    for one in layers[:rows]:
        style = _grade(one.bits)
        lines.append(
            [
                (f"{fitted(one.layer, name, keep='end')} {fitted(one.kind, 8)} {fitted(one.format, 8)} ", ""),
                (fitted(_bits(one.bits), 7, "right"), style),
                (f"  {_bar(one.bits, bar)}", style or "ok"),
            ]
        )
    return lines


def _bar(bits: float, width: int) -> str:
    """Full at the limit: what is long is in danger. Beyond the limit, or not finite, it is made of another sign."""
    if math.isnan(bits):
        return "·" * width
    if bits < 0:
        return "▒" * width
    filled = 2 * width * (1 - min(bits, _CALM) / _CALM)
    whole, half = divmod(round(filled), 2)
    return ("█" * whole + "▌" * half).ljust(width, "·")


def _alerts(alerts: Sequence[dict[str, Any]], width: int, rows: int) -> list[Line]:
    order = list(_MARKS)
    firing = sorted(
        (alert for alert in alerts if alert["state"] == "firing"),
        key=lambda alert: (order.index(alert["severity"]), -alert["last_step"]),
    )
    lines: list[Line] = [[(f"OPEN ALERTS {len(firing)}", "dim")]]
    if not firing:
        lines.append([("none", "dim")])
    for alert in firing[:rows]:
        what = f" {alert['kind']} at step {alert['first_step']}: "
        told = fitted(alert["message"], max(0, width - 1 - width_of(what)))
        lines.append([(_MARKS[alert["severity"]], alert["severity"]), (what, "bold"), (told, "")])
    return lines


def _devices(devices: Sequence[dict[str, Any]], width: int, rows: int) -> list[Line]:
    more = f", {rows} shown" if rows < len(devices) else ""
    lines: list[Line] = [[(f"{len(devices)} GPU{'s' if len(devices) > 1 else ''}{more}", "dim")]]

    def of(value: float | None, unit: str, wide: int) -> str:
        return fitted("–" if value is None else f"{value:.0f} {unit}", wide, "right")

    for card in devices[:rows]:
        used, total = card["vram_used_bytes"], card["vram_total_bytes"]
        memory = "–" if used is None or not total else f"{used / 2**30:.1f}/{total / 2**30:.0f} GiB"
        name = fitted(f"{card['backend']} {card['index']}, rank {card['rank']}", 18)
        figures = f"{of(card['busy_percent'], '%', 6)} {fitted(memory, 15, 'right')} {of(card['power_watts'], 'W', 6)}"
        model = fitted(card["name"] or "", max(0, width - 56))
        lines.append([(f"{name}{figures} {of(card['temperature_celsius'], '°C', 6)}  ", ""), (model, "dim")])
    return lines
