"""The chats that alerts can be sent to: how each is spoken to, and how often."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers import dingtalk, discord, feishu, slack, teams, wecom
from floatscope_server.alerts.receivers.answer import Answer, plain
from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.pace import Pace

__all__ = ["APPRISE", "APPRISE_PACE", "CHATS", "GENERIC", "TYPES", "Chat", "letter"]

GENERIC = "generic"
APPRISE = "apprise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """``body`` makes a message, ``answer`` judges the reply, ``pace`` is what the receiver takes; ``secret``: whether
    its messages can be signed with one."""

    body: Callable[[Note], dict[str, Any]]
    answer: Callable[[Reply, datetime], Answer]
    pace: Pace
    secret: bool = False


_quoting = partial(plain, quote=True)

CHATS: Mapping[str, Chat] = MappingProxyType(
    {
        # One a second (https://docs.slack.dev/apis/web-api/rate-limits).
        "slack": Chat(body=slack.body, answer=_quoting, pace=Pace(burst=1, per_s=1)),
        # Not fixed by the documents; 5 in 2 s for a webhook and 30 a minute for a channel are what it answers 429 at.
        "discord": Chat(body=discord.body, answer=discord.answer, pace=Pace(burst=2, per_s=0.45)),
        # Four a second, and a flow has a daily ration of runs.
        "teams": Chat(body=teams.body, answer=_quoting, pace=Pace(burst=2, per_s=0.5)),
        # 100 a minute and 5 a second.
        "feishu": Chat(body=feishu.body, answer=feishu.answer, pace=Pace(burst=3, per_s=1.5), secret=True),
        # 20 a minute, whichever minute.
        "dingtalk": Chat(body=dingtalk.body, answer=dingtalk.answer, pace=Pace(burst=5, per_s=0.25), secret=True),
        "wecom": Chat(body=wecom.body, answer=wecom.answer, pace=Pace(burst=5, per_s=0.25)),
    }
)
"""Bursts and rates are such that burst + rate x window stays within what the receiver allows in any window."""

APPRISE_PACE = Pace(burst=3, per_s=0.25)
"""Of a target of which nothing is known: 18 messages a minute at most."""

TYPES = (GENERIC, *CHATS, APPRISE)
"""Kinds of endpoints."""


def letter(type_: str, url: str, secret: str | None, note: Note, now: datetime) -> tuple[str, bytes]:
    """(address, body) of a message to the chat ``type_``, signed where there is a secret for it."""
    content = CHATS[type_].body(note)
    if secret is not None and type_ == "feishu":
        timestamp = int(now.timestamp())
        content = {"timestamp": str(timestamp), "sign": feishu.signature(secret, timestamp), **content}
    if secret is not None and type_ == "dingtalk":
        url = dingtalk.signed(url, secret, int(now.timestamp() * 1000))
    return url, json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
