"""What browsers are told, and what becomes of those that do not listen."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import text
from sqlmodel import Session
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from floatscope import wire
from floatscope_server.listener import listen
from floatscope_server.live import Viewer
from floatscope_server.live_columns import Heat, heat_blocks
from floatscope_server.query.layertable import RunLayers
from floatscope_server.settings import Settings

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakeAgent, Running, Start


class Page:
    """A browser's side of the live socket."""

    def __init__(self, connection: ClientConnection, unpack: Unpack) -> None:
        self._connection = connection
        self._unpack = unpack

    def say(self, message: object) -> None:
        self._connection.send(json.dumps(message))

    def until(self, kind: str) -> Any:  # noqa: ANN401 - JSON
        """The next message of type ``kind``; a heat block comes as (meta, arrays)."""
        while True:
            data = self._connection.recv(timeout=60)
            if isinstance(data, bytes):
                meta, arrays = self._unpack(data)
                if kind == "heat":
                    return meta, arrays
            elif (message := json.loads(data))["type"] == kind:
                return message


@pytest.fixture
def open_page(server: Running, unpack: Unpack) -> Iterator[Callable[[], Page]]:
    with ExitStack() as stack:

        def begin() -> Page:
            url = f"ws://{server.address}/live/v1"
            return Page(stack.enter_context(connect(url, compression=None, close_timeout=1)), unpack)

        yield begin


def test_a_page_follows_its_run(
    server: Running,
    agent: MakeAgent,
    make: Make,
    open_page: Callable[[], Page],
    wait_for: Callable[[Callable[[], object], str], None],
) -> None:
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16")), make.layer(1, "b", ("grad", "fp16"))])
    page = open_page()
    assert page.until("welcome")["mode"] == "local"
    page.say({"type": "subscribe", "run": "run", "heat": {"kind": "grad", "metric": "absmax", "format": "auto"}})
    wait_for(lambda: any(viewer.run for viewer in server.services.live.viewers), "the subscription")
    for step in range(3):
        one.deliver(
            wire.Body(
                layers=(make.layer(2, "c"),) if step == 2 else (),
                summaries=(
                    make.summaries("grad", step, [[1.0, 2.0 + step]]),
                    make.summaries("act", step, [[1.0, 1.0]]),
                ),
                scalars=(make.scalars("loss", step, [float("nan") if step == 1 else 4.0]),),
                events=(wire.Event(step=step, kind="skipped"),) if step == 1 else (),
                devices=(wire.Device(time_ns=step + 1, backend="cpu", index=0),),
            )
        )
    points: list[Any] = []
    while len(points) < 3:
        message = page.until("scalars")
        assert message["run"] == "run"
        points += message["points"]["loss"]
    assert points == [[0, 4.0], [1, "NaN"], [2, 4.0]]


def test_each_kind_of_news_comes(
    server: Running,
    agent: MakeAgent,
    make: Make,
    open_page: Callable[[], Page],
    wait_for: Callable[[Callable[[], object], str], None],
) -> None:
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16"))])
    pages = {kind: open_page() for kind in ("heat", "events", "devices", "layers", "alert")}
    for page in pages.values():
        page.say({"type": "subscribe", "run": "run", "heat": {"kind": "grad", "metric": "headroom", "format": "e5m2"}})
    everybody = open_page()
    wait_for(lambda: sum(v.run is not None for v in server.services.live.viewers) == len(pages), "subscriptions")
    one.deliver(
        wire.Body(
            layers=(make.layer(1, "new"),),
            summaries=(make.summaries("grad", 0, [[57344.0], [28672.0]]),),
            events=(wire.Event(step=1, kind="skipped", detail={"scale": 2.0}),),
            devices=(wire.Device(time_ns=1, backend="cpu", index=0),),
        )
    )
    server.services.live.publish("run", {"type": "alert", "run": "run", "alert": {"id": "x", "value": float("inf")}})
    meta, arrays = pages["heat"].until("heat")
    assert meta == {
        "type": "heat",
        "run": "run",
        "kind": "grad",
        "metric": "headroom",
        "format": "e5m2",
        "first_step": 0,
        "layers": [0],
    }
    assert arrays["values"].dtype == np.dtype("<f4")
    np.testing.assert_allclose(arrays["values"], [[0.0], [1.0]], atol=1e-6)
    assert pages["events"].until("events")["events"] == [
        {"step": 1, "kind": "skipped", "detail": {"scale": 2.0}, "rank": 0}
    ]
    assert pages["devices"].until("devices")["samples"][0]["backend"] == "cpu"
    assert pages["layers"].until("layers") == {"type": "layers", "run": "run"}
    assert pages["alert"].until("alert")["alert"] == {"id": "x", "value": "Infinity"}
    item = everybody.until("run")["run"]
    assert item["name"] == "run"
    assert set(item) == set(server.json("/api/v1/runs")[0])


def test_ranks_of_a_step_come_as_one_column(make: Make, unpack: Unpack) -> None:
    layers = RunLayers({0: make.layer(0, "a", ("grad", "fp16")), 1: make.layer(1, "b", ("grad", "fp16"))}, digest="")
    sent = [
        make.summaries("grad", 0, [[1.0, 8.0], [2.0, 2.0]]),
        make.summaries("grad", 0, [[4.0, 1.0], [1.0, 1.0]]),
        make.summaries("grad", 3, [[5.0, 5.0]]),
        make.summaries("act", 0, [[9.0, 9.0]]),
        make.summaries("grad", 2, [[3.0, 3.0]]),
    ]
    blocks = heat_blocks(
        "run", Heat(kind="grad", metric="absmax", format="auto"), [(summary, layers) for summary in sent]
    )
    ((meta, arrays),) = map(unpack, blocks)
    assert (meta["first_step"], meta["layers"]) == (0, [0, 1])
    np.testing.assert_array_equal(arrays["values"], [[4, 8], [2, 2], [3, 3], [5, 5]])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "subscribe", "run": "none"}, "unknown_run"),
        ({"type": "subscribe", "run": "run", "heat": {"kind": "x", "metric": "rms"}}, "heat"),
        ({"type": "subscribe", "run": "run", "heat": {"kind": "grad", "metric": "x"}}, "heat"),
        ({"type": "subscribe", "run": "run", "heat": {"kind": "grad", "metric": "rms", "format": "fp7"}}, "heat"),
        ({"type": "shutdown"}, "malformed"),
        ([[[[]]]], "malformed"),
        ("x" * 5000, "malformed"),
    ],
)
def test_a_message_without_sense_is_answered_not_obeyed(
    agent: MakeAgent, open_page: Callable[[], Page], message: object, code: str
) -> None:
    agent()
    page = open_page()
    page.say(message)
    assert page.until("error")["error"]["code"] == code


def test_a_viewer_that_is_too_slow_is_told_to_fetch_anew_and_holds_little() -> None:
    viewer = Viewer(Settings(viewer_messages=10, viewer_bytes=1000))
    viewer.run = "run"

    async def drain() -> list[str | bytes]:
        return [await viewer.get() for _ in range(viewer.waiting)]

    for number in range(11):
        viewer.put(f"m{number}")
    assert viewer.dropped == 11
    assert asyncio.run(drain()) == ['{"type":"resync","run":"run"}']
    viewer.put("x" * 600)
    viewer.put("y" * 600)
    assert asyncio.run(drain()) == ['{"type":"resync","run":"run"}']
    viewer.put("z")
    assert asyncio.run(drain()) == ["z"]


def test_one_that_never_reads_delays_nobody_and_is_cut_off(
    start: Start,
    agent: MakeAgent,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    unpack: Unpack,
    tmp_path: Path,
) -> None:
    server = start(data=tmp_path / "live", user_timeout_s=1.0, viewer_bytes=100_000)
    one = agent(address=server.address, layers=[make.layer(i, f"l{i}") for i in range(2000)])
    host, port = server.address.split(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(
            f"GET /live/v1 HTTP/1.1\r\nHost: {server.address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert deaf.recv(12) == b"HTTP/1.1 101"
        text = json.dumps(
            {"type": "subscribe", "run": "run", "heat": {"kind": "grad", "metric": "rms", "format": "auto"}}
        ).encode()
        deaf.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
        live = server.services.live
        wait_for(lambda: any(viewer.run for viewer in live.viewers), "the subscription")
        with connect(f"ws://{server.address}/live/v1", compression=None, close_timeout=1) as connection:
            page = Page(connection, unpack)
            page.say({"type": "subscribe", "run": "run", "heat": None})
            wait_for(lambda: sum(v.run is not None for v in live.viewers) == 2, "the second subscription")
            step = 0

            def evicted() -> bool:
                nonlocal step
                one.deliver(
                    wire.Body(
                        summaries=(make.summaries("grad", step, np.ones((1, 2000))),),
                        scalars=(make.scalars("loss", step, [1.0]),),
                    )
                )
                step += 1
                return len(live.viewers) == 1

            wait_for(evicted, "the viewer that never reads to be cut off")
            # The one that listens has missed nothing.
            seen = 0
            while seen < step:
                seen += len(page.until("scalars")["points"]["loss"])


def test_the_listener_gives_up_on_peers_that_acknowledge_nothing() -> None:
    with (
        listen(Settings(port=0, user_timeout_s=30.0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_no_more_viewers_than_allowed(start: Start, unpack: Unpack) -> None:
    server = start(max_viewers=1)
    url = f"ws://{server.address}/live/v1"
    with connect(url, compression=None) as first:
        Page(first, unpack).until("welcome")
        with connect(url, compression=None) as second, pytest.raises(ConnectionClosed, match="1013"):
            second.recv(timeout=60)


def test_a_run_that_cannot_be_shown_ends_no_news_of_others(
    server: Running, agent: MakeAgent, make: Make, open_page: Callable[[], Page]
) -> None:
    agents = {name: agent(run=name) for name in ("a-bad", "good")}
    pages = {name: open_page() for name in agents}
    for name, page in pages.items():
        page.until("welcome")
        page.say({"type": "subscribe", "run": name, "heat": None})
    agents["a-bad"].close()

    def spoil(session: Session) -> None:
        session.execute(text("""UPDATE run SET glance = '{"last": 5}' WHERE name = 'a-bad'"""))

    server.services.store.write(spoil)
    server.services.live.run_changed("a-bad")
    agents["good"].deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.5]),)))
    assert pages["a-bad"].until("resync")["run"] == "a-bad"
    told: dict[str, Any] = {"last": {"loss": None}}
    while told["last"]["loss"] is None:
        told = pages["good"].until("run")["run"]
    assert (told["name"], told["last"]["loss"]) == ("good", 1.5)


def test_a_page_hears_that_the_server_is_there(open_page: Callable[[], Page], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floatscope_server.live_socket._ALIVE_S", 0.01)
    page = open_page()
    began = page.until("welcome")["server_time"]
    assert page.until("alive")["server_time"] >= began


def test_everybody_is_told_of_a_deleted_run(
    server: Running, agent: MakeAgent, make: Make, http: Callable[..., Any], open_page: Callable[[], Page]
) -> None:
    one = agent()
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    one.send(wire.Bye(seq=one.seq + 1, reason="finished"))
    one.hear()
    page = open_page()
    page.until("welcome")
    assert http(f"{server.url}/api/v1/runs/run", method="DELETE").status == 202
    assert page.until("gone")["run"] == "run"
