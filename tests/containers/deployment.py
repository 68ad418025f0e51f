"""What ``docker compose`` runs, and what a user asks of it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from tests.containers.engine import Engine
from tests.server.conftest import Reply, http

__all__ = ["Deployment"]


class Deployment:
    """The project's services with variables of their environment, on a free port."""

    def __init__(self, engine: Engine, **environment: str) -> None:
        self._engine = engine
        self.environment = {"FLOATSCOPE_PORT": "0", **environment}
        self.profiles: list[str] = []
        self.files: list[Path] = []

    def compose(
        self,
        *arguments: str,
        check: bool = True,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
    ) -> str:
        """What a command of Docker Compose's prints, if it is not to go elsewhere."""
        profiles = [word for name in self.profiles for word in ("--profile", name)]
        answer = self._engine.compose(
            *profiles, *arguments, check=check, files=self.files, stdin=stdin, stdout=stdout, **self.environment
        )
        return answer.stdout or ""

    def up(self, *services: str) -> None:
        """Until everything that has a health check is healthy."""
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "120", *services)

    @property
    def address(self) -> str:
        """Where the server is published, seen from this machine."""
        return self.compose("port", "server", "6160").strip().replace("0.0.0.0", "127.0.0.1")

    def token(self, scope: str) -> str:
        """Out of the server's token file."""
        lines = self.compose("exec", "-T", "server", "cat", "/data/tokens").splitlines()
        return dict(line.split() for line in lines)[scope]

    def ask(self, path: str, *, scope: str = "read", method: str = "GET", body: bytes | None = None) -> Reply:
        """One request with the token for ``scope``."""
        headers = {"Authorization": f"Bearer {self.token(scope)}", "Content-Type": "application/json"}
        return http(f"http://{self.address}{path}", method=method, body=body, headers=headers)

    def json(self, path: str) -> Any:  # noqa: ANN401 - whatever the server says
        """What is read at ``path``."""
        reply = self.ask(path)
        assert reply.status == 200, reply.body
        return reply.json

    def state(self, service: str) -> dict[str, Any]:
        """What the engine knows of the container."""
        found: dict[str, Any] = self._engine.inspect(f"floatscope-{service}-1")
        return found

    def stop(self) -> float:
        """Seconds that the server takes to end."""
        begun = time.monotonic()
        self.compose("stop", "server")
        return time.monotonic() - begun

    def remove(self) -> None:
        """With everything that is kept."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")
