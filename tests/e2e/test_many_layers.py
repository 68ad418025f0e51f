"""The tab of layers of a run with 5,000 of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.chromium import Visit, visiting
from tests.e2e.many_layers import LAYERS, PARTS, SPIKE_LAYER, SPIKE_STEP, STEPS, tell_many
from tests.pages import serving

pytestmark = pytest.mark.browser

SICK = f"model.layers.{SPIKE_LAYER // len(PARTS)}.{PARTS[SPIKE_LAYER % len(PARTS)]}"
EACH = 6
"""Layers to a line of pixels: 5,000 in 900 pixels."""

_COLOUR = """([line, share]) => {
  const canvas = document.querySelector(".heat-map canvas.cells");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  return [...copy.getImageData(Math.floor(share * canvas.width), line, 1, 1).data].join();
}"""


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Visit]:
    with serving(tmp_path_factory.mktemp("many") / "data") as url:
        tell_many(url.removeprefix("http://"), "many")
        with visiting(program("chromium"), url) as visit:
            visit.go("run/many/layers?kind=grad")
            visit.page.locator(".heat-map canvas.cells").wait_for()
            yield visit


def test_the_worst_of_the_layers_of_a_line_is_seen(visit: Visit) -> None:
    page = visit.page
    expect(page.get_by_role("status").filter(has_text="layers")).to_contain_text(
        f"5,000 of 5,000 layers \u00b7 each line of pixels shows the worst of {EACH}"
    )
    line, share = SPIKE_LAYER // EACH, (SPIKE_STEP + 0.5) / STEPS
    page.wait_for_function(f"(at) => ({_COLOUR})(at) !== '0,0,0,0'", arg=[line, share])
    colours = [page.evaluate(_COLOUR, [at, share]) for at in (line - 1, line, line + 1)]
    assert colours[0] == colours[2] != colours[1]
    canvas = page.locator(".heat-map canvas.cells")
    canvas.evaluate("canvas => canvas.scrollIntoView()")
    box = canvas.bounding_box()
    assert box is not None
    assert canvas.evaluate("canvas => canvas.clientHeight") == -(-LAYERS // EACH)
    page.mouse.move(box["x"] + share * box["width"], box["y"] + line + 0.5)
    expect(page.locator("#readout")).to_contain_text(SICK)
    expect(page.locator("#readout")).to_contain_text("Over the limit")


def test_layers_are_found_grouped_and_opened(visit: Visit) -> None:
    page = visit.page
    counted = page.get_by_role("status").filter(has_text="layers")
    page.get_by_role("searchbox", name="Filter").fill("*.router")
    expect(counted).to_contain_text("500 of 5,000 layers")
    page.get_by_role("searchbox", name="Filter").fill("")
    page.get_by_role("combobox", name="Group").select_option("block")
    expect(counted).to_contain_text("in 500 lines")
    page.get_by_role("combobox", name="Order").select_option("worst")
    page.locator(".heat-map").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#readout")).to_contain_text(SICK.rpartition(".layers.")[2].split(".")[0])
    page.keyboard.press("Enter")
    expect(counted).to_contain_text("in 509 lines")
    page.get_by_role("combobox", name="Group").select_option("")
    expect(counted).to_contain_text("each line of pixels")
    page.locator(".heat-map").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#readout")).to_contain_text(SICK)
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name=SICK)).to_be_visible()
    expect(
        page.get_by_role("complementary", name=SICK).get_by_role("img", name=re.compile("^Headroom"))
    ).to_be_visible()


def test_the_page_is_no_larger_than_that_of_a_few_layers(visit: Visit) -> None:
    # Cells and names are on canvases; what is in the document does not go with the number of layers.
    assert visit.page.evaluate("document.querySelectorAll('*').length") < 900


def test_nothing_complained(visit: Visit) -> None:
    assert visit.complaints.texts == []
