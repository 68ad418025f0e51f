"""``docker compose --profile postgres up``: the database is a container beside the server's.

Where the public image cannot be pulled, Debian's PostgreSQL stands for it, see ``standins``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.deployment import Deployment
from tests.containers.engine import Engine
from tests.containers.telemetry import agent, insist, losses, send
from tests.server.conftest import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("database_image")]

_CONTAINER = "floatscope-postgres-1"
_PASSWORD = "s3cret"


def _address(database: str, password: str = _PASSWORD) -> str:
    return f"postgresql://floatscope:{password}@postgres/{database}"


def _with_database(deploy: Callable[..., Deployment]) -> Deployment:
    one = deploy(FLOATSCOPE_DB=_address("floatscope"), POSTGRES_PASSWORD=_PASSWORD)
    one.profiles = ["postgres"]
    return one


@pytest.fixture
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Up, as the file's comment says."""
    one = _with_database(deploy)
    one.up()
    return one


def test_data_are_in_the_database_and_outlive_down(deployment: Deployment) -> None:
    one = agent(deployment)
    send(one, 3.0, 2.0, float("nan"))
    one.close()
    count = "SELECT count(*) FROM run WHERE name = 'run'"
    assert _sql(deployment, count) == "1"
    assert deployment.compose("exec", "-T", "server", "sh", "-c", "ls /data").split() == ["tokens"]
    for service in ("server", "postgres"):
        assert deployment.state(service)["State"]["Health"]["Status"] == "healthy"
    assert not any(deployment.state("postgres")["HostConfig"]["PortBindings"].values())

    deployment.compose("down")
    deployment.up()
    assert _sql(deployment, count) == "1"
    assert losses(deployment) == [3.0, 2.0, "NaN"]


def test_the_database_asks_for_its_password(deployment: Deployment) -> None:
    script = "import psycopg, sys; psycopg.connect(sys.argv[1])"
    connect = ("exec", "-T", "server", "python", "-c", script)
    deployment.compose(*connect, _address("floatscope"))
    with pytest.raises(AssertionError, match="password authentication failed"):
        deployment.compose(*connect, _address("floatscope", "another"))


def test_a_database_that_is_being_prepared_is_not_healthy(
    deploy: Callable[..., Deployment], engine: Engine, tmp_path: Path
) -> None:
    script, override = tmp_path / "wait.sh", tmp_path / "override.json"
    script.write_text("until [ -e /tmp/go ]; do sleep 0.1; done\n")
    mount = f"{script}:/docker-entrypoint-initdb.d/wait.sh:ro"
    override.write_text(json.dumps({"services": {"postgres": {"volumes": [mount]}}}))
    one = _with_database(deploy)
    one.files = [override]
    one.compose("up", "--detach", "--no-build", "postgres")
    inside = ("exec", _CONTAINER)
    wait_for(lambda: not engine.podman(*inside, "pg_isready", check=False).returncode, "the preparation")
    assert engine.podman("healthcheck", "run", _CONTAINER, check=False).returncode == 1
    engine.podman(*inside, "touch", "/tmp/go")
    one.up()


@contextmanager
def _load(deployment: Deployment, acked: list[int]) -> Iterator[None]:
    """An agent that sends step after step and has each stored, whatever happens; the steps acknowledged."""
    one, ended = agent(deployment), threading.Event()
    broken: list[BaseException] = []

    def go() -> None:
        try:
            while not ended.is_set():
                insist(one, float(one.seq))
                acked.append(one.seq - 1)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            broken.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        one.close()
    assert not broken


@pytest.mark.parametrize("killed", [False, True], ids=["restarted", "killed"])
def test_a_database_that_starts_anew_loses_nothing_that_was_acknowledged(
    deployment: Deployment, *, killed: bool
) -> None:
    # podman gives no time to what it starts again, unless it is told to.
    commands = [["kill"], ["start"]] if killed else [["restart", "--timeout=60"]]
    acked: list[int] = []

    def go_on() -> None:
        before = len(acked)
        wait_for(lambda: len(acked) > before + 50, "acknowledgements")

    began = deployment.state("server")["State"]["StartedAt"]
    with _load(deployment, acked):
        for _ in range(3):
            go_on()
            for command in commands:
                deployment.compose(*command, "postgres")
        go_on()
    assert losses(deployment) == acked == list(range(len(acked)))
    assert deployment.state("server")["State"]["StartedAt"] == began
    assert ("not properly shut down" in deployment.compose("logs", "postgres")) is killed


def test_a_server_that_starts_before_its_database_comes_up_with_it(deployment: Deployment, engine: Engine) -> None:
    one = agent(deployment)
    send(one, 1.0)
    one.close()
    # As after the machine has started anew: the engine starts both, in no order.
    deployment.compose("stop")
    engine.podman("start", "floatscope-server-1")
    wait_for(lambda: deployment.state("server")["RestartCount"] > 0, "the engine to start the server again")
    engine.podman("start", _CONTAINER)
    wait_for(lambda: _answers(deployment), "the server to come up")
    assert losses(deployment) == [1.0]


def test_a_backup_is_taken_and_put_back(deployment: Deployment, tmp_path: Path) -> None:
    one = agent(deployment)
    send(one, 1.0, 2.0)
    one.close()
    inside, user, file = ("exec", "-T", "postgres"), "--username=floatscope", tmp_path / "floatscope.dump"
    with file.open("wb") as dump:
        deployment.compose(*inside, "pg_dump", user, "--format=custom", "floatscope", stdout=dump.fileno())
    assert file.read_bytes().startswith(b"PGDMP")

    deployment.compose("down", "--volumes")
    deployment.up()
    assert deployment.json("/api/v1/runs") == []
    deployment.compose(*inside, "createdb", user, "restored")
    with file.open("rb") as dump:
        deployment.compose(*inside, "pg_restore", user, "--dbname=restored", stdin=dump.fileno())
    deployment.environment["FLOATSCOPE_DB"] = _address("restored")
    deployment.up()
    assert losses(deployment) == [1.0, 2.0]


def _sql(deployment: Deployment, statement: str) -> str:
    command = ("psql", "--username=floatscope", "--tuples-only", "--no-align", f"--command={statement}")
    return deployment.compose("exec", "-T", "postgres", *command).strip()


def _answers(deployment: Deployment) -> bool:
    try:
        return deployment.ask("/api/v1/runs").status == 200
    except (AssertionError, OSError):
        return False
