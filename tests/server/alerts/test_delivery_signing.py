"""Signatures, held against the reference library."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from floatscope._webhooks import SignatureError, headers, key_of, new_secret, verify

NOW = 1_790_000_000
SECRETS = st.binary(min_size=24, max_size=64).map(lambda key: "whsec_" + base64.b64encode(key).decode())
IDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=40)


@given(SECRETS, IDS, st.text())
def test_the_reference_library_agrees(secret: str, message_id: str, text: str) -> None:
    body = text.encode("utf-8", "replace")
    # The library has the clock of the machine, and this module may have been imported long before.
    now = int(datetime.now(UTC).timestamp())
    signed = headers([secret], message_id, now, body)
    Webhook(secret).verify(body, signed, json_parse=False)
    by_reference = Webhook(secret).sign(message_id, datetime.fromtimestamp(now, UTC), body.decode())
    received = {"Webhook-Id": message_id, "Webhook-Timestamp": str(now), "Webhook-Signature": by_reference}
    assert verify(secret, received, body, now=now) == message_id


def test_several_signatures() -> None:
    old, new, other = new_secret(), new_secret(), new_secret()
    signed = headers([new, old], "evt_1", NOW, b"{}")
    for secret in (old, new):
        assert verify(secret, signed, b"{}", now=NOW) == "evt_1"
    with pytest.raises(SignatureError, match="no signature fits"):
        verify(other, signed, b"{}", now=NOW)


@pytest.mark.parametrize(
    ("change", "body", "now", "why"),
    [
        ({}, b"{ }", NOW, "no signature fits"),
        ({"webhook-id": "evt_2"}, b"{}", NOW, "no signature fits"),
        ({"webhook-timestamp": str(NOW + 1)}, b"{}", NOW, "no signature fits"),
        ({"webhook-timestamp": "1e9"}, b"{}", NOW, "not a number"),
        ({"webhook-signature": "v1,AAAA v2,BBBB \u00e9"}, b"{}", NOW, "no signature fits"),
        ({}, b"{}", NOW + 301, "away from the clock"),
        ({}, b"{}", NOW - 301, "away from the clock"),
    ],
)
def test_what_is_not_genuine_is_refused(change: dict[str, str], body: bytes, now: int, why: str) -> None:
    secret = new_secret()
    signed = headers([secret], "evt_1", NOW, b"{}") | change
    with pytest.raises(SignatureError, match=why):
        verify(secret, signed, body, now=now)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_every_header_is_needed(name: str) -> None:
    secret = new_secret()
    signed = headers([secret], "evt_1", NOW, b"{}")
    del signed[name]
    with pytest.raises(SignatureError, match=name):
        verify(secret, signed, b"{}", now=NOW)


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_%%%", "whsec_" + "QUJD", "whsec_" + "QUFB" * 30],
)
def test_a_secret_that_is_none(secret: str) -> None:
    with pytest.raises(ValueError, match="a webhook secret"):
        key_of(secret)
