"""``docker compose up``: podman and Docker Compose build and run the server's image; ``standins`` has its base."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from standardwebhooks import Webhook
from websockets.exceptions import InvalidStatus, WebSocketException

from tests.containers.deployment import Deployment
from tests.containers.engine import Engine
from tests.containers.receiver import Receiver
from tests.containers.telemetry import agent, losses, send
from tests.server.conftest import Agent, http, wait_for

Deploy = Callable[..., Deployment]

_GRACE_S = 30.0

# The first test waits for the images: a minute on an idle machine, several on a busy one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_nobody_is_let_in_without_a_token(deploy: Deploy) -> None:
    deployment = deploy()
    deployment.up()
    address = deployment.address
    assert deployment.compose("port", "server", "6160").startswith("127.0.0.1:")
    assert http(f"http://{address}/healthz").status == 200
    assert http(f"http://{address}/api/v1/runs").status == 401
    assert http(f"http://{address}/api/v1/runs", headers={"Authorization": "Bearer wrong"}).status == 401
    assert http(f"http://{address}/ingest/v1", method="POST", body=b"").status == 401
    assert deployment.json("/api/v1/runs") == []
    for token in (None, deployment.token("read")):
        with pytest.raises(InvalidStatus, match="401"):
            Agent(address=address, token=token).connect()
    assert deployment.ask("/api/v1/endpoints", scope="ingest").status == 401
    shown = dict(line.split()[-2:] for line in deployment.compose("logs", "server").splitlines() if len(line) > 40)
    assert shown["ingest"] == deployment.token("ingest")


def test_the_server_may_do_little(deploy: Deploy) -> None:
    deployment = deploy()
    deployment.up()
    state = deployment.state("server")
    assert state["Config"]["User"] == "10001:10001"
    assert state["HostConfig"]["ReadonlyRootfs"] is True
    said = deployment.compose("exec", "-T", "server", "cat", "/proc/1/status", "/proc/mounts")
    words = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
    assert words["Uid:"] == words["Gid:"] == ["10001"] * 4
    assert words["NoNewPrivs:"] == ["1"]
    assert words["CapEff:"] == words["CapPrm:"] == words["CapBnd:"] == ["0" * 16]
    root = next(line for line in said.splitlines() if line.split()[1:2] == ["/"])
    assert "ro" in root.split()[3].split(",")
    modes = deployment.compose(
        "exec", "-T", "server", "stat", "--format=%a", "/data", "/data/tokens", "/data/floatscope.db"
    )
    assert modes.split() == ["700", "600", "600"]
    missing = "import importlib.util as u; print([n for n in ('pip', 'setuptools', 'torch') if u.find_spec(n)])"
    assert deployment.compose("exec", "-T", "server", "python", "-c", missing).strip() == "[]"


def test_an_alert_reaches_a_receiver_and_everything_outlives_down(deploy: Deploy) -> None:
    deployment = deploy(FLOATSCOPE_PUBLIC_URL="https://floatscope.example")
    with Receiver() as receiver:
        deployment.environment["FLOATSCOPE_WEBHOOK_ALLOW"] = "10.0.0.0/8"
        deployment.up()
        (network,) = deployment.state("server")["NetworkSettings"]["Networks"].values()
        body = json.dumps({"url": f"http://{network['Gateway']}:{receiver.port}/"}).encode()
        made = deployment.ask("/api/v1/endpoints", scope="admin", method="POST", body=body)
        assert made.status == 201, made.body
        one = agent(deployment)
        send(one, 3.0, 2.0, float("nan"), float("nan"))
        headers, told = receiver.take()
        one.close()
    message = Webhook(made.json["secret"]).verify(told, headers)
    assert message["type"] == "alert.firing"
    assert message["data"]["run"] == "run"
    assert message["data"]["run_url"].startswith("https://floatscope.example/")
    token, alerts = deployment.token("read"), deployment.json("/api/v1/alerts")
    assert message["data"]["id"] in {alert["id"] for alert in alerts}

    deployment.compose("down")
    deployment.up()
    assert deployment.token("read") == token
    assert losses(deployment) == [3.0, 2.0, "NaN", "NaN"]
    assert {alert["id"] for alert in deployment.json("/api/v1/alerts")} >= {alert["id"] for alert in alerts}
    assert [row["state"] for row in deployment.json("/api/v1/deliveries")][-1:] == ["ok"]


def test_stop_loses_nothing_that_was_acknowledged(deploy: Deploy) -> None:
    deployment = deploy()
    deployment.up()
    one, ended, acked = agent(deployment), threading.Event(), [0]

    def load() -> None:
        try:
            while one.seq < 4000:
                send(one, float(one.seq))
                acked[0] = one.seq
        except (OSError, EOFError, WebSocketException, TimeoutError, AssertionError):
            ended.set()

    thread = threading.Thread(target=load)
    thread.start()
    wait_for(lambda: acked[0] > 50 or ended.is_set(), "acknowledgements")
    took = deployment.stop()
    thread.join()
    one.close()
    assert acked[0] > 50
    assert took < _GRACE_S
    assert deployment.state("server")["State"]["ExitCode"] == 0
    deployment.compose("start", "--wait", "server")
    kept = losses(deployment)
    assert kept[: acked[0]] == list(range(acked[0]))
    assert len(kept) <= acked[0] + 1


def test_stop_does_not_wait_for_a_server_that_starts(deploy: Deploy) -> None:
    deployment = deploy()
    deployment.compose("up", "--detach", "--no-build", "server")
    assert deployment.stop() < _GRACE_S
    # 143: ended by the signal itself; 0: it had begun to listen for it.
    assert deployment.state("server")["State"]["ExitCode"] in {0, 143}


def test_a_server_that_dies_comes_back(deploy: Deploy, engine: Engine) -> None:
    deployment = deploy()
    deployment.up()
    one = agent(deployment)
    send(one, 1.0, 2.0)
    before = deployment.state("server")["State"]["StartedAt"]
    engine.kill("floatscope-server-1")
    wait_for(lambda: deployment.state("server")["State"]["StartedAt"] != before, "the engine to start it again")
    wait_for(lambda: _healthy(deployment), "the server to answer")
    assert losses(deployment) == [1.0, 2.0]


def test_a_backup_is_taken_beside_the_server_and_put_back(deploy: Deploy, tmp_path: Path) -> None:
    deployment = deploy()
    deployment.up()
    one = agent(deployment)
    send(one, 1.0, 2.0)
    one.close()
    deployment.compose("exec", "-T", "server", "floatscope", "server", "--backup", "/data/backup.db")
    deployment.compose("cp", "server:/data/backup.db", str(tmp_path))
    deployment.compose("exec", "-T", "server", "rm", "/data/backup.db")
    assert (tmp_path / "backup.db").read_bytes().startswith(b"SQLite format 3")

    deployment.compose("down", "--volumes")
    deployment.up()
    assert deployment.json("/api/v1/runs") == []
    with (tmp_path / "backup.db").open("rb") as backup:
        put_back = ("exec", "-T", "server", "sh", "-c", "cat > /data/restored.db")
        deployment.compose(*put_back, stdin=backup.fileno())
    deployment.environment["FLOATSCOPE_DB"] = "sqlite:////data/restored.db"
    deployment.up()
    assert losses(deployment) == [1.0, 2.0]


def _healthy(deployment: Deployment) -> bool:
    try:
        return http(f"http://{deployment.address}/healthz").status == 200
    except OSError:
        return False
