"""Bytes to lines: byte order marks, CRLF, progress bars that overwrite themselves, colours, lines without an end; and
what stands in them to numbers and cells, however long damage has made it."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator

__all__ = ["cells", "characters", "lines", "number", "step_of", "whole"]

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_STEPS = 1 << 53
_DIGITS = 40
"""More are not read; those of a step are 16 at most, and zeros may stand before them."""
_LONGEST = 1 << 20
"""Characters of a line that are kept together; more come from binary data."""


def characters(chunks: Iterator[bytes]) -> Iterator[str]:
    """The text of ``chunks``; bytes that are none become U+FFFD. UTF-16 needs its mark (Windows shells write it)."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(codecs.BOM_UTF8):
            break
    encoding = "utf-8"
    for mark, name in _MARKS:
        if head.startswith(mark):
            head, encoding = head[len(mark) :], name
            break
    decode = codecs.getincrementaldecoder(encoding)("replace").decode
    yield decode(head)
    for chunk in chunks:
        yield decode(chunk)
    yield decode(b"", final=True)


def _segments(text: str) -> Iterator[str]:
    for segment in text.split("\r") if "\r" in text else (text,):
        if segment:
            yield _ANSI.sub("", segment) if "\x1b" in segment else segment


def lines(chunks: Iterator[bytes]) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and the text of each, without colours; empty ones are left out. What a carriage return would
    overwrite on a terminal comes as lines of the same number."""
    number = 1
    rest = ""
    for piece in characters(chunks):
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            if "\r" in line or "\x1b" in line:
                for segment in _segments(line):
                    yield number, segment
            elif line:
                yield number, line
            number += 1
        if len(rest) > _LONGEST:
            *before, rest = rest.split("\r")
            if len(rest) > _LONGEST:
                before, rest = [*before, rest], ""
            for line in before:
                for segment in _segments(line):
                    yield number, segment
    for segment in _segments(rest):
        yield number, segment


def step_of(value: object) -> int | None:
    """The step that ``value`` is: a finite number from 0 up to 2^53, what a double holds exactly; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _STEPS:
        return None
    return int(value)


def number(text: str) -> float | None:
    """The number that ``text`` is, nan and inf included; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def whole(digits: str) -> int:
    """The number that ``digits`` write, 2^53 at most: that is no step, and Python reads no more than 4300 of them."""
    return min(int(digits), _STEPS) if len(digits) <= _DIGITS else _STEPS


def cells(line: str) -> list[str]:
    """The cells of a line of CSV; none of one that is damaged, or longer than the 131072 characters of a cell."""
    try:
        return next(csv.reader([line], skipinitialspace=True))
    except csv.Error:
        return []
