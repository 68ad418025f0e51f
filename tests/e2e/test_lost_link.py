"""A page that stays open while its server, its network or the machine under it goes away for a while."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from tests.e2e.watched_training import NAMES, Place, goes_on, newest, placed, says, visitor

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("lost") / "data", program("chromium")) as place:
        yield place


def test_the_server_is_started_again_while_the_page_is_open(place: Place) -> None:
    with visitor(place) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&filter=up&layer={NAMES[0]}")
        drawer = page.get_by_role("complementary", name=NAMES[0])
        expect(drawer.get_by_role("img", name=re.compile("Histogram"))).to_be_visible()
        view = page.url
        place.stop()
        says(page, "Stale since")
        # What was drawn stays.
        expect(drawer.get_by_role("img", name=re.compile("Histogram"))).to_be_visible()
        expect(page.locator(".heat-map canvas.cells")).to_be_visible()
        page.wait_for_timeout(3000)
        place.start()
        says(page, "Connected")
        goes_on(page)
        assert page.url == view
        expect(drawer.get_by_role("img", name=re.compile("Histogram"))).to_be_visible()
        expect(page.locator(".note.failed")).to_have_count(0)
        expect(page.get_by_role("searchbox", name="Filter")).to_have_value("up")


def _counted(page: Page) -> Counter[str]:
    """How often each address is asked for from now on, whatever the question."""
    asked: Counter[str] = Counter()

    def count(request: Request) -> None:
        asked[request.url.partition("?")[0].rpartition("/")[2]] += 1

    page.on("request", count)
    return asked


def _no_more_than(most: int, asked: Counter[str], began: float) -> None:
    """Beside what an open drawer asks anew every 5 s while columns come, however long the machine takes."""
    assert max(asked.values()) <= most + (time.monotonic() - began) / 5, asked


def test_the_network_is_gone_for_an_hour(place: Place) -> None:
    with visitor(place, dt.datetime.now(dt.UTC)) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&layer={NAMES[0]}")
        goes_on(page)
        view = page.url
        page.context.set_offline(True)
        says(page, "Stale since")
        said = page.locator("header .link").inner_text()
        since = re.search(r"\d\d:\d\d:\d\d", said)
        assert since is not None
        asked, began = _counted(page), time.monotonic()
        page.clock.fast_forward("01:00:00")
        page.wait_for_timeout(1000)
        # It is said how old the picture is, not when it was tried last.
        says(page, since[0])
        expect(page.locator(".heat-map canvas.cells")).to_be_visible()
        # Nobody knows how the run fares: it is not called silent for an hour.
        expect(page.locator(".readings")).not_to_contain_text("silent")
        page.context.set_offline(False)
        says(page, "Connected")
        goes_on(page)
        assert page.url == view
        _no_more_than(12, asked, began)


def test_the_tab_sleeps_overnight(place: Place) -> None:
    with visitor(place, dt.datetime.now(dt.UTC)) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&layer={NAMES[0]}")
        goes_on(page)
        before = newest(page)
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        held = session.send("Runtime.getHeapUsage")["usedSize"]
        asked, began = _counted(page), time.monotonic()
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        place.training.make(10)
        session.send("Page.setWebLifecycleState", {"state": "active"})
        page.clock.fast_forward("10:00:00")
        goes_on(page)
        assert newest(page) > before
        says(page, "Connected")
        _no_more_than(6, asked, began)
        session.send("HeapProfiler.collectGarbage")
        assert session.send("Runtime.getHeapUsage")["usedSize"] - held < 16 << 20
