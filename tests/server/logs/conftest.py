"""A server for a whole module, and the commands as functions."""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from floatscope._spool._spooler import SpoolPlace
from floatscope_server.app import create_app
from floatscope_server.commands import check, import_
from floatscope_server.commands.source import UnansweredError, ask
from floatscope_server.listener import address_of, listen
from floatscope_server.logs.channel import ChannelError, StoppedError, Where
from floatscope_server.logs.following import Follower
from floatscope_server.logs.source import LogError
from floatscope_server.logs.tail import Pace
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

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        return ask(self.url, path)

    def post(self, path: str, content: Any) -> Any:  # noqa: ANN401 - JSON
        return self._send("POST", path, json.dumps(content).encode())

    def delete(self, path: str) -> None:
        self._send("DELETE", path, None)

    def _send(self, method: str, path: str, body: bytes | None) -> Any:  # noqa: ANN401 - JSON
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            content = response.read()
        return json.loads(content) if content else None

    def wait(self, name: str, points: int, series: str = "loss") -> list[list[Any]]:
        """The points of a series once there are so many."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                found = self.series(name).get(series, [])
            except UnansweredError:
                found = []
            if len(found) >= points:
                return found
            assert time.monotonic() < end, found
            time.sleep(0.01)

    def figures(self, name: str) -> dict[str, int]:
        """How many points of each scalar were stored."""
        return {series: found["n"] for series, found in self.ask(name)["scalars"].items()}


@contextmanager
def serving(data: Path, port: int = 0) -> Iterator[LogServer]:
    """A server over ``data`` until the end of the block."""
    settings = Settings(port=port, data=data)
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
    try:
        yield LogServer(url=f"http://{address_of(listener)}", services=app.state.services)
    finally:
        server.stop()
        thread.join(DEADLINE_S)


@pytest.fixture(name="serving")
def serving_fixture() -> Callable[..., AbstractContextManager[LogServer]]:
    return serving


@pytest.fixture(scope="module")
def log_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@dataclass(kw_only=True)
class Following:
    """A follower in a thread of this process."""

    follower: Follower
    stop: threading.Event
    thread: threading.Thread
    told: list[str]
    errors: list[Exception]

    def end(self) -> Follower:
        """Stop it, as Ctrl-C does."""
        self.stop.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        return self.follower


@pytest.fixture
def follows(log_server: LogServer) -> Iterator[Callable[..., Following]]:
    """Follow a file, or what a function gives; all are stopped at the end."""
    running: list[Following] = []

    def begin(
        source: Path | Callable[[Pace], Iterator[bytes]],
        run: str,
        *,
        server: str | None = None,
        spool: SpoolPlace | None = None,
    ) -> Following:
        stop = threading.Event()
        told: list[str] = []
        errors: list[Exception] = []
        where = Where(server=server or log_server.url, token=None, patience_s=None, spool=spool)
        name = source.name if isinstance(source, Path) else "stdin"
        follower = Follower(where, run, name, stopped=stop.is_set, tell=told.append, poll_s=0.01)

        def body() -> None:
            try:
                if isinstance(source, Path):
                    follower.file(source)
                else:
                    follower.piped(source)
            except (LogError, ChannelError, StoppedError) as error:
                errors.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        one = Following(follower=follower, stop=stop, thread=thread, told=told, errors=errors)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.end()


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


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """No log of a test is sent on after it: the threads of another test may be counted."""
    yield
    end = time.monotonic() + DEADLINE_S
    while any(thread.name == "floatscope-log" for thread in threading.enumerate()):
        assert time.monotonic() < end, "a log is still sent"
        time.sleep(0.01)
