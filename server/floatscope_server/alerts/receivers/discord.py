"""Discord: an embed through a webhook.

Limits: title 256, description 4096, field name 256 and value 1024, 6000 in all
(https://discord.com/developers/docs/resources/message#embed-object-embed-limits). ``allowed_mentions`` without any kind
keeps @everyone from ringing (https://discord.com/developers/docs/resources/message#allowed-mentions-object).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers.answer import Answer, plain, said, seconds
from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf16

__all__ = ["answer", "body"]

_ESCAPE = {char: f"\\{char}" for char in "\\*_~`|<>#-[]"}
_COLOURS = {"critical": 0xC62828, "warning": 0xEF6C00, "info": 0x1565C0, "resolved": 0x2E7D32}
_TITLE, _TEXT, _LINE, _VALUE, _URL = 256, 3800, 330, 300, 2048
_UNKNOWN_WEBHOOK = 10015


def body(note: Note) -> dict[str, Any]:
    """The message."""
    single = len(note.items) == 1
    lines = [fit(line, _TEXT if single else _LINE, escape=_ESCAPE) for line in note.lines]
    if more := note.more(len(lines)):
        lines.append(fit(more, _LINE, escape=_ESCAPE))
    embed: dict[str, Any] = {
        "title": fit(note.title, _TITLE, escape=_ESCAPE),
        "description": "\n".join(lines),
        "color": _COLOURS[note.level],
        "fields": [
            {"name": name, "value": fit(value, _VALUE, escape=_ESCAPE), "inline": True} for name, value in note.facts
        ],
    }
    if note.link is not None and utf16(note.link) <= _URL:
        embed["url"] = note.link
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def answer(reply: Reply, now: datetime) -> Answer:
    """429 says in its body how many seconds to wait, more exactly than the header does
    (https://discord.com/developers/docs/topics/rate-limits)."""
    judged = plain(reply, now, quote=True)
    if judged.error is None:
        return judged
    found = said(reply)
    gone = judged.gone or (reply.status == 404 and found.get("code") == _UNKNOWN_WEBHOOK)
    wait = max(judged.wait_s, seconds(found.get("retry_after")) if reply.status == 429 else 0.0)
    return Answer(status=judged.status, error=judged.error, wait_s=wait, gone=gone)
