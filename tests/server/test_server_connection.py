"""What a peer can do to the server before anybody knows who it is."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from floatscope_server import connection
from floatscope_server.connection import MAX_HEAD_BYTES, BoundedConnection, most_connections

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from tests.server.conftest import Running, Start

Dial = Callable[["Running", bytes], socket.socket]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Opens connections that send something; all are closed at the end."""
    with ExitStack() as opened:

        def begin(server: Running, content: bytes) -> socket.socket:
            host, _, port = server.address.rpartition(":")
            peer = opened.enter_context(socket.create_connection((host, int(port)), timeout=60))
            peer.sendall(content)
            return peer

        yield begin


def _rest(peer: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts: list[bytes] = []
    try:
        while part := peer.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "head",
    [
        _HEAD + b"X: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        _HEAD + b"X: " + b"a" * (3 * MAX_HEAD_BYTES),
        _HEAD + b"".join(b"X%d: 1\r\n" % i for i in range(200)) + b"\r\n",
        b"GET /" + b"a" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
    ids=["long", "endless", "many", "path"],
)
def test_a_head_that_is_too_large_is_431(server: Running, dial: Dial, head: bytes) -> None:
    answer = _rest(dial(server, head))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"head_too_large"' in answer
    assert server.get("/healthz").status == 200


def test_an_endless_header_is_not_read_to_its_end(server: Running, dial: Dial) -> None:
    peer = dial(server, _HEAD + b"X: ")
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        peer.sendall(b"a" * (64 << 20))


def test_what_is_no_http_is_400_in_the_shape_of_every_error(server: Running, dial: Dial) -> None:
    answer = _rest(dial(server, b"\x16\x03\x01\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"malformed"' in answer


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"", b""),
        (_HEAD + b"X: ", b"HTTP/1.1 408 "),
        (_HEAD + b"\r\n" + _HEAD, b"HTTP/1.1 200 .*HTTP/1.1 408 "),
        (b"POST /ingest/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc", b"HTTP/1.1 408 "),
    ],
    ids=["silent", "half a head", "half the next head", "half a body"],
)
def test_one_that_is_slow_is_cut_off(
    server: Running,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    answer: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    monkeypatch.setattr(connection, "_HEAD_S", 1.0)
    monkeypatch.setattr(connection, "_BODY_S", 1.0)
    peer = dial(server, content)
    received = b""
    peer.settimeout(0.02)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            part = peer.recv(1 << 16)
        except TimeoutError:
            if content:
                with suppress(OSError):  # it may have been cut off since
                    peer.send(b"a")  # bytes that trickle in buy no time
            continue
        except ConnectionResetError:
            break
        if not part:
            break
        received += part
    assert time.monotonic() < end
    assert re.match(answer, received, re.DOTALL)
    assert bool(received) == bool(answer)
    assert server.get("/healthz").status == 200
    assert caplog.text == ""


def test_one_that_leaves_in_the_middle_of_a_body_is_no_mistake_of_ours(
    server: Running, dial: Dial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    for path in (b"/ingest/v1", b"/api/v1/endpoints"):
        peer = dial(server, b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nabc")
        peer.close()
    tasks = server.server.server_state.tasks
    end = time.monotonic() + 60
    while server.server.server_state.connections or tasks:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert caplog.text == ""


def test_idle_connections_keep_nobody_out(
    start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., None]
) -> None:
    monkeypatch.setattr("floatscope_server.serving.most_connections", lambda: 20)
    server = start()
    idle = [dial(server, _HEAD) for _ in range(60)]
    wait_for(lambda: server.get("/healthz").status == 200, "an answer")
    assert len(server.server.server_state.connections) <= 20
    for peer in idle[:40]:
        assert _rest(peer) == b""


def test_connections_stay_below_the_descriptors() -> None:
    assert most_connections(1 << 20) == 1024
    assert most_connections(512) == 256
    assert most_connections(100) == 16
    assert BoundedConnection.most == 1024
