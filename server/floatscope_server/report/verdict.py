"""What a reader must know first: who the run is, how near it came to a limit, what broke first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from floatscope_server.report.gather import Facts, Find
from floatscope_server.report.markup import Markup, join, tag
from floatscope_server.report.numbers import bits, count, duration, figure, moment
from floatscope_server.report.tongue import Tongue

__all__ = ["alert_list", "head", "severity_mark", "verdict"]

_SHAPES = {
    "critical": "M6 1 11.4 11.2H.6Z",
    "warning": "M6 .8 11.2 6 6 11.2 .8 6Z",
    "info": "M6 1.2a4.8 4.8 0 1 1 0 9.6a4.8 4.8 0 1 1 0-9.6Z",
}
MOST_ALERTS = 100


def severity_mark(severity: str) -> Markup:
    """A sign with a shape of its own, so that colour is never alone."""
    return tag("svg", tag("path", d=_SHAPES[severity]), viewBox="0 0 12 12", aria_hidden="true")


def head(facts: Facts, t: Tongue, made: str) -> Markup:
    """Name and plain facts."""
    run = facts.run
    begun = run["started_at"]
    ended = run["finished_at"] or run["heartbeat_at"]
    spent = (
        "–"
        if begun is None or ended is None
        else duration((datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds())
    )
    ranks = count(len(run["ranks"]))
    if run["missing_ranks"]:
        ranks = t("head.missing_ranks", count=run["world"], missing=", ".join(map(str, run["missing_ranks"][:16])))
    rows = [
        ("head.state", t(f"state.{run['state']}")),
        ("head.steps", count(run["steps"])),
        ("head.attempts", count(len(run["attempts"]))),
        ("head.ranks", ranks),
        ("head.layers", count(len(run["layers"]))),
        ("head.started", moment(begun)),
        ("head.duration", spent),
        ("head.made", made),
    ]
    return join(
        tag("div", "Floatscope", class_="brand"),
        tag("h1", tag("bdi", run["run"])),
        tag("dl", *(tag("div", tag("dt", t(key)), tag("dd", value)) for key, value in rows), class_="facts"),
    )


def verdict(facts: Facts, t: Tongue) -> Markup:
    """The worst headroom, and the first crossing, the first value that was not finite, the first skip."""
    worst = facts.layers[0].worst if facts.layers else None
    grade = "" if worst is None else "over" if worst.bits < 0 or facts.over else "near" if worst.bits < 1 else ""
    rows = [
        (t("verdict.first_over"), _found(facts.over, t) or t("verdict.never")),
        (t("verdict.first_nonfinite"), _nonfinite(facts, t) or t("verdict.never")),
        (t("verdict.first_skip"), _skip(facts.run["skipped_steps"], t) or t("verdict.never")),
        (t("verdict.alerts"), _tally(facts.run["alerts"], t)),
    ]
    table = tag("table", *(tag("tr", tag("th", name, scope="row"), tag("td", told)) for name, told in rows))
    return tag("section", tag("h2", t("verdict")), _hero(worst, t), table, class_=f"verdict {grade}")


def _hero(worst: Find | None, t: Tongue) -> Markup:
    label = tag("div", t("verdict.worst"), class_="label")
    if worst is None:
        return tag("div", label, tag("p", t("verdict.unknown")), class_="hero")
    said = "over" if worst.bits < 0 else "near" if worst.bits < 1 else "clear"
    times = figure(2.0 ** abs(worst.bits))
    return tag(
        "div",
        label,
        tag("div", tag("b", bits(worst.bits)), tag("span", t("verdict.bits"), class_="unit")),
        tag("p", tag("bdi", worst.layer, class_="mono")),
        tag(
            "p",
            t("comma").join((t(f"kind.{worst.kind}"), str(worst.format), t.at(worst.first, worst.last))),
            class_="note",
        ),
        tag("p", t(f"verdict.{said}", times=times, format=worst.format), class_="note"),
        class_="hero",
    )


def _found(found: Find | None, t: Tongue) -> Markup | None:
    if found is None:
        return None
    where = tag("bdi", found.layer, class_="mono")
    told = [t(f"kind.{found.kind}"), str(found.format)]
    if np.isfinite(found.bits):
        told.append(f"{bits(found.bits)} {t('verdict.bits')}")
    return join(t.at(found.first, found.last), t("colon"), where, *(f"{t('comma')}{one}" for one in told))


def _nonfinite(facts: Facts, t: Tongue) -> Markup | None:
    """What the rules judged, unless something was not finite before that: they look at who produced it."""
    judged = [alert for alert in facts.run["alerts"] if alert["kind"] == "nonfinite"]
    first = min(judged, key=lambda alert: int(alert["first_step"]), default=None)
    if first is None or (facts.nonfinite is not None and facts.nonfinite.last < first["first_step"]):
        return _found(facts.nonfinite, t)
    at = t.at(first["first_step"], first["first_step"])
    return join(at, t("colon"), _culprit(first["layer"], first["rank"], t))


def _culprit(layer: str | None, rank: int | None, t: Tongue) -> Markup:
    if layer is None:
        return join(t("verdict.no_culprit"))
    before, _, after = t("verdict.culprit", layer="\0").partition("\0")
    of_rank = "" if rank is None else f"{t('comma')}{t('rank', rank=rank)}"
    return join(before, tag("bdi", layer, class_="mono"), after, of_rank)


def _skip(skipped: list[dict[str, Any]], t: Tongue) -> Markup | None:
    if not skipped:
        return None
    first = skipped[0]
    at = t.at(first["step"], first["step"])
    more = t("verdict.skips", count=count(len(skipped)))
    return join(at, t("colon"), _culprit(first["layer"], first["rank"], t), t("semicolon"), more)


def _tally(alerts: list[dict[str, Any]], t: Tongue) -> str:
    by = {name: sum(alert["severity"] == name and alert["state"] == "firing" for alert in alerts) for name in _SHAPES}
    past = sum(alert["state"] == "resolved" and alert["resolved_reason"] != "superseded" for alert in alerts)
    return t("verdict.open", **by, past=past)


def alert_list(alerts: list[dict[str, Any]], all_alerts: int, t: Tongue) -> Markup:
    """The alerts with their texts, by the numbers that they have in the charts."""
    if not alerts:
        return tag("p", t("alerts.none"), class_="muted")
    rows = []
    for alert in alerts:
        past = alert["state"] == "resolved"
        said = alert["message_zh" if t.language == "zh" else "message"]
        state = t(f"alert.{alert['state']}")
        rows.append(
            tag(
                "tr",
                tag("td", alert["number"], class_="number"),
                tag(
                    "td",
                    severity_mark(alert["severity"]),
                    t(f"severity.{alert['severity']}"),
                    tag("div", state, class_="note"),
                    class_=f"sev {alert['severity']}{' past' if past else ''}",
                ),
                tag("td", t.short(alert["first_step"], alert["last_step"]), class_="number"),
                tag("td", tag("code", alert["kind"], class_="note"), tag("div", tag("bdi", said)), class_="name what"),
            )
        )
    headings = ("#", t("alerts.severity"), t("alerts.steps"), t("alerts.what"))
    classes = ("number", None, "number", None)
    top = tag("tr", *(tag("th", word, class_=of) for word, of in zip(headings, classes, strict=True)))
    more = tag("p", t("alerts.more", shown=len(alerts), all=all_alerts), class_="note")
    table = tag("table", tag("thead", top), tag("tbody", *rows), class_="alerts")
    return join(more if all_alerts > len(alerts) else None, tag("div", table, class_="scroll"))
