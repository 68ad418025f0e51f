"""The bundled webhook receiver, called as the server calls it and signed by the reference library."""

from __future__ import annotations

import base64
import datetime
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from standardwebhooks.webhooks import Webhook as Reference

from floatscope._demo.receiver import Receiver, Webhook

BODY = json.dumps({"type": "alert.firing", "data": {"id": 7, "kind": "limit_crossed"}})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    yield receiver
    receiver.stop()


def deliver(receiver: Receiver, body: str, secret: str, identity: str = "msg_1") -> int:
    now = datetime.datetime.now(datetime.UTC)
    headers = {
        "webhook-id": identity,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Reference(secret).sign(identity, now, BODY),
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(receiver.url, body.encode(), headers), timeout=60) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_signed_delivery_is_valid(receiver: Receiver) -> None:
    assert deliver(receiver, BODY, receiver.secret) == 204
    assert receiver.received.get(timeout=60) == Webhook(id="msg_1", valid=True, alert="7")


def test_changed_body_is_refused(receiver: Receiver) -> None:
    assert deliver(receiver, BODY.replace("7", "8"), receiver.secret) == 400
    assert receiver.received.get(timeout=60) == Webhook(id="msg_1", valid=False)


def test_other_secret_is_refused(receiver: Receiver) -> None:
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    assert deliver(receiver, BODY, other) == 400
    assert not receiver.received.get(timeout=60).valid


def test_unsigned_delivery_is_refused(receiver: Receiver) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(receiver.url, BODY.encode()), timeout=60)
    refused.value.close()
    assert refused.value.code == 400
    assert receiver.received.get(timeout=60) == Webhook(id="without-id", valid=False)


def test_listens_on_this_machine_only(receiver: Receiver) -> None:
    assert receiver.url.startswith("http://127.0.0.1:")
