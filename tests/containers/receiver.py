"""An HTTP server that takes webhooks, on all addresses of this machine."""

from __future__ import annotations

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

__all__ = ["Receiver"]

_DEADLINE_S = 60.0


class Receiver:
    """Answers 204 to everything."""

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[tuple[dict[str, str], bytes]] = queue.SimpleQueue()
        received = self._received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.put(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Silent."""

        self._server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self) -> tuple[dict[str, str], bytes]:
        """Headers, with names in lower case, and body of the next message."""
        return self._received.get(timeout=_DEADLINE_S)
