"""SIGKILL at every point of every transaction of a delivery: nothing is lost, and each event keeps its one id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from standardwebhooks import Webhook

from tests.server.alerts.delivery_kill_points import KINDS, SECRET, STATES

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Got, Receiver

ROOT = Path(__file__).parents[3]


def _answer(got: Got) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b'{"code":0}' if got.path.endswith("/feishu") else b"ok"


def test_a_kill_loses_no_message_of_any_kind(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = _answer
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.alerts.delivery_kill_points", str(tmp_path), receiver.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    # Taking over, claiming and settling, each at two points.
    assert sum(run["killed"] for run in runs) >= 2 * (1 + 1 + len(KINDS))
    got: dict[str, list[Got]] = {kind: [] for kind in KINDS}
    for request in receiver.requests:
        got[request.path.rpartition("/")[2]].append(request)
    told: dict[str, set[str]] = {}
    for request in got["generic"]:
        message = Webhook(SECRET).verify(request.body, request.headers)
        told.setdefault(message["data"]["run"], set()).add(request.headers["webhook-id"])
    for run in runs:
        names = {kind: [f"{run['run']}.{kind}.{state}" for state in STATES] for kind in KINDS}
        assert run["ended"] == [[f"evt_{name}", "ok"] for kind in KINDS for name in names[kind]]
        for name in names["generic"]:
            assert told[name] == {f"evt_{name}"}
        for kind in KINDS[1:]:
            for name in names[kind]:
                assert any(name in request.body.decode() for request in got[kind]), name
