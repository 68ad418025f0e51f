"""Microsoft Teams: an Adaptive Card through a webhook of the Workflows app.

The envelope and its limit of 28 KB: https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/. Names
and texts are ``TextRun``, which, unlike ``TextBlock`` and ``FactSet``, knows no markdown
(https://adaptivecards.io/explorer/TextRun.html).
"""

from __future__ import annotations

from typing import Any

from floatscope_server.alerts.receivers.note import Note
from floatscope_server.alerts.receivers.text import fit, utf8

__all__ = ["body"]

_COLOURS = {"critical": "Attention", "warning": "Warning", "info": "Accent", "resolved": "Good"}
_TITLE, _TEXT, _LINE, _VALUE, _URL = 300, 6000, 800, 600, 4000


def _paragraph(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run} for run in runs]}


def body(note: Note) -> dict[str, Any]:
    """The message. Limits are in bytes, since that of the envelope is."""
    title = {"size": "Medium", "weight": "Bolder", "color": _COLOURS[note.level]}
    elements = [_paragraph({"text": fit(note.title, _TITLE, size=utf8), **title})]
    for name, value in note.facts:
        elements.append(
            _paragraph({"text": f"{name}: ", "weight": "Bolder"}, {"text": fit(value, _VALUE, size=utf8)}),
        )
    single = len(note.items) == 1
    elements += [_paragraph({"text": fit(line, _TEXT if single else _LINE, size=utf8)}) for line in note.lines]
    if more := note.more(len(note.lines)):
        elements.append(_paragraph({"text": fit(more, _LINE, size=utf8), "isSubtle": True}))
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": elements,
        "msteams": {"width": "Full"},
    }
    if note.link is not None and utf8(note.link) <= _URL:
        card["actions"] = [{"type": "Action.OpenUrl", "title": note.word("open"), "url": note.link}]
    return {
        "type": "message",
        "attachments": [
            {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card},
        ],
    }
