"""Addresses, back-off, what the server is told first, and readings that come without a step."""

from __future__ import annotations

import itertools
import logging
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from websockets.sync.server import ServerConnection, serve

from floatscope import wire
from floatscope._address import ingest_url
from floatscope._config import Config
from floatscope._conversation import Timing
from floatscope._guard import Guard
from floatscope._link import backoff_delays
from floatscope._sender import Sender

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeSender = Callable[..., Sender]
    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://127.0.0.1:6160", "ws://127.0.0.1:6160/ingest/v1"),
        ("https://scope.example.org/", "wss://scope.example.org/ingest/v1"),
        ("https://example.org/tools/scope/", "wss://example.org/tools/scope/ingest/v1"),
        ("http://[::1]:6160", "ws://[::1]:6160/ingest/v1"),
        ("http://scope", "ws://scope/ingest/v1"),
    ],
)
def test_address_of_ingest(given: str, asked: str) -> None:
    assert ingest_url(given) == asked


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:6160", "http://HOST:PORT"),
        ("ftp://h", "http://HOST:PORT"),
        ("ws://h", "http://HOST:PORT"),
        ("http://", "http://HOST:PORT"),
        ("http://h:99999", "Port out of range"),
        ("http://h:0", "http://HOST:PORT"),
        ("http://h:abc", "http://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://h h:1", "http://HOST:PORT"),
        ("http://" + "x" * 64 + ".org", "http://HOST:PORT"),
        ("http://user:pw@h", "leave out user"),
        ("http://h/?token=x", "leave out user"),
    ],
)
def test_unusable_address_is_refused_when_it_is_given(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(server=url)
    with pytest.raises(ValueError, match=says):
        Sender(wire.Identity(run="r", writer="0" * 32), url)


def test_delays_are_uniform_below_a_ceiling_that_doubles_up_to_15_s() -> None:
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0.0
            return b

    delays = list(itertools.islice(backoff_delays(Highest()), 9))
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    some = list(itertools.islice(backoff_delays(random.Random(1)), 200))
    assert all(0.0 <= delay <= 15.0 for delay in some)
    assert min(some[10:]) < 2.0 < 13.0 < max(some[10:])


def test_wrong_token_is_said_once_and_not_repeated(
    sender_to: MakeSender, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[str | None] = []

    def refuse(connection: ServerConnection, request: object) -> object:
        attempts.append(connection.request.headers.get("Authorization") if connection.request else None)
        return connection.respond(401, "no")

    def unused(connection: ServerConnection) -> None:
        raise AssertionError(connection)

    with serve(unused, "127.0.0.1", 0, process_request=refuse) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        sender = sender_to(url, token="top-secret")
        until(lambda: sender.stats().failure)
        server.shutdown()
        thread.join()
    assert len(attempts) == 1
    [record] = caplog.records
    assert "answered HTTP 401 to this token (put a token that may ingest into FLOATSCOPE_TOKEN)" in record.getMessage()
    assert "top-secret" not in caplog.text


def test_a_token_that_is_none_is_not_said(
    sender_to: MakeSender, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    sender = sender_to("http://127.0.0.1:9", token="top-secret\n")
    until(lambda: sender.stats().failure)
    [record] = caplog.records
    assert "character 11 of 11 is none of printable ASCII" in record.getMessage()
    assert "top-secret" not in caplog.text


def test_server_without_credit_is_asked_with_one_block(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    server.credit = 0
    server.heartbeat_s = 0.1
    sender = sender_to(server.url)
    sender.put(step(0))
    until(lambda: server.steps() == [0])
    server.credit = 1 << 20
    sender.put(step(1))
    sender.put(step(2))
    sender.close("finished")
    assert server.steps() == [0, 1, 2]


def test_layer_table_too_large_for_a_hello_travels_in_blocks(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    table = tuple(wire.Layer(index=i, name=f"experts.{i}." + "x" * 60, module_type="Linear") for i in range(20_000))
    sender = sender_to(server.url)
    sender.put(step(0, layers=table))
    until(lambda: sender.stats().acknowledged == 1)
    server.stop()
    server.start()
    sender.put(step(1))
    sender.close("finished")
    assert sum(len(body.layers) for body in server.bodies()) == 20_000
    hello = [message for message in server.seen if isinstance(message, wire.Hello)][-1]
    assert hello.layers == ()


class Readings:
    """A device source that has one reading at every second call."""

    def __init__(self) -> None:
        self.calls = 0
        self.log: list[str] = []

    def start(self) -> None:
        self.log.append("start")

    def poll(self) -> tuple[wire.Device, ...]:
        self.calls += 1
        if self.calls % 2:
            return ()
        return (wire.Device(time_ns=self.calls, backend="test", index=0, busy_percent=0.0),)

    def close(self) -> None:
        self.log.append("close")

    def forget(self) -> None:
        self.log.append("forget")


def test_readings_ride_with_steps_and_without(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    readings = Readings()
    sender = sender_to(server.url, devices=readings)
    until(lambda: len(server.bodies()) >= 2)
    assert all(body.devices and not body.scalars for body in server.bodies())
    assert {(body.first_step, body.steps) for body in server.bodies()} == {(0, 0)}

    def together() -> bool:
        sender.put(step(7))
        return any(body.scalars and body.devices for body in server.bodies())

    until(together)
    sender.close("finished")
    assert readings.log == ["start", "close"]
    stats = sender.stats()
    assert stats.put == stats.acknowledged
    times = [device.time_ns for body in server.bodies() for device in body.devices]
    assert times == list(range(2, readings.calls + 1, 2))


@pytest.mark.parametrize("place", ["start", "poll", "close"])
def test_devices_that_fail_cost_nothing_else(
    server: IngestDouble,
    sender_to: MakeSender,
    step: MakeStep,
    until: Until,
    place: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Guard, "reraise", False)
    monkeypatch.setattr("floatscope._guard._counts", Counter())

    def fail() -> tuple[wire.Device, ...]:
        raise subprocess.TimeoutExpired("sidecar", 1.0)

    readings = Readings()
    monkeypatch.setattr(readings, place, fail)
    sender = sender_to(server.url, devices=readings)
    for n in range(5):
        sender.put(step(n))
        until(lambda n=n: sender.stats().acknowledged == n + 1)
    sender.close("finished")
    assert server.steps() == list(range(5))
    assert sender.stats().failure is None
    assert readings.log.count("close") == (place != "close")
    assert [r.getMessage() for r in caplog.records if "devices were asked" in r.getMessage()] == [
        "floatscope: failed while devices were asked; training goes on without that reading (logged once)"
    ]


def test_close_twice_and_put_after_close(server: IngestDouble, sender_to: MakeSender, step: MakeStep) -> None:
    sender = sender_to(server.url)
    sender.put(step(0))
    sender.close("finished")
    sender.put(step(1))
    sender.close("again")
    assert server.steps() == [0]
    assert sender.stats().lost == {"not_sending": 1}


def test_where_the_run_is_to_be_seen_is_said_once_and_by_rank_0_alone(
    server: IngestDouble, until: Until, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "floatscope")
    for rank in (1, 0):
        identity = wire.Identity(run="a b/50%", writer=str(rank) * 32, rank=rank, world=2)
        sender = Sender(identity, f"{server.url}/", timing=Timing(poll_s=0.01))
        until(lambda sender=sender: sender.stats().connections)
        if rank == 0:
            before = sender.stats().connections
            server.stop()
            server.start()
            until(lambda sender=sender, before=before: sender.stats().connections > before)
        sender.close("over")
    where = f"run a b/50% at {server.url}/#/run/a%20b%2F50%25"
    assert capfd.readouterr().err.count(f"floatscope: {where}\n") == 1
    assert [r.getMessage() for r in caplog.records if "run a b" in r.getMessage()] == [f"floatscope: {where}"]


def test_every_message_says_that_it_is_ours(
    sender_to: MakeSender, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    sender_to("http://127.0.0.1:9")
    until(lambda: caplog.records)
    assert all(record.getMessage().startswith("floatscope: ") for record in caplog.records)
