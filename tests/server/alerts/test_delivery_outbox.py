"""Deliveries to a real HTTP receiver."""

from __future__ import annotations

import threading
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlmodel import Session, select
from standardwebhooks import Webhook

from floatscope._webhooks import verify
from floatscope_server.alerts.models import Delivery, Endpoint
from floatscope_server.alerts.outbox import disable
from floatscope_server.alerts.schedule import DELAYS_S
from floatscope_server.alerts.signing import rotated
from floatscope_server.settings import Settings

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Receiver
    from tests.server.alerts.outboxes import Bench

DEADLINE_S = 60.0


def test_a_message_is_signed_as_the_standard_says(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url)
    bench.row(endpoint, "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["ok"])

    bench.deliver(act)
    (got,) = receiver.requests
    secret = endpoint.secrets[0]["secret"]
    assert Webhook(secret).verify(got.body, got.headers)["data"]["message_zh"] == "溢出"
    assert verify(secret, got.headers, got.body, now=bench.clock().timestamp()) == "evt_1"
    assert got.headers["content-type"] == "application/json"
    (row,) = bench.rows()
    assert (row.tries, row.http_status, row.error) == (1, 204, None)
    assert row.done_at is not None
    assert row.done_at.tzinfo is UTC


def test_while_a_secret_is_replaced_both_verify(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url)
    former = endpoint.secrets[0]["secret"]

    def rotate(session: Session) -> str:
        row = session.get(Endpoint, endpoint.id)
        assert row is not None
        row.secrets = rotated(row.secrets, None, bench.clock())
        session.add(row)
        return str(row.secrets[0]["secret"])

    fresh = bench.store.write(rotate)
    bench.row(endpoint, "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["ok"])
        bench.clock.forward(25 * 3600)
        bench.row(endpoint, "evt_2")
        await bench.until(lambda: bench.states() == ["ok", "ok"])

    bench.deliver(act)
    first, second = receiver.requests
    for secret in (former, fresh):
        Webhook(secret).verify(first.body, first.headers)
    assert len(second.headers["webhook-signature"].split(" ")) == 1
    assert verify(fresh, second.headers, second.body, now=bench.clock().timestamp()) == "evt_2"


def test_a_receiver_that_is_down_gets_it_when_it_is_back(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")
    receiver.answer = lambda _: (503, {})
    waited: list[float] = []

    async def act() -> None:
        for tries in range(1, len(DELAYS_S)):
            await bench.until(lambda n=tries: [(r.state, r.tries) for r in bench.rows()] == [("failed", n)])  # type: ignore[misc]
            (row,) = bench.rows()
            waited.append((row.next_at - bench.clock()).total_seconds())
            bench.clock.forward(waited[-1] - 0.001)
            assert len(receiver.requests) == tries
            if tries == len(DELAYS_S) - 1:
                receiver.answer = lambda _: (200, {})
            bench.clock.forward(0.001)
        await bench.until(lambda: bench.states() == ["ok"])

    bench.deliver(act)
    assert waited == pytest.approx([5, 300, 1800, 7200, 18000, 36000])
    assert {got.headers["webhook-id"] for got in receiver.requests} == {"evt_1"}
    assert len({got.body for got in receiver.requests}) == 1


def test_after_the_last_try_a_delivery_is_given_up(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")
    receiver.answer = lambda _: (500, {})

    async def act() -> None:
        for tries in range(1, len(DELAYS_S)):
            await bench.until(lambda n=tries: [(r.state, r.tries) for r in bench.rows()] == [("failed", n)])  # type: ignore[misc]
            bench.clock.forward(36000)
        await bench.until(lambda: bench.states() == ["dead"])

    bench.deliver(act)
    assert len(receiver.requests) == len(DELAYS_S)
    assert bench.rows()[0].error == "the receiver answered 500"


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.com"])
def test_a_name_that_cannot_be_looked_up_is_a_failure_with_its_reason(bench: Bench, host: str) -> None:
    bench.row(bench.endpoint(f"http://{host}/"), "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    error = bench.rows()[0].error
    assert error is not None
    assert "is no host name" in error


def test_whatever_goes_wrong_in_a_try_is_its_outcome(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("floatscope_server.alerts.connect.Transport.post", broken)
    bench.row(bench.endpoint(receiver.url), "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    assert bench.rows()[0].error == "the message could not be sent: out of luck"


def test_retry_after_is_heeded(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")
    receiver.answer = lambda _: (429, {"retry-after": "120"})

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    assert bench.rows()[0].next_at == bench.clock() + timedelta(seconds=120)


def test_gone_disables_the_endpoint(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url)
    receiver.answer = lambda _: (410, {})
    for i in range(6):
        bench.row(endpoint, f"evt_{i}")

    async def act() -> None:
        await bench.until(lambda: set(bench.states()) == {"dead"})

    bench.deliver(act)
    assert len(receiver.requests) <= 2
    with bench.store.read() as session:
        row = session.exec(select(Endpoint)).one()
    assert (row.enabled, row.disabled_reason) == (False, "the receiver answered 410 Gone")


def test_what_is_under_way_when_its_endpoint_is_disabled_is_given_up(bench: Bench, receiver: Receiver) -> None:
    """It would be sent when somebody enables the endpoint again, whenever that is."""
    endpoint = bench.endpoint(receiver.url)
    bench.row(endpoint, "evt_1")
    hold = threading.Event()

    def answer(_: object) -> tuple[int, dict[str, str]]:
        hold.wait(DEADLINE_S)
        return 503, {}

    receiver.answer = answer

    def by_hand(session: Session) -> None:
        disable(session, session.exec(select(Endpoint)).one(), "disabled by hand", bench.clock())

    async def act() -> None:
        await bench.until(lambda: bool(receiver.requests))
        bench.store.write(by_hand)
        hold.set()
        await bench.until(lambda: bench.states() == ["dead"])

    bench.deliver(act)


def test_the_end_of_a_try_before_a_redelivery_is_not_that_of_the_redelivery(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")
    first, second = threading.Event(), threading.Event()

    def answer(_: object) -> tuple[int, dict[str, str]]:
        if len(receiver.requests) == 1:
            first.wait(DEADLINE_S)
            return 503, {}
        second.wait(DEADLINE_S)
        return 204, {}

    def again(session: Session) -> None:
        row = session.exec(select(Delivery)).one()
        row.state, row.tries, row.next_at, row.lease_until = "pending", 0, bench.clock(), None
        session.add(row)

    receiver.answer = answer

    async def act() -> None:
        await bench.until(lambda: len(receiver.requests) == 1)
        bench.clock.forward(1)
        bench.store.write(again)
        await bench.until(lambda: len(receiver.requests) == 2)
        asked = bench.clock.asked
        first.set()
        await bench.until(lambda: bench.clock.asked > asked + 8)  # it has been settled, and looked at again
        assert bench.states() == ["leased"]
        second.set()
        await bench.until(lambda: bench.states() == ["ok"])

    bench.deliver(act)
    assert len(receiver.requests) == 2


def test_a_redirect_is_not_followed(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")
    receiver.answer = lambda _: (307, {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"})

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    assert [got.path for got in receiver.requests] == ["/hook"]
    assert bench.rows()[0].error == "the receiver answered 307; redirects are not followed"


def test_a_slow_receiver_delays_no_other(bench: Bench, receiver: Receiver) -> None:
    hold = threading.Event()
    slow = bench.endpoint(f"http://127.0.0.1:{receiver.port}/slow")
    fast = bench.endpoint(f"http://127.0.0.1:{receiver.port}/fast")

    def answer(got: Any) -> tuple[int, dict[str, str]]:  # noqa: ANN401 - Got
        if got.path == "/slow":
            hold.wait(DEADLINE_S)
        return 204, {}

    receiver.answer = answer
    for i in range(20):
        bench.row(slow, f"evt_slow_{i}")
    for i in range(20):
        bench.row(fast, f"evt_fast_{i}")

    async def act() -> None:
        await bench.until(lambda: [r.state for r in bench.rows() if r.endpoint_id == fast.id] == ["ok"] * 20)
        under_way = [r.state for r in bench.rows() if r.endpoint_id == slow.id]
        assert sorted(set(under_way)) == ["leased", "pending"]
        assert under_way.count("leased") == 2
        hold.set()
        await bench.until(lambda: set(bench.states()) == {"ok"})

    bench.deliver(act)


def test_what_was_under_way_at_a_crash_is_sent_again_under_the_same_id(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url), "evt_1")

    def crashed(session: Session) -> None:
        row = session.exec(select(Delivery)).one()
        row.state, row.tries, row.lease_until = "leased", 1, bench.clock() + timedelta(seconds=60)
        session.add(row)

    bench.store.write(crashed)

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["ok"])

    bench.deliver(act)
    assert [got.headers["webhook-id"] for got in receiver.requests] == ["evt_1"]
    assert bench.rows()[0].tries == 2


def test_nobody_listens(bench: Bench, receiver: Receiver) -> None:
    receiver.close()
    bench.row(bench.endpoint(receiver.url), "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    error = bench.rows()[0].error
    assert error is not None
    assert error.startswith("no connection")


def test_a_name_that_leads_inside_is_refused(bench: Bench, receiver: Receiver) -> None:
    bench.settings = Settings(data=bench.settings.data)
    bench.row(bench.endpoint(f"http://hooks.example.com:{receiver.port}/"), "evt_1")

    async def inside(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act, resolver=inside)
    assert receiver.requests == []
    error = bench.rows()[0].error
    assert error is not None
    assert "127.0.0.1" in error
    assert "--webhook-allow (FLOATSCOPE_WEBHOOK_ALLOW)" in error
