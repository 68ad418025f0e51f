"""Receivers that do harm: slow ones, endless ones, ones without a sound certificate, names that change."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from floatscope_server.alerts import connect
from floatscope_server.settings import Settings

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Receiver
    from tests.server.alerts.outboxes import Bench

Script = Callable[[socket.socket], None]
pytestmark = pytest.mark.engines("sqlite")


class Rogue:
    """Accepts connections and does with each what ``script`` does, in threads that end with it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        # The other side may have had enough.
        with closing(peer), suppress(OSError):
            self._script(peer)

    def close(self) -> None:
        self._listener.close()
        for peer in self._open:
            peer.close()


@pytest.fixture
def rogue() -> Iterator[Callable[[Script], Rogue]]:
    made: list[Rogue] = []

    def make(script: Script) -> Rogue:
        made.append(Rogue(script))
        return made[-1]

    yield make
    for one in made:
        one.close()


def silent(peer: socket.socket) -> None:
    while peer.recv(65536):
        pass


def dripping(peer: socket.socket) -> None:
    """An answer whose every byte comes just in time for the limit on a read."""
    peer.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000:
        peer.sendall(bytes([byte]))
        threading.Event().wait(0.05)


def endless_head(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.sendall(b"X-More: " + b"x" * 4000 + b"\r\n")


def endless_body(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        peer.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def not_http(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"SSH-2.0-OpenSSH_9.0\r\n")


def hangs_up(peer: socket.socket) -> None:
    peer.recv(10)


@pytest.mark.parametrize("kind", ["generic", "feishu"])
@pytest.mark.parametrize(
    ("script", "error"),
    [
        (silent, "no answer in time"),
        (dripping, "no answer in time"),
        (endless_head, "no connection"),
        (not_http, "no connection"),
        (hangs_up, "no connection"),
    ],
    ids=["silent", "dripping", "endless_head", "not_http", "hangs_up"],
)
def test_what_is_no_answer_fails_with_its_reason(
    bench: Bench,
    rogue: Callable[[Script], Rogue],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    script: Script,
    error: str,
) -> None:
    if error == "no answer in time":
        monkeypatch.setattr(connect, "_READ_S", 0.3)
        monkeypatch.setattr(connect, "_TOTAL_S", 1.0)
    url = f"http://127.0.0.1:{rogue(script).port}/x"
    endpoint = bench.endpoint(url, type=kind) if kind == "generic" else bench.endpoint(url, type=kind, secrets=[])
    bench.row(endpoint, "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() in (["failed"], ["ok"]))

    bench.deliver(act)
    (row,) = bench.rows()
    assert row.state == "failed"
    assert row.error is not None
    assert row.error.startswith(error)


def test_of_an_endless_answer_a_little_is_read(bench: Bench, rogue: Callable[[Script], Rogue]) -> None:
    bench.row(bench.endpoint(f"http://127.0.0.1:{rogue(endless_body).port}/", type="wecom", secrets=[]), "evt_1")
    bench.row(bench.endpoint(f"http://127.0.0.1:{rogue(endless_body).port}/"), "evt_2")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed", "ok"])

    bench.deliver(act)
    assert bench.rows()[0].error == "the receiver answered 200 without errcode"


def test_a_receiver_that_speaks_no_tls_is_not_spoken_to(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(f"https://127.0.0.1:{receiver.port}/hook"), "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    assert receiver.requests == []
    error = bench.rows()[0].error or ""
    assert error.startswith("no connection: ")
    assert "SSL" in error


@pytest.mark.parametrize("kind", ["slack", "discord", "teams", "feishu", "dingtalk", "wecom"])
def test_a_chat_is_under_the_same_rules_as_a_webhook(bench: Bench, receiver: Receiver, kind: str) -> None:
    bench.settings = Settings(data=bench.settings.data)
    bench.row(bench.endpoint(f"http://hooks.example.com:{receiver.port}/", type=kind, secrets=[]), "evt_1")
    answers = iter([["127.0.0.1"], ["169.254.169.254"], ["10.0.0.1"]])

    async def inside(_host: str, _port: int) -> list[str]:
        return next(answers)

    async def act() -> None:
        for tries, address in ((1, "127.0.0.1"), (2, "169.254.169.254")):
            await bench.until(lambda n=tries: [(r.state, r.tries) for r in bench.rows()] == [("failed", n)])  # type: ignore[misc]
            assert address in (bench.rows()[0].error or "")
            bench.clock.forward(5)

    bench.deliver(act, resolver=inside)
    assert receiver.requests == []


def test_a_redirect_to_the_inside_is_not_followed(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url, type="slack", secrets=[]), "evt_1")
    receiver.answer = lambda _: (307, {"location": f"http://127.0.0.1:{receiver.port}/latest/meta-data"})

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    assert [got.path for got in receiver.requests] == ["/hook"]


def test_a_name_that_takes_for_ever_to_resolve(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_CONNECT_S", 0.2)
    bench.row(bench.endpoint(receiver.url), "evt_1")

    async def never(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act, resolver=never)
    assert bench.rows()[0].error == "no answer in time"
