"""Text in the cells of a terminal: what it would obey is spelled, wide characters count twice, styles are apart.

A library such as rich would do this too; it would also be the largest dependency of the agent, for a dozen escape
sequences.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

__all__ = ["Line", "fitted", "plain_signs", "readable", "rendered", "width_of"]

Line = Sequence[tuple[str, str]]
"""Pieces of text, each with the name of a style."""

_STYLES = {"bold": "1", "dim": "2", "reverse": "7", "critical": "31;1", "warning": "33", "info": "34", "ok": "32"}
_COLOURED = frozenset({"critical", "warning", "info", "ok"})

_SIGNS = str.maketrans(
    {
        "█": "#",
        "▌": "-",
        "▒": "!",
        "·": ".",
        "│": "|",
        "▲": "!",
        "◆": "*",
        "●": "o",
        "…": "~",
        "–": "-",
        "−": "-",
        "×": "x",
    }
)


def readable(text: str) -> str:
    """``text`` on one line, with what a terminal would obey or hide spelled as in JSON. Names are an agent's."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _spelled(each) for each in text)


def _spelled(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width_of(text: str) -> int:
    """Cells that printable ``text`` takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _start(text: str, width: int) -> str:
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > width:
            return text[:at]
    return text


def fitted(text: str, width: int, align: str = "left", *, keep: str = "start") -> str:
    """``text`` in exactly ``width`` cells; of what is too long the ``keep`` ("start" or "end") is left."""
    text = readable(text)
    if width <= 0:
        return ""
    if width_of(text) > width:
        text = f"…{_start(text[::-1], width - 1)[::-1]}" if keep == "end" else f"{_start(text, width - 1)}…"
    room = " " * (width - width_of(text))
    return room + text if align == "right" else text + room


def plain_signs(text: str) -> str:
    """``text`` for a terminal that knows ASCII alone; what it lacks is a question mark."""
    return text.translate(_SIGNS).encode("ascii", "replace").decode()


def rendered(lines: Iterable[Line], width: int, *, styled: bool, coloured: bool) -> list[str]:
    """Each line in at most ``width`` cells, with escape sequences if it may be ``styled``."""
    found = []
    for line in lines:
        room, text = width, ""
        for piece, style in line:
            shown = _start(piece, room)
            room -= width_of(shown)
            code = _STYLES.get(style) if styled and (coloured or style not in _COLOURED) else None
            text += shown if code is None or not shown else f"\x1b[{code}m{shown}\x1b[0m"
        found.append(text if styled else text.rstrip())
    return found
