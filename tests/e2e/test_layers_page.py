"""The tab of layers and the drawer of one in a real browser, over a server that was told by agents' frames."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.e2e.scaled_runs import MARKUP, tell
from tests.pages import serving
from tests.server.bodies import histogram, layer, summaries

pytestmark = pytest.mark.browser

STEPS, BLOCK = 100_000, 1_000
SPIKE, SPIKE_LAYER = 77_777, 5
NAMES = [f"blocks.{block}.{part}" for block in range(4) for part in ("attention", "up", "down")]
SICK = "blocks.0.attention"
ALL_NAN = "blocks.3.down"


def _long(address: str) -> None:
    """A run of 100,000 steps with one step in which one layer is over its limit."""
    table = [layer(i, name, ("grad", "e5m2")) for i, name in enumerate(NAMES)]
    bodies = []
    for first in range(0, STEPS, BLOCK):
        absmax = np.full((BLOCK, len(NAMES)), 1.0, np.float32)
        if first <= SPIKE < first + BLOCK:
            absmax[SPIKE - first, SPIKE_LAYER] = 2.0**17
        bodies.append(wire.Body(first_step=first, steps=BLOCK, summaries=(summaries("grad", first, absmax),)))
    tell(address, "long", bodies, layers=table)


def _sick(address: str) -> None:
    """Twenty steps in which one layer is over its limit at the end, and one has nothing finite at all."""
    cast = [wire.Operand(kind="grad", format=name, role="cast") for name in ("fp16", "e5m2")]
    table = [
        msgspec.structs.replace(layer(i, name), operands=(cast[i % 2],)) for i, name in enumerate([*NAMES, MARKUP])
    ]
    absmax = np.ones((20, len(table)), np.float32)
    absmax[15:, NAMES.index(SICK)] = 2.0**18
    nans = np.zeros((1, len(table)), np.int64)
    absmax[:, NAMES.index(ALL_NAN)], nans[:, NAMES.index(ALL_NAN)] = 0.0, 100
    bodies = [
        wire.Body(
            first_step=step,
            steps=1,
            summaries=(summaries("grad", step, absmax[step : step + 1], nans=nans),),
            histograms=(histogram(step, 250 + step % 3, [5, 40, 90, 40, 5]),) if step % 5 == 0 else (),
        )
        for step in range(20)
    ]
    tell(address, "sick", bodies, layers=table)
    one = [wire.Body(first_step=0, steps=1, summaries=(summaries("grad", 0, [[1.0]]),))]
    tell(address, "one", one, layers=table[:1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("layers") / "data") as url:
        address = url.removeprefix("http://")
        _long(address)
        _sick(address)
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def _go(visit: Visit, place: str) -> None:
    visit.go(f"run/{place}")
    visit.page.locator(".heat-map canvas.cells").wait_for()


_PIXEL = """([row, rows, share]) => {
  const canvas = document.querySelector(".heat-map canvas.cells");
  const x = Math.floor(share * canvas.width), y = Math.floor(((row + 0.5) / rows) * canvas.height);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  return [...copy.getImageData(x - 1, y - 2, 3, 5).data].join();
}"""


def test_one_step_of_a_hundred_thousand_is_seen(visit: Visit) -> None:
    path = "/api/v1/runs/long/heatmap?kind=grad&metric=headroom&columns=600"
    with urllib.request.urlopen(visit.url + path, timeout=60) as answer:
        grid = json.load(answer)
    values = grid["values"][SPIKE_LAYER]
    over = [column for column, value in enumerate(values) if value is not None and float(value) < 0]
    assert len(over) == 1
    assert grid["columns"][over[0]] <= SPIKE < grid["columns"][over[0]] + grid["cell"]
    _go(visit, f"long/layers?kind=grad&from=0&to={STEPS - 1}")
    page = visit.page

    def pixels(row: int, step: int) -> str:
        found: str = page.evaluate(_PIXEL, [row, len(NAMES), (step + 0.5) / STEPS])
        return found

    page.wait_for_function(f"(args) => ({_PIXEL})(args).split(',').some((part) => part !== '0')", arg=[0, 12, 0.5])
    calm = pixels(0, SPIKE)
    assert pixels(SPIKE_LAYER, SPIKE) != calm
    assert pixels(SPIKE_LAYER, SPIKE - 5_000) == calm == pixels(SPIKE_LAYER - 1, SPIKE)


def test_from_a_red_cell_to_the_layer_its_histogram_and_its_alerts(visit: Visit) -> None:
    page = visit.page
    _go(visit, "sick/layers?kind=grad")
    box = page.locator(".heat-map canvas.cells").bounding_box()
    assert box is not None
    # One click.
    page.mouse.click(box["x"] + box["width"] * 17.5 / 20, box["y"] + 4)
    drawer = page.get_by_role("complementary", name=SICK)
    expect(drawer.get_by_role("img", name=re.compile("Histogram of the exponents"))).to_be_visible()
    expect(drawer.get_by_role("img", name=re.compile("Headroom, bits"))).to_be_visible()
    expect(drawer).to_contain_text("Over the format's limit")
    expect(drawer.get_by_role("row").filter(has_text="e4m3fn")).to_contain_text("2")
    assert "step=17" in page.url
    page.keyboard.press("]")
    expect(page.get_by_role("complementary", name=NAMES[1])).to_be_visible()
    page.keyboard.press("[")
    expect(drawer).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    assert page.evaluate("document.activeElement.className") == "heat-map"


def test_the_histogram_of_a_layer_is_saved(visit: Visit) -> None:
    page = visit.page
    _go(visit, f"sick/layers?kind=grad&layer={SICK}")
    drawer = page.get_by_role("complementary", name=SICK)
    with page.expect_download() as download:
        drawer.get_by_role("button", name=re.compile("PNG: .*Exponents")).click()
    assert download.value.suggested_filename.startswith(f"floatscope-sick-{SICK}")
    with Image.open(download.value.path()) as picture:
        assert picture.height > 2 * 360


def test_layers_are_filtered_grouped_and_sorted_by_the_address(visit: Visit) -> None:
    page = visit.page
    _go(visit, "sick/layers?kind=grad")
    counted = page.get_by_role("status").filter(has_text="layers")
    expect(counted).to_have_text("13 of 13 layers")
    page.get_by_role("searchbox", name="Filter").press_sequentially("*.up", delay=20)
    expect(counted).to_have_text("4 of 13 layers")
    assert "filter=*.up" in page.url
    page.get_by_role("searchbox", name="Filter").fill("no such layer")
    expect(page.get_by_text("No layer matches")).to_be_visible()
    page.get_by_role("searchbox", name="Filter").fill("")
    page.get_by_role("combobox", name="Group").select_option("block")
    expect(counted).to_contain_text("in 5 lines")
    # The worst group is the one without a finite value.
    page.get_by_role("combobox", name="Order").select_option("worst")
    page.locator(".heat-map").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#readout")).to_contain_text("blocks.3")
    expect(page.locator("#readout")).to_contain_text("worst of 3 layers")
    page.keyboard.press("Enter")
    expect(counted).to_contain_text("in 7 lines")
    page.get_by_role("button", name="blocks.3").click()
    expect(counted).to_contain_text("in 5 lines")
    assert {"group=block", "sort=worst"} <= set(page.url.partition("?")[2].split("&"))


def test_the_meter_has_every_layer_whatever_the_heat_map_shows(visit: Visit) -> None:
    for place in ("sick/layers?kind=grad&metric=rms", "sick/layers?kind=grad"):
        _go(visit, place)
        expect(visit.page.get_by_role("img", name=re.compile("^Headroom of 13 layers"))).to_be_visible()
    visit.go("run/sick/config?kind=grad")
    expect(visit.page.get_by_role("img", name=re.compile("^Headroom of 13 layers"))).to_be_visible()


def test_a_run_of_one_step_and_one_layer(visit: Visit) -> None:
    _go(visit, "one/layers?kind=grad")
    expect(visit.page.get_by_role("status").filter(has_text="layer")).to_have_text("1 of 1 layer")
    visit.page.locator(".heat-map").focus()
    visit.page.keyboard.press("Enter")
    expect(visit.page.get_by_role("complementary", name=NAMES[0])).to_be_visible()


def test_nothing_complained(visit: Visit) -> None:
    assert visit.complaints.texts == []
