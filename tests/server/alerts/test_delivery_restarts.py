"""Signed events and chat messages through restarts of the server and of the receiver."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from standardwebhooks import Webhook

from tests.server.alerts.conftest import Got, Receiver

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build
    from tests.server.conftest import MakeAgent, Reply, Running, Start


class Later:
    """The clock of the machine, and what it is told to skip: less than the signatures' tolerance of 5 min in all."""

    skipped = 0.0

    def __call__(self) -> float:
        return time.time() + self.skipped


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
def server(start: Start, clock: Later) -> Running:
    return start(clock=clock, webhook_allow=("127.0.0.1",))


def _post(http: Callable[..., Reply], server: Running, path: str, body: object) -> Reply:
    data = json.dumps(body).encode()
    return http(server.url + path, method="POST", body=data, headers={"content-type": "application/json"})


def _answer(got: Got) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b'{"code":0}'


def test_both_sides_restart_and_every_event_arrives_signed_under_its_one_id(
    build: Build,
    clock: Later,
    server: Running,
    start: Start,
    agent: MakeAgent,
    http: Callable[..., Reply],
    wait: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However often it is tried while the receiver is down on a slow machine: the next try is not in five minutes.
    monkeypatch.setattr("floatscope_server.alerts.schedule.DELAYS_S", (0.0, *[5.0] * 30))
    receiver = Receiver()
    port, seen = receiver.port, list[Got]()
    receiver.answer = _answer
    made = {}
    for type_ in ("generic", "feishu"):
        url = f"http://127.0.0.1:{port}/{type_}"
        reply = _post(http, server, "/api/v1/endpoints", {"type": type_, "url": url, "min_severity": "critical"})
        assert reply.status == 201, reply.body
        made[type_] = reply.json
    one = agent(run="night")
    one.deliver(build.body(records={step: {"loss": 0.8} for step in range(10)}))
    one.deliver(build.body(records={10: {"loss": math.nan}}))
    wait(lambda: len(receiver.requests) == 2)

    # The receiver is down when the alert resolves, and the server goes down before it is back.
    seen += receiver.requests
    receiver.close()
    for step in (20, 40):
        one.deliver(build.body(records={step: {"loss": 0.8}}))
    wait(lambda: [d["state"] for d in server.json("/api/v1/deliveries")].count("failed") == 2)
    server.stop()

    receiver = Receiver(port)
    receiver.answer = _answer
    server = start(clock=clock, webhook_allow=("127.0.0.1",))
    clock.skipped += 7
    wait(lambda: len(receiver.requests) == 2)
    wait(lambda: {d["state"] for d in server.json("/api/v1/deliveries")} == {"ok"})

    # And once more the other way round: the receiver is new, the server the same.
    seen += receiver.requests
    receiver.close()
    receiver = Receiver(port)
    receiver.answer = _answer
    two = agent(run="night", address=server.address, writer=one.writer, seq=one.seq)
    two.deliver(build.body(records={50: {"loss": math.nan}}))
    wait(lambda: len(receiver.requests) == 2)
    seen += receiver.requests
    receiver.close()

    signed = [got for got in seen if got.path == "/generic"]
    told = [Webhook(made["generic"]["secret"]).verify(got.body, got.headers) for got in signed]
    assert [(event["type"], event["data"]["kind"]) for event in told] == [
        ("alert.firing", "nonfinite"),
        ("alert.resolved", "nonfinite"),
        ("alert.firing", "nonfinite"),
    ]
    ids = [got.headers["webhook-id"] for got in signed]
    assert len(set(ids)) == 3
    log = server.json(f"/api/v1/deliveries?endpoint={made['generic']['id']}")
    assert sorted(ids) == sorted(delivery["webhook_id"] for delivery in log)
    titles = [json.loads(got.body)["card"]["header"]["title"]["content"] for got in seen if got.path == "/feishu"]
    assert [("resolved" in title, "night" in title) for title in titles] == [(False, True), (True, True), (False, True)]
