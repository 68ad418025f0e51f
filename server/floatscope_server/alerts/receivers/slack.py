"""Slack: Block Kit through an incoming webhook.

Limits: a header 150 characters, a section 3000, a field 2000, 10 fields and 50 blocks
(https://docs.slack.dev/reference/block-kit/blocks). Names and texts are ``plain_text``, where nothing is markup; only
the ``text`` of the notification and the link are mrkdwn, with ``&``, ``<`` and ``>`` escaped
(https://docs.slack.dev/messaging/formatting-message-text).
"""

from __future__ import annotations

from typing import Any

from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf16

__all__ = ["body"]

_ESCAPE = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# A bar would end the address of a link.
_ESCAPE_URL = {**_ESCAPE, "|": "%7C"}
_SECTION, _FIELD, _HEADER, _LINE = 2900, 1900, 150, 600


def _plain(text: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": fit(text, limit), "emoji": False}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _plain(text, _SECTION)}


def body(note: Note) -> dict[str, Any]:
    """The message."""
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(note.title, _HEADER)}]
    if note.facts:
        fields = [
            field
            for name, value in note.facts
            for field in ({"type": "mrkdwn", "text": f"*{name}*", "verbatim": True}, _plain(value, _FIELD))
        ]
        blocks.append({"type": "section", "fields": fields})
    single = len(note.items) == 1
    blocks += [_section(line if single else fit(line, _LINE)) for line in note.lines]
    if more := note.more(len(note.lines)):
        blocks.append(_section(more))
    if note.link is not None and utf16(link := fit(note.link, _SECTION, escape=_ESCAPE_URL)) < _SECTION - 100:
        text = f"<{link}|{note.word('open')}>"
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}})
    return {"text": fit(note.title, _SECTION, escape=_ESCAPE), "blocks": blocks}
