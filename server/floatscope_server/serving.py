"""The application under uvicorn, on a socket that listens already."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from floatscope import wire
from floatscope_server.connection import BoundedConnection, most_connections

__all__ = ["Server"]

_HEADER_ROOM = 64 << 10
"""Bytes of a block message beside its body."""

_BACKLOG = 128
"""Connections that are accepted in one go."""


class Server(uvicorn.Server):
    """Serves ``app`` on ``listener``; ``on_ready`` is called once it answers. ``stop`` ends it from any thread."""

    def __init__(self, app: FastAPI, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
        connection = type("Connection", (BoundedConnection,), {"most": most_connections()})
        super().__init__(
            uvicorn.Config(
                app,
                http=connection,
                backlog=_BACKLOG,
                ws="websockets-sansio",
                ws_max_size=wire.MAX_BLOCK_BYTES + _HEADER_ROOM,
                ws_per_message_deflate=False,
                ws_ping_interval=20.0,
                ws_ping_timeout=20.0,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._listener = listener
        self._on_ready = on_ready

    def serve_forever(self) -> bool:
        """Serve until a signal or ``stop``; False if the application did not start."""
        asyncio.run(self.serve(sockets=[self._listener]))
        return self.started

    def stop(self) -> None:
        """End gracefully."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in the base class, but a signal that was served is not raised again: the exit status is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
