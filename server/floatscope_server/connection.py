"""One HTTP connection: how long its head may be, how long it may take, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from floatscope_server.jsontext import encode_json
from floatscope_server.responses import error_body

__all__ = ["MAX_HEAD_BYTES", "BoundedConnection", "most_connections"]

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers of one request; more is answered 431."""

_MAX_HEADERS = 100
_HEAD_S = 10.0
"""A connection must bring a whole head in this time, counted from its first byte or from the connection."""

_BODY_S = 60.0
"""And the rest of a body in this: 2 MiB at 35 KB/s."""

_RESERVE = 256
"""Descriptors kept for the database, for webhooks, and for what is accepted before anybody counts it."""


def most_connections(descriptors: int | None = None) -> int:
    """How many connections can be held with ``descriptors``, by default those of this process, 16 to 1024."""
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, min(1024, descriptors - _RESERVE))


class _Parser(h11.Connection):
    """h11 bounds only a head that comes in pieces; ``refused`` is the status of the error that it raised last."""

    refused = 400

    def next_event(self) -> Any:  # noqa: ANN401 - h11's union of events and sentinels
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refused = error.error_status_hint
            raise
        if isinstance(event, h11.Request):
            size = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
            if size > MAX_HEAD_BYTES or len(event.headers) > _MAX_HEADERS:
                self.refused = 431
                raise h11.RemoteProtocolError("the head is too large", 431)
        return event


_TEXTS = {
    408: ("timeout", "the request did not come in time", "send it in one go"),
    431: ("head_too_large", f"more than {MAX_HEAD_BYTES} bytes or {_MAX_HEADERS} headers", "send less"),
    503: ("busy", "too many connections", "close some, or try again"),
}
_MALFORMED = ("malformed", "this is no HTTP request", "see /docs for what there is")


class BoundedConnection(H11Protocol):
    """uvicorn's connection with limits. ``most`` is how many there may be at once, web sockets counted.

    At the limit the one that has waited longest without a request makes room, so that idle or half-open connections
    keep nobody out.
    """

    most = 1024

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = self._parser = _Parser(h11.SERVER, MAX_HEAD_BYTES)
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    # Protocol interface

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self._under_way is None:
            self._wait_for_head()
        super().data_received(data)

    # What uvicorn calls

    def handle_events(self) -> None:
        before = self._under_way
        super().handle_events()
        now = self._under_way
        if now is None:
            return
        if now is not before or not now.more_body:
            self._end_waiting()
        if now.more_body and self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(_BODY_S, self._late)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._end_waiting()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._end_waiting()
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._parser.refused)

    # Limits

    @property
    def _under_way(self) -> RequestResponseCycle | None:
        """The request that has not been answered in full."""
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _wait_for_head(self) -> None:
        self._idle_since = self.loop.time()
        self._deadline = self.loop.call_later(_HEAD_S, self._late)

    def _end_waiting(self) -> None:
        self._idle_since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._under_way is None and not self.conn.trailing_data[0]:
            self.transport.close()  # it asked for nothing
        elif not self.transport.is_closing():
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        """Answer ``status``, if no answer is under way, and close."""
        self._end_waiting()
        cycle = self._under_way
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            for part in _answer(status):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def _make_room(self) -> None:
        waiting = {
            other: other._idle_since
            for other in self.connections
            if isinstance(other, BoundedConnection) and other._idle_since is not None
        }
        oldest = min(waiting, key=lambda other: waiting[other])
        if oldest is self:
            _log.warning("%d connections are in use: another one was refused", self.most)
            self._refuse(503)
        else:
            oldest._end_waiting()
            self.connections.discard(oldest)
            oldest.transport.abort()


def _answer(status: int) -> Iterator[h11.Event]:
    content = encode_json(error_body(*_TEXTS.get(status, _MALFORMED)))
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(content))),
        ("connection", "close"),
    ]
    if status == 503:
        headers.append(("retry-after", "1"))
    yield h11.Response(status_code=status, headers=headers)
    yield h11.Data(data=content)
    yield h11.EndOfMessage()
