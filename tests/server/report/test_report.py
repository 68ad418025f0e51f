"""The report of a run: what it says, what it hides, and that it needs nothing but a browser."""

from __future__ import annotations

import argparse
import os
import re
import zlib
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pytest

import floatscope
from floatscope import wire
from floatscope_server.commands import report as command
from floatscope_server.report.document import file_name
from floatscope_server.report.markup import join, readable, tag
from floatscope_server.report.numbers import bits, duration, log_ticks, power, ticks
from floatscope_server.report.png import indexed_png
from floatscope_server.report.words import WORDS
from tests.chromium import browser, listen
from tests.server.report.conftest import LAYER, MARKUP, PASSWORD, SECRET

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Reply, Running

pytestmark = pytest.mark.engines("sqlite")


_SHOWN = """() => [...document.querySelectorAll("image")].filter((one) => one.getBoundingClientRect().width > 0)
  .map((one) => one.classList.contains("dark"))"""


def asked(server: Running, run: str, language: str = "en") -> Reply:
    return server.get(f"/api/v1/runs/{quote(run, safe='')}/report?language={language}")


def text_of(document: str) -> str:
    """What a reader sees, roughly."""
    body = document.partition("<body>")[2]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body)))


def run_command(server: Running, *arguments: str, asked: bool = False) -> int:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    where = ("--server", server.url) if asked else ("--data", str(server.services.settings.data))
    return command.run(parser.parse_args([*arguments, *where]))


@pytest.mark.engines("sqlite", "postgresql")
def test_the_verdict_names_what_broke_first(server: Running, wrong: str) -> None:
    reply = asked(server, wrong)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.headers["content-disposition"].startswith('attachment; filename="floatscope-')
    text = text_of(reply.body.decode())
    assert "Worst headroom −0.3 bits" in text
    assert re.search(r"First over its format's limit step 20:.*?gradient, fp16, −0\.3 bits", text)
    assert re.search(r"First not finite step 25: came from", text)
    assert re.search(r"First skipped step step 25: .*?; 1 skipped in all", text)
    assert text.count("nonfinite") == 1
    assert "python train.py --lr 1e-4" in text


def test_names_are_text_and_secrets_stay_out(server: Running, wrong: str) -> None:
    for language in ("en", "zh"):
        document = asked(server, wrong, language).body.decode()
        assert SECRET not in document
        assert PASSWORD not in document
        assert "***" in document
        assert "<img" not in document
        assert "<script" not in document
        assert "\u202e" not in document
        text = text_of(document)
        assert readable(MARKUP) in text
        assert readable(LAYER) in text


def test_the_languages_differ_in_words_alone(server: Running, wrong: str) -> None:
    documents = [asked(server, wrong, language).body.decode() for language in ("en", "zh")]
    assert "最小余量 −0.3 位" in text_of(documents[1])
    tags = [re.findall(r"<(\w+)", document) for document in documents]
    assert tags[0] == tags[1]
    assert asked(server, wrong, "de").status == 422


def test_words_have_the_same_places_in_both_languages() -> None:
    def places(language: str) -> dict[str, set[str]]:
        return {key: set(re.findall(r"\{(\w+)\}", text)) for key, text in WORDS[language].items()}

    assert places("en") == places("zh")


def test_it_opens_from_a_disk_without_a_request(
    server: Running, wrong: str, tmp_path: Path, program: Callable[[str], str]
) -> None:
    target = tmp_path / "report.html"
    assert run_command(server, wrong, "-o", str(target)) == 0
    with browser(program("chromium")) as running:
        for scheme, ground in (("light", "rgb(250, 249, 245)"), ("dark", "rgb(11, 17, 19)")):
            for width in (1200, 390):
                page = running.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
                complaints = listen(page, target.as_uri())
                page.goto(target.as_uri())
                assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == ground
                assert page.evaluate("() => document.documentElement.scrollWidth") == width
                shown = page.evaluate(_SHOWN)
                assert len(shown) == 5
                assert set(shown) == {scheme == "dark"}
                assert complaints.texts == []
                page.close()
        page = running.new_page(color_scheme="dark")
        page.goto(target.as_uri())
        page.emulate_media(media="print")
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(250, 249, 245)"
        assert page.pdf()[:5] == b"%PDF-"


def test_a_run_of_nothing_has_a_report(server: Running, agent: MakeAgent) -> None:
    agent(run="empty")
    text = text_of(asked(server, "empty").body.decode())
    assert "headroom is not known" in text
    assert "Nothing has fired in this run." in text
    assert asked(server, "none such").status == 404


def test_one_wild_step_of_many_is_found_to_the_step(server: Running, agent: MakeAgent, make: Make) -> None:
    long = agent(run="long", layers=[make.layer(n, f"l{n}", ("grad", "fp16")) for n in range(2)])
    absmax = np.full((3000, 2), 64.0)
    absmax[1234, 1] = 1e5
    nans = np.zeros((3000, 2))
    nans[1235, 1] = 1
    for first in range(0, 3000, 1000):
        part = slice(first, first + 1000)
        rows = make.summaries("grad", first, absmax[part], nans=nans[part])
        long.deliver(wire.Body(first_step=first, steps=1000, summaries=(rows,)))
    text = text_of(asked(server, "long").body.decode())
    assert "−0.6 bits l1 gradient, fp16, step 1,234" in text
    assert "First over its format's limit step 1,234: l1" in text
    assert re.search(r"First not finite step 1,235: (came from )?l1", text)


def test_many_layers_stay_small(server: Running, agent: MakeAgent, make: Make) -> None:
    random = np.random.default_rng(7)
    many = agent(run="many", layers=[make.layer(n, f"h.{n // 10}.l{n}", ("grad", "fp16")) for n in range(1500)])
    absmax = 2.0 ** random.uniform(-4, 15.9, (64, 1500))
    absmax[33, 1234] = 1e5
    for first in range(0, 64, 8):
        part = make.summaries("grad", first, absmax[first : first + 8])
        many.deliver(wire.Body(first_step=first, steps=8, summaries=(part,)))
    document = asked(server, "many").body
    assert len(document) < 1_500_000
    text = text_of(document.decode())
    assert "h.123.l1234" in text
    assert "24 of 1500." in text


def test_the_command_and_the_client_have_the_same_file(
    server: Running, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = tmp_path / "ours.html", tmp_path / "theirs.html"
    assert run_command(server, wrong, "-o", str(ours), "--language", "zh") == 0
    assert run_command(server, wrong, "-o", str(theirs), "--language", "zh", asked=True) == 0
    client = floatscope.Client(server.url).report(wrong, language="zh")

    def timeless(document: bytes) -> str:
        return re.sub(r"\d+:\d+(:\d+)? UTC|\d+ (s|min)\b", "", document.decode())

    assert timeless(ours.read_bytes()) == timeless(theirs.read_bytes()) == timeless(client)
    capsys.readouterr()
    assert run_command(server, wrong, "-o", str(ours)) == 2
    assert "--force" in capsys.readouterr().err
    assert run_command(server, wrong, "-o", str(ours), "--force") == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run_command(server, wrong, "-o", str(pipe), "--force") == 2
    assert pipe.is_fifo()
    assert "no file that could be replaced" in capsys.readouterr().err
    for by_server in (False, True):
        assert run_command(server, "none such", "-o", str(tmp_path / "x"), asked=by_server) == 2
        assert "no run 'none such'; `floatscope runs` lists them" in capsys.readouterr().err
    assert run_command(server, wrong, "-o", str(tmp_path / "no folder" / "x")) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".html" or path.name == "x") == [
        "ours.html",
        "theirs.html",
    ]


def test_a_png_is_what_its_specification_says() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    png = indexed_png(pixels, np.arange(18, dtype=np.uint8).reshape(6, 3))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert int.from_bytes(png[at + 8 + size : at + 12 + size]) == zlib.crc32(name + data)
        chunks[name] = data
        at += size + 12
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, 1, 2, 0, 3, 4, 5])


def test_numbers_are_written_for_readers() -> None:
    assert [bits(x) for x in (-0.01, 0.0, 3.14159, float("-inf"))] == ["−0.01", "0.0", "3.1", "−∞"]
    assert [duration(x) for x in (5, 65, 3700, 90000)] == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]
    assert ticks(0, 1, 4) == pytest.approx([0, 0.5, 1])
    assert ticks(3, 3, 4) == [3]
    assert [power(x) for x in (-5, 0, 1, 4)] == ["10⁻⁵", "1", "10", "10⁴"]
    assert len(log_ticks(-20, 20)) <= 5
    assert log_ticks(0.31, 0.32) == [pytest.approx(0.315)]


def test_markup_is_made_here_alone() -> None:
    assert tag("p", "<b>", class_='"') == '<p class="&quot;">&lt;b&gt;</p>'
    assert join("a\x00b", tag("br"), None, ["<"]) == "a\\u0000b<br>&lt;"
    assert file_name("../../a b<c>", "zh") == "floatscope-a-b-c-zh.html"
    assert file_name("\u202e..", "en") == "floatscope-u202e.html"
