"""The listening socket."""

from __future__ import annotations

import socket

from floatscope_server.settings import Settings

__all__ = ["address_of", "listen"]

_BACKLOG = 512


def listen(settings: Settings) -> socket.socket:
    """A listening socket; ``OSError`` if the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it. Without it a client that stops reading keeps its connection for ever.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.user_timeout_s))
        # A body is sent after its header: with Nagle's algorithm it waits for the other side's delayed acknowledgement,
        # 40 ms on a connection that is kept.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
