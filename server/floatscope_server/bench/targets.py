"""What is measured: the server's parts in this process, or a server process over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from floatscope_server.allocator import keep_little
from floatscope_server.bench.sending import BenchError, Line, StoreLine, WebSocketLine
from floatscope_server.blocks import MEDIA_TYPE
from floatscope_server.database import StoreError
from floatscope_server.settings import Settings
from floatscope_server.turns import short_turns

__all__ = ["QUESTIONS", "ServerProcess", "Target", "Use", "in_process", "over_http", "spent"]

QUESTIONS = "questions"
"""The name under which the threads count that answer questions."""
_LOOP = "floatscope-bench-loop"
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Use:
    """Seconds on a core, and ready to run without one."""

    cpu: float
    waited: float

    def __add__(self, other: Use) -> Use:
        return Use(self.cpu + other.cpu, self.waited + other.waited)


class Target(Protocol):
    """A server that runs. ``pid`` is its process."""

    pid: int

    def line(self) -> Line:
        """A way in for one writer."""

    def ask(self, path: str, **query: object) -> bytes:
        """The answer to a question of a page, in typed arrays; ``BenchError`` if it is none."""

    def used(self) -> dict[str, Use]:
        """Since the start, by thread, of those that live."""


class _InProcess:
    """All parts of a server but its socket: a question goes through the application as a request does."""

    def __init__(self, settings: Settings) -> None:
        from floatscope_server.app import create_app

        self.pid = 0
        self._app = create_app(settings)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        # Until something is complete, and not for ever: AnyIO lets its threads go with the loop's main task, and
        # without one with each question.
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._over.wait(),), name=_LOOP, daemon=True
        )
        self._thread.start()
        self._do(self._app.state.services.start())

    def line(self) -> Line:
        return StoreLine(self._app.state.services.store)

    def ask(self, path: str, **query: object) -> bytes:
        status: int
        body: bytes
        status, body = self._do(self._request(path, urlencode(query).encode()))
        if status != 200:
            raise BenchError(f"{path} is answered {status}: {body[:300].decode(errors='replace')}")
        return body

    def used(self) -> dict[str, Use]:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        found: dict[str, Use] = {}
        for task in Path("/proc/self/task").iterdir():
            name = names.get(int(task.name), "others")
            name = QUESTIONS if name.startswith(("AnyIO", _LOOP)) else name
            found[name] = found.get(name, Use(0.0, 0.0)) + _use(task)
        return found

    def close(self) -> None:
        self._do(self._app.state.services.stop())
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _do(self, coroutine: Any) -> Any:  # noqa: ANN401 - whatever it returns
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=_PATIENCE_S)

    async def _request(self, path: str, query: bytes) -> tuple[int, bytes]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": query,
            "headers": [(b"host", b"127.0.0.1"), (b"accept", MEDIA_TYPE.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        status, pieces = 0, []
        asked = asyncio.Event()

        async def receive() -> dict[str, object]:
            if asked.is_set():
                await asyncio.Event().wait()
            asked.set()
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        return status, b"".join(pieces)


class ServerProcess:
    """``floatscope server``, which answers at ``url``."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.pid = process.pid
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_PATIENCE_S)

    def line(self) -> Line:
        return WebSocketLine(self.url)

    def ask(self, path: str, **query: object) -> bytes:
        self._connection.request("GET", f"{quote(path)}?{urlencode(query)}", headers={"Accept": MEDIA_TYPE})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise BenchError(f"{path} is answered {response.status}: {body[:300].decode(errors='replace')}")
        return body

    def used(self) -> dict[str, Use]:
        return {"server": sum(map(_use, Path(f"/proc/{self.pid}/task").iterdir()), Use(0.0, 0.0))}

    def close(self) -> None:
        self._connection.close()


@contextmanager
def in_process(settings: Settings) -> Iterator[Target]:
    """The store, rules, sealing and the application in this process, set up as a server's is."""
    keep_little()
    with short_turns():
        try:
            target = _InProcess(settings)
        except StoreError as error:
            raise BenchError(str(error)) from error
        try:
            yield target
        finally:
            target.close()


@contextmanager
def over_http(settings: Settings) -> Iterator[ServerProcess]:
    """``floatscope server`` on a free port."""
    command = [sys.executable, "-m", "floatscope", "server", "--port", "0", "--data", str(settings.data)]
    if settings.db is not None:
        command += ["--db", settings.db]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = re.search(r"http://\S+", process.stdout.readline())
            if address is None:
                raise BenchError("the server does not start; its message is above")
            target = ServerProcess(process, address[0])
            try:
                yield target
            finally:
                target.close()
        finally:
            process.terminate()


def spent(before: dict[str, Use], after: dict[str, Use]) -> dict[str, Use]:
    """What threads used in between."""
    none = Use(0.0, 0.0)
    return {
        name: Use(use.cpu - before.get(name, none).cpu, use.waited - before.get(name, none).waited)
        for name, use in after.items()
    }


def _use(task: Path) -> Use:
    """Of a thread; nothing of one that has just ended, or where the system does not tell."""
    try:
        cpu, waited, _ = (task / "schedstat").read_text().split()
    except OSError:
        return Use(0.0, 0.0)
    return Use(int(cpu) / 1e9, int(waited) / 1e9)
