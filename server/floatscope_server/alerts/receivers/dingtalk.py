"""DingTalk: markdown through a custom robot, signed where it has a secret.

A message has at most 20000 bytes, a robot may send 20 a minute and is then blocked for 10 minutes
(https://open.dingtalk.com/document/orgapp/custom-robots-send-group-messages). Its markdown has no escapes: characters
that would begin a link, an image, emphasis or a tag are replaced by their full-width twins.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Any
from urllib.parse import quote

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers.answer import Answer, coded
from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf8

__all__ = ["FULL_WIDTH", "answer", "body", "signature", "signed"]

FULL_WIDTH = {char: chr(ord(char) + 0xFEE0) for char in "[]()<>*`~!#|\\@"}

_TITLE, _TEXT, _LINE, _VALUE, _URL = 300, 6000, 800, 600, 4000
_TOO_FAST = {130101: 600.0}
_NO_SUCH_ROBOT = frozenset({300001, 300005})


def body(note: Note) -> dict[str, Any]:
    """The message."""
    title = fit(note.title, _TITLE, size=utf8, escape=FULL_WIDTH)
    parts = [f"### {title}"]
    parts += [f"- {name}: {fit(value, _VALUE, size=utf8, escape=FULL_WIDTH)}" for name, value in note.facts]
    single = len(note.items) == 1
    parts += [fit(line, _TEXT if single else _LINE, size=utf8, escape=FULL_WIDTH) for line in note.lines]
    if more := note.more(len(note.lines)):
        parts.append(fit(more, _LINE, size=utf8, escape=FULL_WIDTH))
    if note.link is not None and utf8(note.link) <= _URL:
        parts.append(f"[{note.word('open')}]({note.link})")
    return {"msgtype": "markdown", "markdown": {"title": title, "text": "\n\n".join(parts)}, "at": {"isAtAll": False}}


def signature(secret: str, timestamp_ms: int) -> str:
    """Base64 of the HMAC-SHA256 of ``TIMESTAMP\\nSECRET`` under the secret, percent-encoded; the timestamp is in
    milliseconds and may be an hour off."""
    digest = hmac.new(secret.encode(), f"{timestamp_ms}\n{secret}".encode(), hashlib.sha256).digest()
    return quote(base64.b64encode(digest), safe="")


def signed(url: str, secret: str, timestamp_ms: int) -> str:
    """``url`` with the timestamp and the signature."""
    joint = "&" if "?" in url else "?"
    return f"{url}{joint}timestamp={timestamp_ms}&sign={signature(secret, timestamp_ms)}"


def answer(reply: Reply, now: datetime) -> Answer:
    """By ``errcode``."""
    return coded(reply, now, code="errcode", text="errmsg", busy=_TOO_FAST, gone=_NO_SUCH_ROBOT)
