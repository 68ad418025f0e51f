"""Listening: the socket, and uvicorn on it."""

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
from floatscope_server.settings import Settings

__all__ = ["Server", "address_of", "listen"]

_BACKLOG = 512
_HEADER_ROOM = 64 << 10
"""Bytes of a block message beside its body."""


def listen(settings: Settings) -> socket.socket:
    """A listening socket; ``OSError`` if the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it. Without it a client that stops reading keeps its connection for ever.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.user_timeout_s))
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    """``HOST:PORT`` of a listening socket, as in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server(uvicorn.Server):
    """Serves ``app`` on ``listener``; ``on_ready`` is called once it answers. ``stop`` ends it from any thread."""

    def __init__(self, app: FastAPI, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
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
