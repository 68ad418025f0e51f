"""The listening socket."""

from __future__ import annotations

import socket

from floatscope_server.listener import listen
from floatscope_server.settings import Settings


def test_an_accepted_connection_sends_at_once() -> None:
    with listen(Settings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
