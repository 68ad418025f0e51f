"""Feishu and Lark: a card through a custom bot, signed where its signature check is on.

A body has at most 20 KB (https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot). Names and texts are
``plain_text``, which unlike ``lark_md`` knows neither markup nor ``<at>``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Any

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers.answer import Answer, coded
from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf8

__all__ = ["answer", "body", "signature"]

_COLOURS = {"critical": "red", "warning": "orange", "info": "blue", "resolved": "green"}
_TITLE, _TEXT, _LINE, _VALUE, _URL = 300, 6000, 800, 600, 4000
# "Too many requests" of the bot and of the gateway; the latter says in a header when it is over.
_BUSY = {11232: 60.0, 99991400: 60.0}
_NO_SUCH_BOT = 19001


def _text(content: str, limit: int) -> dict[str, Any]:
    return {"tag": "plain_text", "content": fit(content, limit, size=utf8)}


def body(note: Note) -> dict[str, Any]:
    """The message, not signed."""
    elements: list[dict[str, Any]] = []
    if note.facts:
        fields = [{"is_short": True, "text": _text(f"{name}: {value}", _VALUE)} for name, value in note.facts]
        elements.append({"tag": "div", "fields": fields})
    single = len(note.items) == 1
    elements += [{"tag": "div", "text": _text(line, _TEXT if single else _LINE)} for line in note.lines]
    if more := note.more(len(note.lines)):
        elements.append({"tag": "div", "text": _text(more, _LINE)})
    if note.link is not None and utf8(note.link) <= _URL:
        button = {"tag": "button", "text": _text(note.word("open"), _TITLE), "type": "primary", "url": note.link}
        elements.append({"tag": "action", "actions": [button]})
    return {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {"template": _COLOURS[note.level], "title": _text(note.title, _TITLE)},
            "elements": elements,
        },
    }


def signature(secret: str, timestamp: int) -> str:
    """Base64 of the HMAC-SHA256 of nothing under the key ``TIMESTAMP\\nSECRET``; the timestamp is in seconds and may be
    an hour off."""
    digest = hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def answer(reply: Reply, now: datetime) -> Answer:
    """By ``code``."""
    return coded(reply, now, code="code", text="msg", busy=_BUSY, gone={_NO_SUCH_BOT})
