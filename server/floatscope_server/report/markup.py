"""HTML from values: text is escaped unless it was made here."""

from __future__ import annotations

import html

__all__ = ["Markup", "join", "readable", "tag"]

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def readable(text: str) -> str:
    """``text`` with what no reader sees, or what turns the line around, spelled as in JSON. Names are an agent's."""
    if text.isprintable():
        return text
    return "".join(
        each if (each.isprintable() or each == "\n") and each not in _BIDI else _spelled(each) for each in text
    )


def _spelled(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def join(*parts: object) -> Markup:
    """The parts one after the other; None and False are nothing."""
    return Markup("".join(_text(part) for part in parts if part is not None and part is not False))


def _text(part: object) -> str:
    if isinstance(part, Markup):
        return part
    if isinstance(part, list | tuple):
        return join(*part)
    return html.escape(readable(str(part)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; an attribute ``class_`` is "class", ``stroke_width`` is "stroke-width", None leaves it out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("meta", "img", "br"):
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")
