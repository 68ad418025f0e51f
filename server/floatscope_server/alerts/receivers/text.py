"""Text for chats: on one line, without what a terminal or a bidirectional layout would act on, cut to a limit."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping

__all__ = ["clean", "fit", "utf8", "utf16"]

ELLIPSIS = "…"

# Controls, formatting (bidirectional overrides, zero-width characters), lone surrogates, private use, line separators.
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# They join the parts of emoji and the letters of several scripts.
_KEPT = frozenset({"\u200c", "\u200d"})


def utf8(text: str) -> int:
    """Bytes of ``text`` on the wire."""
    return len(text.encode())


def utf16(text: str) -> int:
    """UTF-16 units: what receivers written in JavaScript call characters, and never less than the code points."""
    return len(text.encode("utf-16-le")) // 2


def clean(text: str) -> str:
    """``text`` on one line; whatever is invisible becomes a blank, runs of blanks one."""
    shown = (char if char in _KEPT or unicodedata.category(char) not in _DROPPED else " " for char in text)
    return " ".join("".join(shown).split())


def fit(text: str, limit: int, *, size: Callable[[str], int] = utf16, escape: Mapping[str, str] | None = None) -> str:
    """``text`` with each character replaced as ``escape`` says, cut so that its ``size`` is at most ``limit``.

    A cut ends in an ellipsis and falls between code points, never inside the replacement of one.
    """
    table = {} if escape is None else escape
    pieces = [table.get(char, char) for char in text]
    whole = "".join(pieces)
    if size(whole) <= limit:
        return whole
    room, kept = limit - size(ELLIPSIS), []
    for piece in pieces:
        room -= size(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + ELLIPSIS if limit >= size(ELLIPSIS) else ""
