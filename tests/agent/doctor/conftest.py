"""Fixtures of the doctor's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from floatscope._doctor._lint import lint
from floatscope._doctor._read import read
from floatscope._doctor._verdict import Verdict
from tests.agent.doctor.machines import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path / "root")


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., dict[str, Verdict]]:
    """``judge(name, text, *chips)``: verdicts on a configuration that are not ok, by item."""

    def judged(name: str, text: str, *chips: str) -> dict[str, Verdict]:
        path = tmp_path / name
        path.write_text(text)
        bad = [verdict for verdict in lint(read(path), chips=chips) if verdict.status != "ok"]
        assert all(verdict.why and verdict.fix for verdict in bad)
        return {verdict.item: verdict for verdict in bad}

    return judged
