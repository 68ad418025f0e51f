"""WeCom (企业微信): markdown through a group robot.

The content has at most 4096 bytes, a robot may send 20 messages a minute
(https://developer.work.weixin.qq.com/document/path/91770). ``<@name>`` would mention somebody and there are no escapes:
such characters are replaced by their full-width twins.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers.answer import Answer, coded
from floatscope_server.alerts.receivers.dingtalk import FULL_WIDTH
from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf8

__all__ = ["answer", "body"]

_COLOURS = {"critical": "warning", "warning": "warning", "info": "comment", "resolved": "info"}
_CONTENT, _TITLE, _LINE, _MORE, _VALUE, _URL = 4096, 240, 300, 500, 160, 1000
_TOO_OFTEN = {45009: 60.0}
_NO_SUCH_ROBOT = 93000


def body(note: Note) -> dict[str, Any]:
    """The message. What is fixed comes first, the text of a single alert gets the room that is left."""
    title = fit(note.title, _TITLE, size=utf8, escape=FULL_WIDTH)
    head = [f'<font color="{_COLOURS[note.level]}">{title}</font>']
    head += [f"> {name}: {fit(value, _VALUE, size=utf8, escape=FULL_WIDTH)}" for name, value in note.facts]
    tail: list[str] = []
    if note.link is not None and utf8(note.link) <= _URL:
        tail.append(f"[{note.word('open')}]({note.link})")
    room = _CONTENT - utf8("\n".join([*head, *tail])) - 2
    lines: list[str] = []
    if len(note.items) == 1:
        lines.append(fit(note.lines[0], room, size=utf8, escape=FULL_WIDTH))
    else:
        room -= _MORE
        for line in note.lines:
            text = fit(line, _LINE, size=utf8, escape=FULL_WIDTH)
            if (room := room - utf8(text) - 1) < 0:
                break
            lines.append(text)
        if more := note.more(len(lines)):
            lines.append(fit(more, _MORE - 1, size=utf8, escape=FULL_WIDTH))
    return {"msgtype": "markdown", "markdown": {"content": "\n".join([*head, *lines, *tail])}}


def answer(reply: Reply, now: datetime) -> Answer:
    """By ``errcode``."""
    return coded(reply, now, code="errcode", text="errmsg", busy=_TOO_OFTEN, gone={_NO_SUCH_ROBOT})
