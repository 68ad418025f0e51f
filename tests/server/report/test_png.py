"""Pictures of charts and heat maps, and the link to the report, in a real browser."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page

from tests.chromium import Complaints, browser, drawn, listen

if TYPE_CHECKING:
    from tests.server.conftest import Running

pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.browser]

_COLOURS = """async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const count = (x, y, width, height) =>
    new Set(new Uint32Array(context.getImageData(x, y, width, height).data.buffer)).size;
  return [count(0, 0, image.width, 100), count(0, 110, image.width, image.height - 110)];
}"""
"""How many colours the caption has, and what is below it."""


@pytest.fixture
def page(server: Running, wrong: str, program: Callable[[str], str]) -> Iterator[tuple[Page, Complaints]]:
    with browser(program("chromium")) as running:
        shown = running.new_page(viewport={"width": 1280, "height": 900})
        shown.set_default_timeout(60_000)
        complaints = listen(shown, server.url)
        shown.goto(server.url)
        shown.get_by_role("link", name=wrong).first.click()
        yield shown, complaints
        assert complaints.texts == []


def settled(page: Page) -> None:
    """What comes later may move what is there already."""
    page.wait_for_function("() => document.querySelector('.sweep') === null")
    drawn(page)


def saved(page: Page, label: str, folder: Path) -> tuple[str, bytes]:
    """Name and content of what the button gives."""
    with page.expect_download(timeout=60_000) as download:
        page.get_by_role("button", name=label).click()
    path = folder / "picture.png"
    download.value.save_as(path)
    return download.value.suggested_filename, path.read_bytes()


@pytest.mark.parametrize("how", ["plain", "plotly"])
def test_a_chart_becomes_a_picture(page: tuple[Page, Complaints], how: str, tmp_path: Path) -> None:
    shown, _ = page
    if how == "plain":
        shown.route("**/plotly.min.js", lambda route: None)  # it never comes
        shown.reload()
    plot = shown.locator("section.chart", has_text="Gradient norm").locator(".plot")
    plot.locator(".js-plotly-plot .main-svg" if how == "plotly" else "canvas").first.wait_for(timeout=60_000)
    settled(shown)
    box = plot.bounding_box()
    assert box is not None
    name, png = saved(shown, "Save as PNG: Gradient norm", tmp_path)
    assert name == "floatscope-img-src-x-onerror-alert-1-Gradient-norm.png"
    _check(shown, png, box["width"], box["height"])


def test_a_heat_map_becomes_a_picture_with_its_legend(page: tuple[Page, Complaints], tmp_path: Path) -> None:
    shown, _ = page
    cells = shown.locator(".heat-map")
    cells.wait_for(timeout=60_000)
    settled(shown)
    box, scale = cells.bounding_box(), shown.locator(".legend canvas").bounding_box()
    assert box is not None
    assert scale is not None
    name, png = saved(shown, "Save as PNG: Layers", tmp_path)
    assert name.endswith("-Headroom-bits.png")
    _check(shown, png, box["width"], box["y"] + box["height"] - scale["y"])


def _check(page: Page, png: bytes, width: float, height: float) -> None:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    size = struct.unpack(">II", png[16:24])
    assert size == pytest.approx((2 * (width + 28), 2 * (height + 74)), abs=4)
    caption, picture = page.evaluate(_COLOURS, f"data:image/png;base64,{base64.b64encode(png).decode()}")
    assert caption > 8
    assert picture > 3


def test_the_page_offers_the_report_in_its_language(page: tuple[Page, Complaints], tmp_path: Path) -> None:
    shown, _ = page
    with shown.expect_download(timeout=60_000) as download:
        shown.get_by_role("link", name="Report").click()
    assert download.value.suggested_filename == "floatscope-img-src-x-onerror-alert-1.html"
    target = tmp_path / "report.html"
    download.value.save_as(target)
    assert "Worst headroom" in target.read_text()
