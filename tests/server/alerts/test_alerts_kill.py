"""SIGKILL at every point of every transaction: each transition has exactly one event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

EXPECTED = [
    ["nonfinite", "critical", "firing", 10],
    ["nonfinite", "critical", "resolved", 40],
    ["loss_spike", "info", "firing", 41],
    ["loss_spike", "info", "superseded", 42],
    ["loss_spike", "critical", "firing", 42],
    ["loss_spike", "critical", "resolved", 70],
    ["nonfinite", "critical", "firing", 71],
]


def test_a_kill_neither_loses_nor_doubles_an_event(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.alerts.kill_points", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    assert sum(run["killed"] for run in runs) >= 3 * len(EXPECTED)
    for run in runs:
        where = (run["point"], run["number"])
        assert run["events"] == EXPECTED, where
        assert len(set(run["ids"])) == len(EXPECTED), where
        assert sorted(run["outbox"]) == sorted(run["told"]), where
