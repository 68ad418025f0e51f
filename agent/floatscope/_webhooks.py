"""Standard Webhooks 1.0 signatures (https://www.standardwebhooks.com): signing and verifying, without any transport.

The signed content is ``ID.TIMESTAMP.BODY``, the key the base64 text of a secret ``whsec_...``, the signature
``v1,`` and the base64 of HMAC-SHA256. A header may hold several signatures, separated by blanks: that is how a secret
is replaced without losing a message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

__all__ = ["TOLERANCE_S", "SignatureError", "headers", "key_of", "new_secret", "verify"]

PREFIX = "whsec_"
TOLERANCE_S = 300
"""Seconds by which the clocks of sender and receiver may differ."""

_KEY_BYTES = (24, 64)


class SignatureError(ValueError):
    """A message that must not be trusted; the text says why."""


def new_secret() -> str:
    """A fresh secret of 256 bits."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The key that ``secret`` stands for; ``ValueError`` unless it is ``whsec_`` and the base64 of 24 to 64 bytes."""
    low, high = _KEY_BYTES
    if not secret.startswith(PREFIX):
        raise ValueError(f"a webhook secret starts with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"a webhook secret is {PREFIX} followed by base64") from None
    if not low <= len(key) <= high:
        raise ValueError(f"a webhook secret holds {low} to {high} bytes, this one {len(key)}")
    return key


def _signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    digest = hmac.new(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def headers(signing: Iterable[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message, with one signature for each of the secrets in ``signing``.

    ``timestamp`` is the time of this try in seconds since 1970; ``message_id`` stays the same over all tries.
    """
    signatures = [_signature(key_of(secret), message_id, timestamp, body) for secret in signing]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def verify(secret: str, received: Mapping[str, str], body: bytes, *, now: float) -> str:
    """Check a received message and return its id; ``SignatureError`` when it is not genuine or not fresh.

    ``received`` are the request's headers, in any case of letters; ``now`` is in seconds since 1970.
    """
    lower = {name.lower(): value for name, value in received.items()}
    try:
        message_id, stamp, signed = (lower[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise SignatureError(f"the header {missing.args[0]} is missing") from None
    if not stamp.isascii() or not stamp.isdecimal() or len(stamp) > 15:
        raise SignatureError("webhook-timestamp is not a number of seconds")
    timestamp = int(stamp)
    if abs(now - timestamp) > TOLERANCE_S:
        raise SignatureError(f"webhook-timestamp is more than {TOLERANCE_S} s away from the clock here")
    expected = _signature(key_of(secret), message_id, timestamp, body).encode()
    if not any(hmac.compare_digest(expected, candidate.encode()) for candidate in signed.split(" ")):
        raise SignatureError("no signature fits")
    return message_id
