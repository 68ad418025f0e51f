"""The webhook receiver that comes with the demo: what a user's own endpoint has to do, in the standard library."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from floatscope._webhooks import SignatureError, new_secret, verify

__all__ = ["Receiver", "Webhook"]

_MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One delivery: ``id`` as its header says, ``alert`` the id of the alert in a body that could be trusted."""

    id: str
    valid: bool
    alert: str | None = None


class Receiver:
    """Listens on a free port of 127.0.0.1, checks each delivery's signature and puts it into ``received``.

    Answers 204 to a valid delivery, 400 to any other.
    """

    def __init__(self) -> None:
        self.secret = new_secret()
        self.received: queue.SimpleQueue[Webhook] = queue.SimpleQueue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="demo-receiver", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Judge one delivery (header names in lower case); whether its signature is valid."""
        try:
            identity = verify(self.secret, headers, body, now=time.time())
        except SignatureError:
            self.received.put(Webhook(id=headers.get("webhook-id", "without-id"), valid=False))
            return False
        self.received.put(Webhook(id=identity, valid=True, alert=_alert_of(body)))
        return True


def _alert_of(body: bytes) -> str | None:
    identity = json.loads(body).get("data", {}).get("id")
    return None if identity is None else str(identity)


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            if length > _MAX_BODY_BYTES:
                self.send_error(413)
                return
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(204 if receiver.take(headers, body) else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Silent: the demo prints its own line for each delivery."""

    return Handler
