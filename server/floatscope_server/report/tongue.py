"""The words of one language."""

from __future__ import annotations

from floatscope_server.report.numbers import count
from floatscope_server.report.words import WORDS

__all__ = ["Tongue"]


class Tongue:
    """``tongue(key, name=value)`` is the text of ``key`` with ``{name}`` filled in; ``language`` is "en" or "zh"."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._words = WORDS[language]

    def __call__(self, key: str, **values: object) -> str:
        return self._words[key].format(**values)

    def at(self, first: int, last: int) -> str:
        """A step, or several, in a sentence."""
        if first == last:
            return self("at", first=count(first))
        return self("between", first=count(first), last=count(last))

    def short(self, first: int, last: int) -> str:
        """The same in a table."""
        return count(first) if first == last else f"{count(first)}–{count(last)}"
