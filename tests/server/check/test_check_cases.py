"""Public logs and outputs of tools: what is read from them, and the alerts that they raise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.judging import faults

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks

CASES = Path(__file__).parents[2] / "cases" / "logs"
EXPECTED = sorted(CASES.glob("*.expected.yaml"))


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.name.partition(".")[0])
def test_case(path: Path, checks: Checks) -> None:
    expected: dict[str, Any] = yaml.safe_load(path.read_text())
    inputs = expected["input"] if isinstance(expected["input"], list) else [expected["input"]]
    results = []
    for name in inputs:
        if "format-limits" in name:
            continue  # the limits themselves, no log
        answer = checks(CASES / name)
        assert answer.status == ("critical" in [a["severity"] for a in answer.content["alerts"]])
        assert answer.content["format"] == expected["format"].split()[0]
        results.append(answer.content)
    assert faults(expected, results) == []


def test_healthy_cases_are_silent_above_info(checks: Checks) -> None:
    healthy = [e for path in EXPECTED if (e := yaml.safe_load(path.read_text()))["alerts"] == []]
    assert len(healthy) >= 5
    for expected in healthy:
        inputs = expected["input"] if isinstance(expected["input"], list) else [expected["input"]]
        for name in inputs:
            if "format-limits" not in name:
                assert checks(CASES / name).kinds("warning", "critical") == [], name


def test_there_are_cases() -> None:
    assert len(EXPECTED) == 31
