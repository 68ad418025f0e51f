"""Which of several processes may speak as a writer: those that read the same log have the same writer, and what each of
them sends follows from what the server had when it said hello."""

from __future__ import annotations

__all__ = ["Senders"]

_MOST = 10_000
"""Remembered; who sends a log for longer than so many others are begun may go on beside a second one."""


class Senders:
    """The newest to say hello may speak. One that another has taken the place of may not come back: it counts what the
    other one sent as its own."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._past: dict[tuple[str, str], None] = {}

    def greet(self, writer: str, sender: str) -> bool:
        """``sender`` says hello as ``writer``; whether it may."""
        if (writer, sender) in self._past:
            return False
        before = self._newest.pop(writer, sender)
        self._newest[writer] = sender
        if before != sender:
            self._past[writer, before] = None
        if len(self._newest) > _MOST:
            del self._newest[next(iter(self._newest))]
        if len(self._past) > _MOST:
            del self._past[next(iter(self._past))]
        return True

    def may_speak(self, writer: str, sender: str) -> bool:
        """Whether nobody has taken its place."""
        return self._newest.get(writer, sender) == sender
