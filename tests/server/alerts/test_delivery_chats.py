"""Chats: what their answers mean, and how often they are written to."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import select

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.models import Endpoint
from floatscope_server.alerts.outbox import GIVEN_UP_AT_MOST
from floatscope_server.alerts.receivers import CHATS
from floatscope_server.alerts.receivers.pace import Bucket
from floatscope_server.alerts.schedule import DELAYS_S

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Got, Receiver
    from tests.server.alerts.outboxes import Bench

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = {
    "slack": (200, b"ok"),
    "discord": (204, b""),
    "teams": (202, b""),
    "feishu": (200, b'{"code":0,"msg":"success","data":{}}'),
    "dingtalk": (200, b'{"errcode":0,"errmsg":"ok"}'),
    "wecom": (200, b'{"errcode":0,"errmsg":"ok"}'),
}
# (chat, status, headers, body) -> (a part of the error, seconds to wait, whether it is gone)
BAD: list[tuple[str, int, dict[str, str], bytes, str, float, bool]] = [
    ("slack", 400, {}, b"invalid_blocks", "invalid_blocks", 0, False),
    ("slack", 429, {"retry-after": "30"}, b"", "429", 30, False),
    ("slack", 410, {}, b"channel_is_archived", "410 Gone", 0, True),
    ("discord", 429, {"retry-after": "1"}, b'{"message":"x","retry_after":1.337,"global":false}', "429", 1.337, False),
    ("discord", 429, {}, b'{"retry_after":64}', "429", 64, False),
    ("discord", 429, {}, b'{"retry_after":NaN}', "429", 0, False),
    ("discord", 429, {}, b'{"retry_after":' + b"9" * 400 + b"}", "429", 86400, False),
    ("discord", 429, {}, b'{"retry_after":-' + b"9" * 400 + b"}", "429", 0, False),
    ("discord", 429, {}, b'{"retry_after":1e400}', "429", 86400, False),
    ("feishu", 200, {}, b'{"code":' + b"9" * 4000 + b"}", "without code", 0, False),
    ("discord", 404, {}, b'{"message":"Unknown Webhook","code":10015}', "Unknown Webhook", 0, True),
    ("discord", 404, {}, b"<html>", "404", 0, False),
    ("teams", 429, {"retry-after": "7"}, b"", "429", 7, False),
    ("teams", 400, {}, b'{"error":{"code":"x"}}', "400", 0, False),
    ("feishu", 200, {}, b'{"code":19021,"msg":"sign match fail"}', "code 19021: sign match fail", 0, False),
    ("feishu", 200, {}, b'{"code":11232,"msg":"too many request"}', "code 11232", 60, False),
    ("feishu", 429, {"x-ogw-ratelimit-reset": "52"}, b'{"code":99991400,"msg":"x"}', "99991400", 60, False),
    ("feishu", 429, {"x-ogw-ratelimit-reset": "99"}, b'{"code":99991400,"msg":"x"}', "99991400", 99, False),
    ("feishu", 200, {}, b'{"code":19001,"msg":"param invalid: incoming webhook access token invalid"}', "1", 0, True),
    ("feishu", 200, {}, b"<html>a proxy</html>", "without code", 0, False),
    ("feishu", 200, {}, b'{"code":true}', "without code", 0, False),
    ("feishu", 500, {}, b'{"code":0}', "500", 0, False),
    ("dingtalk", 200, {}, b'{"errcode":130101,"errmsg":"send too fast"}', "send too fast", 600, False),
    ("dingtalk", 200, {}, b'{"errcode":310000,"errmsg":"keywords not in content"}', "keywords", 0, False),
    ("dingtalk", 200, {}, b'{"errcode":300001,"errmsg":"token is not exist"}', "300001", 0, True),
    ("wecom", 200, {}, b'{"errcode":45009,"errmsg":"api freq out of limit"}', "45009", 60, False),
    ("wecom", 200, {}, b'{"errcode":93000,"errmsg":"invalid webhook url"}', "93000", 0, True),
    ("wecom", 200, {}, b"[" * 5000, "without errcode", 0, False),
    ("wecom", 302, {"location": "http://10.0.0.1/"}, b"", "redirects are not followed", 0, False),
]


@pytest.mark.parametrize("chat", list(CHATS))
def test_a_message_that_was_taken(chat: str) -> None:
    status, body = GOOD[chat]
    answer = CHATS[chat].answer(Reply(status=status, body=body), NOW)
    assert (answer.error, answer.wait_s, answer.gone) == (None, 0, False)


@pytest.mark.parametrize(("chat", "status", "headers", "body", "error", "wait", "gone"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_found_in_status_and_body(
    chat: str, status: int, headers: dict[str, str], body: bytes, error: str, wait: float, gone: bool
) -> None:
    answer = CHATS[chat].answer(Reply(status=status, headers=headers, body=body), NOW)
    assert answer.error is not None
    assert error in answer.error
    assert answer.wait_s == wait
    assert answer.gone is gone
    assert answer.status == status


@given(st.sampled_from(list(CHATS)), st.integers(100, 599), st.binary(max_size=200))
def test_no_answer_is_too_strange(chat: str, status: int, body: bytes) -> None:
    answer = CHATS[chat].answer(Reply(status=status, body=body), NOW)
    assert answer.error is None or len(answer.error) < 400


# (messages, seconds) that the vendors allow.
ALLOWED = {
    "slack": [(2, 1)],  # one a second, short bursts allowed
    "discord": [(5, 2), (30, 60)],
    "teams": [(4, 1)],
    "feishu": [(5, 1), (100, 60)],
    "dingtalk": [(20, 60)],
    "wecom": [(20, 60)],
}


@pytest.mark.parametrize("chat", list(CHATS))
def test_the_pace_stays_within_what_is_allowed_in_any_window(chat: str) -> None:
    bucket, sent = Bucket(CHATS[chat].pace, NOW), list[datetime]()
    for tick in range(20 * 200):
        now = NOW + timedelta(seconds=0.05 * tick)
        # A pause in the middle fills the bucket.
        if bucket.level(now) >= 1.0 and not 1000 < tick < 3000:
            bucket.take(now)
            sent.append(now)
    for limit, seconds in ALLOWED[chat]:
        windows = [sum(at <= other < at + timedelta(seconds=seconds) for other in sent) for at in sent]
        assert max(windows) <= limit
    assert len(sent) > 20


def test_a_hold_ends_with_a_single_message() -> None:
    bucket = Bucket(CHATS["dingtalk"].pace, NOW)
    bucket.hold(NOW + timedelta(seconds=600))
    assert bucket.level(NOW + timedelta(seconds=599)) == 0.0
    bucket.take(NOW + timedelta(seconds=600))
    assert bucket.level(NOW + timedelta(seconds=600)) == 0.0
    assert bucket.level(NOW + timedelta(seconds=604)) == 1.0


def good(chat: str) -> Callable[[Got], tuple[int, dict[str, str], bytes]]:
    status, body = GOOD[chat]
    return lambda _: (status, {}, body)


def texts(receiver: Receiver) -> str:
    return "\n".join(json.dumps(json.loads(got.body), ensure_ascii=False) for got in receiver.requests)


@pytest.mark.engines("sqlite")
def test_ten_thousand_alerts_in_a_minute_are_a_few_messages(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url, type="dingtalk", secrets=[])
    receiver.answer = good("dingtalk")

    async def act() -> None:
        for first in range(0, 10_000, 500):
            numbers = range(first, first + 500)
            bench.rows_for(endpoint, [(f"evt_{n}", "firing", {"id": n, "severity": "warning"}) for n in numbers])
            if first == 5000:
                bench.row(endpoint, "evt_worst", id=99_999, run="the one that matters")
            bench.clock.forward(3)
            await bench.quiet()
        bench.clock.forward(3600)
        await bench.until(lambda: set(bench.states()) == {"ok"})

    bench.deliver(act)
    assert len(bench.rows()) == 10_001
    assert len(receiver.requests) <= 21
    told = 0
    for got in receiver.requests:
        title = json.loads(got.body)["markdown"]["title"]
        counted = title.partition(" ")[2].split(" ")[0]
        told += int(counted) if counted.isdecimal() else 1
    assert told == 10_001
    # What is worst is listed, however much waits.
    assert "the one that matters" in texts(receiver)


@pytest.mark.engines("sqlite")
def test_a_few_alerts_are_a_message_each(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url, type="wecom", secrets=[])
    receiver.answer = good("wecom")

    async def act() -> None:
        bench.row(endpoint, "evt_0", id=0)
        await bench.until(lambda: bench.states() == ["ok"])
        bench.clock.forward(60)
        for n in range(1, 4):
            bench.row(endpoint, f"evt_{n}", id=n, state="resolved")
        await bench.until(lambda: bench.states() == ["ok"] * 4)

    bench.deliver(act)
    assert 3 <= len(receiver.requests) <= 4


@pytest.mark.engines("sqlite")
def test_a_chat_that_has_had_too_much_is_left_alone_for_as_long_as_it_says(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url, type="discord", secrets=[])
    receiver.answer = lambda _: (429, {}, b'{"retry_after": 120.5}')

    async def act() -> None:
        bench.row(endpoint, "evt_1", id=1)
        await bench.until(lambda: bench.states() == ["failed"])
        assert bench.rows()[0].next_at == bench.clock() + timedelta(seconds=120.5)
        receiver.answer = good("discord")
        bench.row(endpoint, "evt_2", id=2)
        bench.clock.forward(120)
        await bench.quiet()
        assert len(receiver.requests) == 1
        bench.clock.forward(1)
        await bench.until(lambda: bench.states() == ["ok", "ok"])

    bench.deliver(act)
    assert len(receiver.requests) == 2
    assert "2 alerts" in texts(receiver)


@pytest.mark.engines("sqlite")
def test_an_error_in_the_body_is_a_failure_and_shown(bench: Bench, receiver: Receiver) -> None:
    bench.row(bench.endpoint(receiver.url, type="feishu", secrets=[]), "evt_1", id=1)
    receiver.answer = lambda _: (200, {}, b'{"code":19024,"msg":"Key Words Not Found"}')

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["failed"])

    bench.deliver(act)
    row = bench.rows()[0]
    assert (row.http_status, row.error) == (200, "the receiver answered 200, code 19024: Key Words Not Found")


def test_an_endpoint_that_never_takes_anything_is_disabled_in_the_end(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url)
    receiver.answer = lambda _: (500, {})
    for n in range(GIVEN_UP_AT_MOST + 1):
        bench.row(endpoint, f"evt_{n}")

    async def act() -> None:
        for tries in range(1, len(DELAYS_S)):
            await bench.until(lambda n=tries: all((r.state, r.tries) == ("failed", n) for r in bench.rows()))  # type: ignore[misc]
            bench.clock.forward(36000)
        await bench.until(lambda: set(bench.states()) == {"dead"})

    bench.deliver(act)
    with bench.store.read() as session:
        row = session.exec(select(Endpoint)).one()
    assert not row.enabled
    assert row.disabled_reason == "10 messages in a row were given up; the last: the receiver answered 500"


def test_a_success_in_between_begins_the_count_anew(bench: Bench, receiver: Receiver) -> None:
    endpoint = bench.endpoint(receiver.url, given_up=GIVEN_UP_AT_MOST - 1)
    bench.row(endpoint, "evt_1")

    async def act() -> None:
        await bench.until(lambda: bench.states() == ["ok"])

    bench.deliver(act)
    with bench.store.read() as session:
        assert session.exec(select(Endpoint)).one().given_up == 0


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("chat", list(CHATS))
def test_no_address_and_no_secret_in_a_log_or_an_error(
    bench: Bench, receiver: Receiver, chat: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = {"secret": "SECabc-do-not-tell", "until": None}
    url = f"http://127.0.0.1:{receiver.port}/hook/T0K3N-do-not-tell?key=do-not-tell"
    endpoint = bench.endpoint(url, type=chat, secrets=[key])
    answers: list[Any] = [
        (500, {}, b"broken"),
        (302, {"location": "http://127.0.0.1/"}, b""),
        (*GOOD[chat][:1], {}, b""),
    ]
    receiver.answer = lambda _: answers[min(len(receiver.requests) - 1, 2)]
    bench.row(endpoint, "evt_1")

    async def act() -> None:
        for tries in (1, 2, 3):
            await bench.until(lambda n=tries: bench.rows()[0].tries == n and bench.rows()[0].state != "leased")  # type: ignore[misc]
            bench.clock.forward(400)

    bench.deliver(act)
    ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith(("httpcore", "sqlalchemy")))
    assert "do-not-tell" not in ours
    assert "do-not-tell" not in (bench.rows()[0].error or "")
    assert (chat in ("feishu",)) == (
        b"do-not-tell" not in receiver.requests[0].body and b'"sign"' in receiver.requests[0].body
    )
    assert ("sign=" in receiver.requests[0].path) == (chat == "dingtalk")
