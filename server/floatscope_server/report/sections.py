"""The report's tables: layers, devices, doctor, configuration, versions, and how to have it again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import floatscope
from floatscope._attach.masking import MASK, is_secret, masked, masked_command, plain
from floatscope_server.report.gather import Facts
from floatscope_server.report.markup import Markup, join, tag
from floatscope_server.report.numbers import bits, count, share, size
from floatscope_server.report.tongue import Tongue

__all__ = ["configuration", "devices", "doctor", "layers", "notes", "reproduce", "telemetry", "versions"]

_MOST_LAYERS = 24
_MOST_DEVICES = 64
_MOST_ENTRIES = 200
_LONGEST = 400
_APART = ("doctor", "versions", "command", "directory", "source", "environment")
"""Of the configuration what has a place of its own; the environment stays with whoever has the run."""
_VERSIONS = ("torch", "python")
_NOTES = ("headroom", "nonfinite", "underflow", "skip", "steps")


def _table(headings: list[tuple[str, str | None]], rows: list[Markup]) -> Markup:
    top = tag("tr", *(tag("th", word, class_=of, scope="col") for word, of in headings))
    return tag("div", tag("table", tag("thead", top), tag("tbody", *rows), class_="wide"), class_="scroll")


def _pairs(rows: list[tuple[str, object]]) -> Markup:
    lines = (tag("tr", tag("td", key, class_="key"), tag("td", value, class_="value mono")) for key, value in rows)
    return tag("div", tag("table", *lines), class_="scroll")


def layers(facts: Facts, t: Tongue) -> Markup:
    """Those with the least headroom, each kind of tensor by itself."""
    if not facts.layers:
        return tag("p", t("verdict.unknown"), class_="muted")
    shown = facts.layers[:_MOST_LAYERS]
    rows = []
    for one in shown:
        worst = one.worst
        grade = "bad" if worst.bits < 0 else "warn" if worst.bits < 1 else None
        under = facts.underflow.get((worst.kind, worst.layer), math.nan)
        rows.append(
            tag(
                "tr",
                tag("td", tag("bdi", worst.layer), class_="name mono"),
                tag("td", t(f"kind.{worst.kind}")),
                tag("td", worst.format, class_="mono"),
                tag("td", bits(worst.bits), class_=f"number {grade or ''}"),
                tag("td", t.short(worst.first, worst.last), class_="number"),
                tag("td", bits(one.newest), class_="number"),
                tag("td", share(under), class_="number"),
                tag("td", "–" if one.nonfinite is None else count(one.nonfinite), class_="number"),
            )
        )
    names = ("layer", "kind", "format", "least", "at", "newest", "underflow", "nonfinite")
    headings = [(t(f"layers.{name}"), "number" if at > 2 else None) for at, name in enumerate(names)]
    more = tag("p", t("layers.more", shown=len(shown), all=len(facts.layers)), class_="note")
    return join(_table(headings, rows), more if len(facts.layers) > len(shown) else None)


def devices(facts: Facts, t: Tongue) -> Markup:
    """The newest reading of each card."""
    found = facts.run["devices"][:_MOST_DEVICES]
    if not found:
        return tag("p", t("devices.none"), class_="muted")

    def of(value: float | None, unit: str) -> str:
        return "–" if value is None else f"{value:.0f} {unit}"

    rows = [
        tag(
            "tr",
            tag("td", f"{card['backend']} {card['index']}, {t('rank', rank=card['rank'])}"),
            tag("td", tag("bdi", card["name"] or "–"), class_="name"),
            tag("td", card["pci"] or "–", class_="mono"),
            tag("td", f"{size(card['vram_used_bytes'])} / {size(card['vram_total_bytes'])}", class_="number"),
            tag("td", of(card["busy_percent"], "%"), class_="number"),
            tag("td", of(card["power_watts"], "W"), class_="number"),
            tag("td", of(card["temperature_celsius"], "°C"), class_="number"),
        )
        for card in found
    ]
    names = ("card", "name", "pci", "memory", "busy", "power", "temperature")
    return _table([(t(f"devices.{name}"), "number" if at > 2 else None) for at, name in enumerate(names)], rows)


def doctor(config: Mapping[str, Any], t: Tongue) -> Markup:
    """Verdicts on the machine at the start, the bad ones first. The configuration is whatever an agent has sent."""
    found = config.get("doctor")
    verdicts = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if not verdicts:
        return tag("p", t("doctor.none"), class_="muted")
    order = {"wrong": 0, "warning": 1}
    signs = {"wrong": "critical bad", "warning": "warning warn"}
    rows = []
    for one in sorted(verdicts, key=lambda one: order.get(str(one.get("status")), 2))[:_MOST_ENTRIES]:
        status = str(one.get("status"))
        known = status in ("ok", "warning", "wrong")
        why = " ".join(_told(one.get(key)) for key in ("why", "fix") if one.get(key))
        rows.append(
            tag(
                "tr",
                tag("td", _told(one.get("item"))),
                tag("td", t(f"status.{status}") if known else status[:20], class_=f"sev {signs.get(status, 'ok')}"),
                tag("td", _told(one.get("value")), class_="mono name"),
                tag("td", why, class_="name"),
            )
        )
    return _table([(t(f"doctor.{name}"), None) for name in ("item", "status", "value", "why")], rows)


def _told(value: object) -> str:
    return masked(str(value), {})[:_LONGEST]


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Leaves with dotted names, once more without secrets: not every agent takes them out."""
    for key, value in config.items():
        clean = MASK if is_secret(str(key), value) else plain(value, str(key), environment={})
        yield from _leaves(masked(str(key), {}), clean)


def _leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves(f"{name}.{key}", one)
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))[:_LONGEST]
    else:
        yield name, str(value)[:_LONGEST]


def configuration(config: Mapping[str, Any], t: Tongue) -> Markup:
    """What the run told of itself, without secrets."""
    rows: list[tuple[str, object]] = list(
        _entries({key: value for key, value in config.items() if key not in (*_APART, *_VERSIONS)})
    )
    if not rows:
        return tag("p", t("config.none"), class_="muted")
    more = tag("p", t("config.more", count=len(rows) - _MOST_ENTRIES), class_="note")
    hidden = tag("p", t("config.hidden", mask=MASK), class_="note")
    return join(
        _pairs(rows[:_MOST_ENTRIES]),
        more if len(rows) > _MOST_ENTRIES else None,
        hidden if any(MASK in str(value) for _, value in rows) else None,
    )


def versions(facts: Facts, t: Tongue) -> Markup:
    """Of the agents, of what trained, and of the server that made this."""
    config = facts.run["config"]
    agents = sorted({writer["agent"] for writer in facts.run["writers"] if writer["agent"]})
    told = {key: config[key] for key in _VERSIONS if key in config}
    of_packages = config.get("versions")
    told |= of_packages if isinstance(of_packages, dict) else {}
    rows: list[tuple[str, object]] = [(t("agent"), ", ".join(agents) or "–"), ("floatscope", floatscope.__version__)]
    return _pairs([*rows, *list(_entries(told))[:_MOST_ENTRIES]])


def telemetry(facts: Facts, t: Tongue) -> Markup:
    """What watching cost, what was observed, and what was lost of it."""
    run = facts.run
    cost = run["overhead"]["share"]
    seen = ", ".join(f"{t(f'kind.{kind}')} {number}" for kind, number in run["coverage"]["observed"].items())
    lost = t("telemetry.gaps", count=len(run["gaps"]), dropped=count(run["overhead"]["dropped"]))
    rows: list[tuple[str, object]] = [
        (t("telemetry.cost"), "–" if cost is None else t("telemetry.of", share=share(cost))),
        (t("telemetry.seen"), seen or "–"),
        (t("telemetry.lost"), lost),
    ]
    return _pairs(rows)


def reproduce(facts: Facts, t: Tongue) -> Markup:
    """The command of the training, where it has told it, and the commands that give this report and its numbers."""
    config = facts.run["config"]
    command = config.get("command")
    words = masked_command([str(word) for word in command], {}) if isinstance(command, list) else []
    told = [tag("p", t("reproduce.unknown"), class_="muted")]
    if words:
        line = " ".join(word if MASK in word else shlex.quote(word) for word in words)
        where = t("reproduce.directory", directory=_told(config["directory"])) if config.get("directory") else ""
        source = t("reproduce.source", source=_told(_source(config["source"]))) if config.get("source") else ""
        told = [
            tag("p", f"{t('reproduce.command')} {where} {source}".rstrip()),
            tag("pre", line),
            tag("p", t("reproduce.watch")),
            tag("pre", f'pip install "floatscope=={floatscope.__version__}"\nfloatscope run -- {line}'),
        ]
    name = shlex.quote(facts.run["run"])
    take = f"floatscope report {name} -o report.html\nfloatscope export {name} --to run.parquet"
    return join(*told, tag("p", t("reproduce.take")), tag("pre", take))


def _source(source: object) -> str:
    if isinstance(source, dict):
        return ", ".join(f"{key} {value}" for key, value in source.items() if value)
    return str(source)


def notes(t: Tongue) -> Markup:
    """Definitions."""
    return join(*(tag("p", t(f"notes.{name}")) for name in _NOTES))
