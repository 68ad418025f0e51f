"""The report as one file."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

import floatscope
from floatscope_server.export.source import Source
from floatscope_server.report import sections
from floatscope_server.report.figures import heat_maps, traces, worst_layer
from floatscope_server.report.gather import Facts, gather
from floatscope_server.report.markup import Markup, join, readable, tag
from floatscope_server.report.style import STYLE
from floatscope_server.report.tongue import Tongue
from floatscope_server.report.verdict import MOST_ALERTS, alert_list, head, verdict

__all__ = ["CONTENT_SECURITY_POLICY", "file_name", "report"]

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""There is no script, no style but this one, no image but those in the file."""


def report(source: Source, run: str, *, language: str, at: datetime) -> str:
    """The report of ``run`` in ``language`` ("en" or "zh"), made ``at`` (with a time zone), as an HTML document.

    What ``source`` raises where there is no such run passes.
    """
    facts = gather(source, run)
    t = Tongue(language)
    made = f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    alerts, count = _numbered(facts.run["alerts"])
    style = Markup(STYLE)
    top = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"floatscope {floatscope.__version__}"),
        tag("title", f"{t('title', run=run)} · Floatscope"),
        tag("style", style),
    ]
    content = join(
        tag("header", head(facts, t, made)),
        tag("main", verdict(facts, t), *_parts(facts, alerts, count, t)),
        tag("footer", f"floatscope {floatscope.__version__} · {made}"),
    )
    page = tag("html", tag("head", *top), tag("body", content), lang="zh-CN" if language == "zh" else "en")
    return f"<!doctype html>\n{page}\n"


def _parts(facts: Facts, alerts: list[dict[str, Any]], count: int, t: Tongue) -> list[Markup | None]:
    config = facts.run["config"]

    def part(name: str, content: Markup) -> Markup:
        return tag("section", tag("h2", t(name)), content)

    return [
        part("alerts", alert_list(alerts, count, t)),
        part("charts", traces(facts, alerts, t)),
        part("heat", heat_maps(facts, t)),
        part("layers", sections.layers(facts, t)),
        worst_layer(facts, t),
        part("devices", sections.devices(facts, t)),
        part("doctor", sections.doctor(config, t)),
        part("config", sections.configuration(config, t)),
        part("versions", sections.versions(facts, t)),
        part("telemetry", sections.telemetry(facts, t)),
        part("reproduce", sections.reproduce(facts, t)),
        part("notes", sections.notes(t)),
    ]


def _numbered(alerts: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Those that are listed, each with a number in the order of its steps, and how many there are."""
    told = [alert for alert in alerts if alert["resolved_reason"] != "superseded"]
    severe = ("critical", "warning", "info")
    chosen = sorted(told, key=lambda alert: (severe.index(alert["severity"]), alert["first_step"]))[:MOST_ALERTS]
    chosen.sort(key=lambda alert: (alert["first_step"], alert["id"]))
    return [{**alert, "number": at + 1} for at, alert in enumerate(chosen)], len(told)


def file_name(run: str, language: str) -> str:
    """What a browser calls the file: letters, digits and what else every system takes."""
    safe = "".join(each if each.isalnum() or each in "-_." else "-" for each in readable(run)).strip("-.")
    return f"floatscope-{safe[:80] or 'run'}{'-zh' if language == 'zh' else ''}.html"
