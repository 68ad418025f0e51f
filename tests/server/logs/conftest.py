"""A server for a whole module, and the commands as functions."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from floatscope_server.app import create_app
from floatscope_server.commands import check, import_
from floatscope_server.commands.source import ask
from floatscope_server.listener import address_of, listen
from floatscope_server.services import Services
from floatscope_server.serving import Server
from floatscope_server.settings import Settings

DEADLINE_S = 60.0


@dataclass(kw_only=True)
class LogServer:
    """A server in this process; what it says of runs once everything is judged."""

    url: str
    services: Services

    def run(self, name: str, state: str = "finished") -> Any:  # noqa: ANN401 - JSON
        """The run once it is in this state: a goodbye is not acknowledged."""
        end = time.monotonic() + DEADLINE_S
        while (found := self.ask(name))["state"] != state:
            assert time.monotonic() < end, found["state"]
            time.sleep(0.01)
        self.services.alerts.drain()
        return self.ask(name)

    def ask(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """The run as it is now."""
        return ask(self.url, f"/api/v1/runs/{quote(name, safe='')}")

    def series(self, name: str) -> dict[str, list[list[Any]]]:
        """Every point of every scalar."""
        found = ask(self.url, f"/api/v1/runs/{quote(name, safe='')}/scalars?points=10000")
        return {one["name"]: [list(pair) for pair in zip(one["steps"], one["values"], strict=True)] for one in found}

    def figures(self, name: str) -> dict[str, int]:
        """How many points of each scalar were stored."""
        return {series: found["n"] for series, found in self.run(name)["scalars"].items()}


@pytest.fixture(scope="module")
def log_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    settings = Settings(port=0, data=tmp_path_factory.mktemp("data"))
    listener = listen(settings)
    ready = threading.Event()
    app = create_app(settings)
    server = Server(app, listener, on_ready=ready.set)

    def serve() -> None:
        with listener:
            server.serve_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S)
    yield LogServer(url=f"http://{address_of(listener)}", services=app.state.services)
    server.stop()
    thread.join(DEADLINE_S)


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def imports(log_server: LogServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``floatscope import``, into the server."""
    for name in ("FLOATSCOPE_SERVER", "FLOATSCOPE_RUN", "FLOATSCOPE_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path, server: str | None = None) -> Said:
        parser = argparse.ArgumentParser()
        import_.configure(parser)
        status = import_.run(parser.parse_args([*map(str, arguments), "--server", server or log_server.url]))
        return Said(status, *capsys.readouterr())

    return run


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], Any]:
    """What ``floatscope check --json`` says of a file."""

    def run(path: Path) -> Any:  # noqa: ANN401 - JSON
        parser = argparse.ArgumentParser()
        check.configure(parser)
        check.run(parser.parse_args([str(path), "--json"]))
        return json.loads(capsys.readouterr().out)

    return run
