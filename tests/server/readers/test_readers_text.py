"""Bytes to lines."""

from __future__ import annotations

import codecs

import pytest

from floatscope_server.readers.text import characters, lines, number


def _pieces(data: bytes, length: int) -> list[tuple[int, str]]:
    return list(lines(data[i : i + length] for i in range(0, len(data), length)))


@pytest.mark.parametrize("length", [1, 2, 3, 64])
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_marks_and_pieces_of_any_size(mark: bytes, encoding: str, length: int) -> None:
    data = mark + "loss 0.5\r\n\r\n损失 é\nend".encode(encoding)
    assert _pieces(data, length) == [(1, "loss 0.5"), (3, "损失 é"), (4, "end")]


def test_colours_and_overwritten_bars() -> None:
    data = b"\x1b[32m 1%\x1b[0m\r 2%\r\x1b]0;title\x07 3%\nnext\x1b[K\n"
    assert _pieces(data, 5) == [(1, " 1%"), (1, " 2%"), (1, " 3%"), (2, "next")]


def test_bytes_that_are_no_text_and_lines_without_an_end() -> None:
    garbage = bytes(range(256)) * 12_000
    longest = max(len(text) for _, text in lines(iter([garbage.replace(b"\n", b""), b"\nloss"])))
    assert longest < 3 << 20
    bar = b"\r 50%|####| 1/2" * 200_000
    found = list(lines(bar[i : i + (1 << 16)] for i in range(0, len(bar), 1 << 16)))
    assert len(found) == 200_000
    assert {text for _, text in found} == {" 50%|####| 1/2"}


def test_nothing() -> None:
    assert list(lines(iter([]))) == []
    assert "".join(characters(iter([b""]))) == ""


def test_number() -> None:
    assert number("1e-3") == 0.001
    assert number("x") is None
