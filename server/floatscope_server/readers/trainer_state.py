"""Hugging Face's ``trainer_state.json``: the list ``log_history`` in it, entry by entry, however long it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope_server.readers.decoded import DECODER, real
from floatscope_server.readers.names import meaning
from floatscope_server.readers.rows import Broken, Item, LogFormat, Row
from floatscope_server.readers.text import characters, step_of

__all__ = ["TRAINER_STATE"]

_SOLID = re.compile(r"[^\s,]")
_KEY = '"log_history"'
_LONGEST = 1 << 22
"""Characters of an entry; a longer one is no entry."""
_SUMMARY = ("train_loss", "train_runtime")
"""The last entry: means over the whole training, not values of its last step."""


class _Window:
    """The part of the text that is being read: it goes on at ``at``, on line ``line``."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self.text = ""
        self.at = 0
        self.line = 1

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        for piece in self._pieces:
            if piece:
                self.text, self.at = self.text[self.at :] + piece, 0
                return True
        return False

    def move(self, to: int) -> None:
        """Go on at ``to``."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def skip_to(self, wanted: str) -> bool:
        """Go on behind ``wanted``; False if it does not come."""
        while (found := self.text.find(wanted, self.at)) < 0:
            self.move(max(len(self.text) - len(wanted), self.at))
            if not self.more():
                return False
        self.move(found + len(wanted))
        return True

    def next(self) -> str:
        """The next character that is neither blank nor a comma, where the text then goes on; "" at the end."""
        while True:
            if found := _SOLID.search(self.text, self.at):
                self.move(found.start())
                return found.group()
            self.move(len(self.text))
            if not self.more():
                return ""


def _row(line: int, entry: dict[str, object]) -> Row | None:
    step = step_of(entry.get("step"))
    if step is None:
        return None
    values = {
        name: real(value)
        for name, value in entry.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }
    known = meaning({n: v for n, v in values.items() if n not in _SUMMARY})
    return Row(line=line, step=step, values=values, meaning=known)


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    window = _Window(characters(chunks))
    last = -1
    while window.skip_to(_KEY) and window.skip_to("["):
        for item in _history(window):
            if isinstance(item, Row):
                # A history has one writer: steps that go back are a second one, appended.
                item.restart = item.step < last
                last = item.step
            yield item


def _history(window: _Window) -> Iterator[Item]:
    """The entries of the list that ``window`` has reached."""
    while (first := window.next()) != "]":
        if first != "{":
            why = "no JSON where an entry of log_history should begin" if first else "the file ends in log_history"
            yield Broken(line=window.line, why=why)
            return
        try:
            entry, end = DECODER.raw_decode(window.text, window.at)
        except ValueError:
            if len(window.text) - window.at < _LONGEST and window.more():
                continue
            yield Broken(line=window.line, why="an entry of log_history does not end or is damaged")
            return
        except RecursionError:
            yield Broken(line=window.line, why="an entry of log_history is nested too deep")
            return
        row = _row(window.line, entry)
        window.move(end)
        if row is not None:
            yield row


TRAINER_STATE = LogFormat("hf-trainer-state", _read)
