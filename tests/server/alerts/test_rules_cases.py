"""Public training logs: the alerts that each must raise, and those that it must not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from floatscope_server.alerts.book import Book
from floatscope_server.rules import RULES, RuleParameters, RunWindow, Severity

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build

CASES = Path(__file__).parents[2] / "cases" / "logs"
FILES = sorted([*CASES.glob("*.jsonl"), *CASES.glob("*trainer_state.json")])


def _records(path: Path) -> dict[int, dict[str, float]]:
    text = path.read_text()
    rows = (
        [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)["log_history"]
    )
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        step = row.pop("current_steps", None) or row.pop("step")
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        found.setdefault(step, {}).update(numbers)
    return dict(sorted(found.items()))


def _expected(path: Path) -> dict[str, Any]:
    number = path.name.split("-")[1].rstrip("ab")
    expected: dict[str, Any] = yaml.safe_load((CASES / f"case-{number}.expected.yaml").read_text())
    return expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_case(path: Path, build: Build) -> None:
    expected = _expected(path)
    window, book = RunWindow(RuleParameters()), Book()
    fired = [
        (t.step, t.entry.kind, t.entry.state.severity)
        for finding in window.judge(build.observation(build.body(records=_records(path))))
        for t in book.apply(finding)
        if t.kind == "firing"
    ]
    wanted = [a for a in expected["alerts"] if a["kind"] in RULES and a["certainty"].startswith("certain")]
    for alert in wanted:
        first, last = alert["steps"]
        need = Severity[alert["severity"].upper()]
        assert any(k == alert["kind"] and first <= s <= last and v >= need for s, k, v in fired), (alert, fired)
    allowed = {alert["kind"] for alert in expected["alerts"]} - set(expected["no_alerts"])
    loud = [(s, k, v) for s, k, v in fired if v > Severity.INFO and k not in allowed]
    assert loud == []
    if "none may be critical" in expected.get("certainty", "") or "nothing critical" in expected.get("certainty", ""):
        assert max((v for _, _, v in fired), default=Severity.INFO) < Severity.CRITICAL
