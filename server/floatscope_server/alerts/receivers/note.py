"""What a chat is told: one alert in full, or several as a list with the rest counted. Free of any receiver's markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_server.alerts.receivers.text import clean

__all__ = ["LANGUAGES", "Item", "Note", "items_of"]

LISTED = 10
"""Alerts that a message lists at most; what else waits is counted by severity and kind."""

_COUNTED = 6
_NAME = 200

LANGUAGES = ("en", "zh")

_WORDS: Mapping[str, tuple[str, str]] = {
    "critical": ("critical", "严重"),
    "warning": ("warning", "警告"),
    "info": ("info", "提示"),
    "firing": ("firing", "触发"),
    "reminder": ("still firing", "仍在触发"),
    "resolved": ("resolved", "已恢复"),
    "test": ("test", "测试"),
    "run": ("Run", "运行"),
    "step": ("Step", "步"),
    "layer": ("Layer", "层"),
    "rank": ("Rank", "Rank"),
    "kind": ("Kind", "类型"),
    "open": ("Open in Floatscope", "在 Floatscope 中打开"),
    "alerts": ("alerts", "条告警"),
}
_WORST = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One alert of a message. ``state`` is firing, reminder, resolved or test; ``url`` leads to its run."""

    state: str
    severity: str
    kind: str
    run: str
    message: str
    message_zh: str
    step: int | None = None
    layer: str | None = None
    rank: int | None = None
    url: str | None = None

    @property
    def level(self) -> str:
        """What colours it: the severity while it fires, else resolved or info."""
        return {"resolved": "resolved", "test": "info"}.get(self.state, self.severity)


def items_of(events: Sequence[Mapping[str, Any]]) -> list[Item]:
    """The alerts that ``events`` (bodies of webhooks, oldest first) tell of, what fires and is worst first.

    Of an alert that several of them are about only the last counts: one that fired and resolved is told as resolved.
    """
    last: dict[object, Mapping[str, Any]] = {}
    for number, event in enumerate(events):
        key = event["data"].get("id", f"event {number}")
        last.pop(key, None)
        last[key] = event
    items = [_item(event) for event in last.values()]
    return sorted(items, key=lambda item: (item.state == "resolved", _WORST[item.severity]))


def _item(event: Mapping[str, Any]) -> Item:
    data = event["data"]
    layer = data.get("layer")
    return Item(
        state=event["type"].removeprefix("alert."),
        severity=data["severity"],
        kind=data["kind"],
        run=_shown(data["run"])[:_NAME],
        message=_shown(data["message"]),
        message_zh=_shown(data["message_zh"]),
        step=data.get("first_step"),
        layer=None if layer is None else _shown(layer),
        rank=data.get("rank"),
        url=data.get("run_url"),
    )


def _shown(text: str) -> str:
    # Receivers refuse empty texts, and a name of nothing but controls is one.
    return clean(text) or "?"


@dataclass(frozen=True, slots=True)
class Note:
    """A message about ``items``, at least one, in ``language``."""

    items: Sequence[Item]
    language: str

    def word(self, name: str) -> str:
        """``name`` in the language of the message."""
        return _WORDS[name][LANGUAGES.index(self.language)]

    @property
    def level(self) -> str:
        """critical, warning, info or resolved: the worst of what it tells."""
        return self.items[0].level

    @property
    def title(self) -> str:
        """It begins with the word Floatscope, which receivers that filter by key words can be told to look for."""
        if len(self.items) == 1:
            item = self.items[0]
            step = "" if item.step is None else f" · {self.word('step').lower()} {item.step}"
            return f"Floatscope: [{self._state(item)}] {item.kind} · {item.run}{step}"
        return f"Floatscope: {len(self.items)} {self.word('alerts')} ({self._tally(self.items, kinds=False)})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(name, value) of what a single alert is about; empty for several."""
        if len(self.items) > 1:
            return []
        item = self.items[0]
        known = {"run": item.run, "step": item.step, "layer": item.layer, "rank": item.rank, "kind": item.kind}
        return [(self.word(name), str(value)) for name, value in known.items() if value is not None]

    @property
    def lines(self) -> list[str]:
        """The text of a single alert; else one line for each of the first."""
        if len(self.items) == 1:
            return [self._text(self.items[0])]
        return [self._line(item) for item in self.items[:LISTED]]

    def more(self, shown: int) -> str | None:
        """What is said of the alerts after the first ``shown``."""
        rest = self.items[shown:]
        if not rest:
            return None
        what = self._tally(rest, kinds=True)
        return f"and {len(rest)} more: {what}" if self.language == "en" else f"另有 {len(rest)} 条：{what}"

    @property
    def link(self) -> str | None:
        """The page of the worst alert's run."""
        return self.items[0].url

    def _text(self, item: Item) -> str:
        return item.message if self.language == "en" else item.message_zh

    def _state(self, item: Item) -> str:
        severity = self.word(item.severity)
        return severity if item.state == "firing" else f"{self.word(item.state)}, {severity}"

    def _line(self, item: Item) -> str:
        where = [item.kind, item.run]
        where += [] if item.step is None else [f"{self.word('step').lower()} {item.step}"]
        where += [] if item.layer is None else [item.layer]
        where += [] if item.rank is None else [f"rank {item.rank}"]
        return f"[{self._state(item)}] {' · '.join(where)}: {self._text(item)}"

    def _tally(self, items: Sequence[Item], *, kinds: bool) -> str:
        counts = Counter(f"{self._state(item)} {item.kind}" if kinds else self._state(item) for item in items)
        told = [f"{count} {what}" for what, count in counts.most_common(_COUNTED)]
        return ", ".join(told) + (", …" if len(counts) > _COUNTED else "")
