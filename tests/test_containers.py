"""The container files, read by the tools that will use them: Docker Compose and hadolint."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / "docker-compose"), "--file", str(ROOT / "docker-compose.yml"), *arguments]
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(command, capture_output=True, text=True, env=clean, timeout=120, check=False)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    answer = compose("--profile", "rocm", "config", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    parsed: dict[str, Any] = json.loads(answer.stdout)["services"]
    return parsed


@pytest.mark.parametrize(
    "profile",
    [[], *(["--profile", name] for name in ("rocm", "cpu", "postgres"))],
    ids=lambda words: "".join(words[1:]),
)
def test_compose_takes_the_file_without_a_word(profile: list[str]) -> None:
    answer = compose(*profile, "config", "--quiet")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_compose_refuses_a_wrong_file(tmp_path: Path) -> None:
    """The check above can fail."""
    wrong = (ROOT / "docker-compose.yml").read_text().replace("ipc: host", "ipcx: host")
    (tmp_path / "docker-compose.yml").write_text(wrong)
    command = [str(TOOLS / "docker-compose"), "--profile", "rocm", "config", "--quiet"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False).returncode != 0


def test_only_the_server_starts_by_default() -> None:
    assert compose("config", "--services").stdout.split() == ["server"]


@pytest.mark.parametrize(
    ("profile", "services"),
    [("rocm", {"server", "trainer"}), ("cpu", {"server", "trainer-cpu"}), ("postgres", {"server", "postgres"})],
)
def test_each_profile_starts_its_services(profile: str, services: set[str]) -> None:
    assert set(compose("--profile", profile, "config", "--services").stdout.split()) == services


def test_the_server_waits_for_the_database_that_it_is_given() -> None:
    address = "postgresql://floatscope:secret@postgres/floatscope"
    answer = compose(
        "--profile", "postgres", "config", "--format", "json", FLOATSCOPE_DB=address, POSTGRES_PASSWORD="secret"
    )
    found = json.loads(answer.stdout)["services"]
    assert found["server"]["environment"]["FLOATSCOPE_DB"] == address
    assert found["server"]["depends_on"]["postgres"] == {"condition": "service_healthy", "required": False}
    assert found["postgres"]["environment"]["POSTGRES_PASSWORD"] == "secret"
    assert not found["postgres"].get("ports")
    assert found["postgres"]["volumes"][0]["target"] == "/var/lib/postgresql/data"
    assert "postgres" in (ROOT / "Dockerfile").read_text().partition("pip install")[2]


def test_the_example_without_a_card_is_confined_and_asks_for_none() -> None:
    answer = compose("--profile", "cpu", "config", "--format", "json")
    trainer = json.loads(answer.stdout)["services"]["trainer-cpu"]
    assert "--device=cpu" in trainer["command"]
    assert "devices" not in trainer
    assert (trainer["read_only"], trainer["cap_drop"]) == (True, ["ALL"])


def test_ports_are_published_on_this_machine_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert {port["target"] for port in published} == {6160}


def test_published_port_can_be_moved() -> None:
    answer = compose("config", "--format", "json", FLOATSCOPE_PORT="7000")
    (port,) = json.loads(answer.stdout)["services"]["server"]["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "7000", 6160)


def test_it_can_be_published_to_other_machines() -> None:
    answer = compose("config", "--format", "json", FLOATSCOPE_BIND="0.0.0.0")
    (port,) = json.loads(answer.stdout)["services"]["server"]["ports"]
    assert port["host_ip"] == "0.0.0.0"


@pytest.mark.parametrize(
    ("names", "allowed"), [("", ""), ("scope.example", "server,scope.example")], ids=["any-name", "listed"]
)
def test_names_are_checked_once_some_are_listed(names: str, allowed: str) -> None:
    answer = compose("config", "--format", "json", FLOATSCOPE_ALLOWED_HOSTS=names)
    assert json.loads(answer.stdout)["services"]["server"]["environment"]["FLOATSCOPE_ALLOWED_HOSTS"] == allowed


def test_server_is_confined(services: dict[str, Any]) -> None:
    server = services["server"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert [(v["type"], v["target"]) for v in server["volumes"]] == [("volume", "/data")]
    assert "privileged" not in server
    assert all(" " not in argument for argument in server["healthcheck"]["test"])


@pytest.mark.parametrize("profile", ["rocm", "cpu"])
def test_each_service_has_a_read_only_root_and_no_capability(profile: str) -> None:
    answer = compose("--profile", profile, "config", "--format", "json")
    for service in json.loads(answer.stdout)["services"].values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_trainer_reaches_the_card_by_group_number(services: dict[str, Any]) -> None:
    trainer = services["trainer"]
    assert [device["source"] for device in trainer["devices"]] == ["/dev/kfd", "/dev/dri"]
    assert all(str(group).isdecimal() for group in trainer["group_add"])
    assert trainer["ipc"] == "host"
    assert trainer["depends_on"]["server"]["condition"] == "service_healthy"
    assert trainer["environment"]["FLOATSCOPE_SERVER"] == "http://server:6160"


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.rocm"])
def test_hadolint_is_content(name: str) -> None:
    answer = subprocess.run(
        [str(TOOLS / "hadolint"), "--no-color", str(ROOT / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.rocm"])
def test_images_do_not_run_as_root(name: str) -> None:
    users = [line.split()[1] for line in (ROOT / name).read_text().splitlines() if line.startswith("USER ")]
    assert users
    assert users[-1].partition(":")[0] not in {"0", "root"}


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.rocm"])
def test_everything_that_is_copied_reaches_the_build(name: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for line in (ROOT / name).read_text().splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source.split("/")[0], pattern) for pattern in kept), source


def test_rocm_torch_is_pinned_before_anything_is_installed() -> None:
    text = (ROOT / "Dockerfile.rocm").read_text()
    assert text.index("'^torch=='") < text.index("pip install")
    assert text.count("pip install") == text.count("--constraint constraints.txt")


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Silent: the test reads what the check prints."""


class _Unhealthy(_Health):
    status = 503


@pytest.fixture(params=[_Health, _Unhealthy])
def answering(request: pytest.FixtureRequest) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def health(port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floatscope_server.probe"],
        env={"FLOATSCOPE_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_health_check_follows_the_status(answering: ThreadingHTTPServer) -> None:
    answer = health(answering.server_port)
    healthy = answering.RequestHandlerClass is _Health
    assert answer.returncode == (0 if healthy else 1)
    assert ("503" in answer.stderr) == (not healthy)


def test_health_check_of_a_server_that_is_not_there() -> None:
    answer = health(1)
    assert answer.returncode == 1
    assert "refused" in answer.stderr
    assert "Traceback" not in answer.stderr
