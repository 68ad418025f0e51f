"""What a page loads, in which order, and what it keeps for the next time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.bench.page_loads import PROBE
from tests.chromium import browser
from tests.pages import serving

pytestmark = pytest.mark.browser

_FETCHED = """() => performance.getEntriesByType("resource").map((one) => ({
  path: new URL(one.name).pathname,
  address: one.name,
  start: performance.timeOrigin + one.startTime,
  transferred: one.transferSize,
}))"""


@pytest.fixture(scope="module")
def visitor(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]
) -> Iterator[tuple[BrowserContext, str]]:
    """Someone with an empty cache, and the address of a run with layers."""
    data = tmp_path_factory.mktemp("loading") / "data"
    size = ["--steps", "300", "--layers", "12", "--kinds", "1"]
    command = [sys.executable, "-m", "floatscope", "bench", "ingest", *size, "--data", str(data)]
    subprocess.run(command, check=True, capture_output=True)
    with serving(data) as url, browser(program("chromium")) as running:
        context = running.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
        context.set_default_timeout(60_000)
        context.add_init_script(path=PROBE)
        yield context, f"{url}/#/run/bench"


_ASKED = """(end) => performance.getEntriesByType("resource").some((one) => new URL(one.name).pathname.endsWith(end))"""


def _opened_heat(context: BrowserContext, address: str) -> tuple[Page, list[dict[str, Any]]]:
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("() => probe.useful !== null")
    # The list of runs may come after the heat map; what was asked is known once it has been answered.
    for end in ("/api/v1/runs", "/heatmap"):
        page.wait_for_function(_ASKED, arg=end)
    return page, page.evaluate(_FETCHED)


def _opened(context: BrowserContext, address: str) -> tuple[Page, list[dict[str, Any]]]:
    page, _ = _opened_heat(context, address)
    page.locator(".plot .main-svg").first.wait_for()
    return page, page.evaluate(_FETCHED)


def _plotly(fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in fetched if one["path"].endswith("/plotly.min.js")]


def test_the_chart_library_comes_once_and_after_the_heat_map(visitor: tuple[BrowserContext, str]) -> None:
    page, fetched = _opened(*visitor)
    (plotly,) = _plotly(fetched)
    assert plotly["transferred"] > 1_000_000
    put = page.evaluate("() => probe.drawn[0][0]")
    assert plotly["start"] > put
    # Every tab that has charts uses it, and none asks again.
    for tab in ("scaler", "devices", "config", "layers", "overview"):
        page.locator(".tabs a").filter(has_text=re.compile(f"^{tab}$", re.IGNORECASE)).click()
        page.locator(f".tab-{tab}").wait_for()
    page.locator(".plot .main-svg").first.wait_for()
    assert _plotly(page.evaluate(_FETCHED)) == [plotly]
    page.close()


def test_the_next_visit_finds_every_file_where_it_was(visitor: tuple[BrowserContext, str]) -> None:
    _opened(*visitor)[0].close()
    page, fetched = _opened(*visitor)
    files = [one for one in fetched if one["path"].startswith("/static/")]
    assert len(files) > 20
    assert [one["path"] for one in files if one["transferred"] > 0] == []
    assert len(_plotly(fetched)) == 1
    page.close()


_WIDTHS = """window.widths = [];
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...pixels) {
  window.widths.push(this.canvas.width);
  put.apply(this, pixels);
};"""


def test_no_picture_is_painted_before_it_has_its_width(visitor: tuple[BrowserContext, str]) -> None:
    context, address = visitor
    page = context.new_page()
    page.add_init_script(_WIDTHS)
    page.goto(address)
    page.wait_for_function("() => probe.useful !== null")
    widths = page.evaluate("() => widths")
    assert widths
    assert min(widths) > 500
    page.close()


def test_what_other_places_need_comes_after_the_charts(visitor: tuple[BrowserContext, str]) -> None:
    page, fetched = _opened_heat(*visitor)
    desk, chinese = "/view/desk/page.js", "/i18n/zh.js"
    assert not [one for one in fetched if one["path"].endswith((desk, chinese))]
    page.wait_for_function(
        """(names) => {
          const fetched = performance.getEntriesByType("resource");
          return names.every((name) => fetched.some((one) => one.name.endsWith(name)));
        }""",
        arg=[desk, chinese],
    )
    late = [one for one in page.evaluate(_FETCHED) if one["path"].endswith((desk, chinese))]
    (plotly,) = _plotly(page.evaluate(_FETCHED))
    assert min(one["start"] for one in late) > plotly["start"]
    page.close()


def test_nothing_is_asked_twice(visitor: tuple[BrowserContext, str]) -> None:
    # What is asked before the modules are there is what they then want to know, whatever the address names.
    context, address = visitor
    for place in (address, f"{address}?kind=grad", f"{address}/layers?metric=rms&kind=grad&from=20&to=250"):
        page, fetched = _opened_heat(context, place)
        asked = Counter(one["address"] for one in fetched if "/api/v1/" in one["path"])
        assert sum("/heatmap?" in one for one in asked) == 1
        assert sum(urlsplit(one).path == "/api/v1/runs" for one in asked) == 1
        assert {one: times for one, times in asked.items() if times > 1} == {}
        page.close()
