"""Ranges of steps on the tab of layers, by dragging and by two fingers, and what the server makes of them; ratios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import CDPSession, FloatRect, Page, expect

from floatscope import wire
from tests.chromium import Visit, drawn, visiting
from tests.e2e.scaled_runs import tell
from tests.pages import serving
from tests.server.bodies import histogram, layer, scalars, summaries

pytestmark = pytest.mark.browser

STEPS, BLOCK, SPIKE = 4096, 1024, 3333
NAMES = [f"blocks.{i}.up" for i in range(6)]


def _train(address: str) -> None:
    """A run of 4,096 steps: gradients with one bad step, and every 64 steps updates too large, healthy and tiny."""
    table = [layer(i, name, ("grad", "e5m2")) for i, name in enumerate(NAMES)]
    bodies = []
    for first in range(0, STEPS, BLOCK):
        absmax = np.ones((BLOCK, len(NAMES)), np.float32)
        if first <= SPIKE < first + BLOCK:
            absmax[SPIKE - first, 2] = 2.0**17
        bodies.append(
            wire.Body(
                first_step=first,
                steps=BLOCK,
                summaries=(summaries("grad", first, absmax),),
                histograms=tuple(histogram(first + i, 250, [5, 90, 5]) for i in range(0, BLOCK, 64)),
                scalars=(scalars("loss", first, [2.0] * BLOCK),),
            )
        )
    sizes = np.array([[0.5, 1e-3, 1e-9]], np.float32)
    for step in range(0, STEPS, 64):
        parts = summaries("update", step, sizes), summaries("weight", step, np.ones((1, 3), np.float32))
        bodies.append(wire.Body(first_step=step, steps=1, summaries=parts))
    tell(address, "run", bodies, layers=table)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("ranges") / "data") as url:
        _train(url.removeprefix("http://"))
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def _settled(page: Page) -> None:
    """What comes later may move what is there already."""
    drawn(page)
    page.locator(".heat-map canvas.cells").wait_for()
    page.wait_for_function("() => document.querySelector('.sweep') === null")
    drawn(page)


def _go(page: Page, url: str, place: str) -> FloatRect:
    """Where the cells are."""
    page.goto(f"{url}/#/run/run/layers?{place}")
    _settled(page)
    box = page.locator(".heat-map canvas.cells").bounding_box()
    assert box is not None
    return box


def _drag(page: Page, box: FloatRect | None, start: float, end: float, y: float = 30) -> None:
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + y, steps=4)
    page.mouse.up()


def test_a_zoom_refines_to_single_steps(visit: Visit) -> None:
    page = visit.page
    box = _go(page, visit.url, "kind=grad")
    readout = page.locator("#readout")
    # The columns of the whole run are 8 steps wide, and the bad step is the worst of its column.
    column = (SPIKE // 8 * 8 + 4) / STEPS
    page.mouse.move(box["x"] + box["width"] * column, box["y"] + 2.5 * 16)
    expect(readout).to_contain_text("steps 3,328\u20133,335")
    expect(readout).to_contain_text("Over the limit")
    with page.expect_response(lambda answer: "/heatmap?" in answer.url and "from=" in answer.url):
        _drag(page, box, column - 0.01, column + 0.01)
    expect(page).to_have_url(re.compile(r"from=32\d\d&to=33\d\d"))
    page.wait_for_function("() => document.querySelector('.sweep') === null")
    first, last = (int(found) for found in re.findall(r"(?:from|to)=(\d+)", page.url))
    assert first < SPIKE < last
    page.mouse.move(box["x"] + box["width"] * (SPIKE + 0.5 - first) / (last + 1 - first), box["y"] + 2.5 * 16)
    expect(readout).to_contain_text(f"step {SPIKE:,}")
    expect(readout).to_contain_text("Over the limit")
    page.mouse.dblclick(box["x"] + 5, box["y"] + 30)
    expect(page).not_to_have_url(re.compile("from="))


def test_a_drag_over_the_charts_of_a_layer_moves_the_map(visit: Visit) -> None:
    page = visit.page
    _go(page, visit.url, f"kind=grad&layer={NAMES[0]}")
    names = ("^Histogram of the exponents", "^Headroom")
    charts = [page.get_by_role("complementary").get_by_role("img", name=re.compile(name)) for name in names]
    for chart in charts:
        for each in charts:
            expect(each).to_be_visible()
        _settled(page)
        chart.scroll_into_view_if_needed()
        _drag(page, chart.bounding_box(), 0.3, 0.5)
        expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
        chart.dblclick(position={"x": 100, "y": 30})
        expect(page).not_to_have_url(re.compile("from="))


def test_the_update_ratio_has_a_healthy_band(visit: Visit) -> None:
    page = visit.page
    _go(page, visit.url, "kind=grad")
    page.get_by_label("Metric").select_option("ratio")
    expect(page).to_have_url(re.compile("kind=update&metric=ratio"))
    expect(page.get_by_role("status").filter(has_text="layers")).to_have_text("3 of 3 layers")
    page.locator(".heat-map").focus()
    page.keyboard.press("Home")
    readout = page.locator("#readout")
    for meaning in ("more than 0.1 of", "lets 1e\u22127 to 0.1 pass", "less than 1e\u22127 of"):
        expect(readout).to_contain_text(meaning)
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("complementary", name=NAMES[2])
    expect(drawer.get_by_role("img", name=re.compile("Update ratio"))).to_be_visible()
    page.get_by_label("Kind").select_option("grad")
    expect(page).not_to_have_url(re.compile("ratio"))
    expect(page.get_by_label("Metric")).to_have_value("headroom")


def _touch(session: CDPSession, kind: str, *points: tuple[float, float]) -> None:
    found = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
    session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": found})


def test_two_fingers_zoom_and_move_one_scrolls(visit: Visit) -> None:
    browser = visit.page.context.browser
    assert browser is not None
    context = browser.new_context(viewport={"width": 390, "height": 500}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{visit.url}/#/run/run/layers?kind=grad")
    _settled(page)
    canvas = page.locator(".heat-map canvas.cells")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    session = context.new_cdp_session(page)
    y, middle = box["y"] + 40, box["x"] + box["width"] / 2
    scrolled = page.evaluate("scrollY")
    _touch(session, "touchStart", (middle - 40, y), (middle + 40, y))
    for far in (50, 60, 70, 80):
        _touch(session, "touchMove", (middle - far, y + far / 4), (middle + far, y - far / 4))
    _touch(session, "touchEnd")
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    first, last = (int(found) for found in re.findall(r"(?:from|to)=(\d+)", page.url))
    assert last - first + 1 == pytest.approx(STEPS / 2, rel=0.1)
    assert page.evaluate("visualViewport.scale") == 1
    # Less than a finger went up and down: what the page says of the range may take a line more.
    assert abs(page.evaluate("scrollY") - scrolled) < 10
    _touch(session, "touchStart", (middle - 20, y), (middle + 20, y))
    _touch(session, "touchMove", (middle + 40, y), (middle + 80, y))
    _touch(session, "touchEnd")
    page.wait_for_function("(first) => Number(/from=(\\d+)/.exec(location.hash)?.[1]) < first", arg=first)
    moved = [int(found) for found in re.findall(r"(?:from|to)=(\d+)", page.url)]
    assert moved[1] - moved[0] == last - first
    # What one finger does is the browser's: the page scrolls, the range stays.
    _touch(session, "touchStart", (middle, y))
    for up in range(10, 100, 10):
        _touch(session, "touchMove", (middle, y - up))
    _touch(session, "touchEnd")
    page.wait_for_function("(before) => scrollY > before", arg=scrolled)
    assert [int(found) for found in re.findall(r"(?:from|to)=(\d+)", page.url)] == moved
    context.close()


def test_nothing_complained(visit: Visit) -> None:
    assert visit.complaints.texts == []
