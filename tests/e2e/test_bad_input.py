"""Names, layers, values and machines as nobody wishes them, before a real browser."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from floatscope import wire
from tests.chromium import browser, listen
from tests.e2e.scaled_runs import MARKUP, tell
from tests.pages import serving
from tests.server.bodies import histogram, layer, scalars, summaries
from tests.server.conftest import Agent

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

TABS = ("", "/layers", "/scaler", "/devices", "/config")
NAMES = [f"blocks.{i}.up" for i in range(4)]


class Training:
    """A run that goes on, two steps a second, whatever becomes of the server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.steps = 0
        self._over = Event()
        self._thread = Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        agent = Agent(
            address=self.address, run="live", layers=[layer(i, n, ("grad", "fp16")) for i, n in enumerate(NAMES)]
        )
        while not self._over.wait(0.5):
            body = wire.Body(
                first_step=self.steps,
                steps=1,
                summaries=(summaries("grad", self.steps, np.ones((1, len(NAMES)), np.float32)),),
                histograms=(histogram(self.steps, 250, [5, 90, 5]),),
                scalars=(scalars("loss", self.steps, [2.0]),),
            )
            try:
                if agent._socket is None:
                    agent.connect()
                agent.deliver(body)
            except Exception:  # noqa: BLE001 - no server for a while
                agent._socket = None
                continue
            self.steps += 1
        agent.close()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _odd_runs(address: str) -> None:
    """A run of one step and one layer whose every name is markup, and one in which no value is finite."""
    odd = msgspec.structs.replace(layer(0, MARKUP, ("grad", "fp16")), module_type=MARKUP)
    body = wire.Body(
        steps=1,
        summaries=(summaries("grad", 0, [[2.0**17]]),),
        histograms=(histogram(0, 250, [5, 90, 5]),),
        scalars=(scalars("loss", 0, [2.0]), scalars(MARKUP, 0, [1.0])),
        events=(wire.Event(step=0, kind="skipped", detail={"optimizer": 0, "scale": 1.0, MARKUP: MARKUP}),),
    )
    tell(address, MARKUP, [body], layers=[odd], config={MARKUP: MARKUP, "arguments": {MARKUP: {"a": MARKUP}}})
    steps, names = 40, NAMES
    nan = [float("nan")] * steps
    counts = np.full((steps, len(names)), 100, np.int64)
    parts = tuple(
        summaries(kind, 0, np.zeros((steps, len(names)), np.float32), nans=counts, absmin=np.inf)
        for kind in ("grad", "act", "update", "weight")
    )
    body = wire.Body(
        steps=steps,
        summaries=parts,
        scalars=tuple(scalars(name, 0, nan) for name in ("loss", "grad_norm", "lr", "loss_scale", "step_time_s")),
    )
    tell(address, "all NaN", [body], layers=[layer(i, name, ("grad", "fp16")) for i, name in enumerate(names)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad") / "data"


class Place:
    """A server that can be stopped and started again at its address, and a browser."""

    def __init__(self, data: Path, running: Browser) -> None:
        self.running = running
        self._data = data
        self._stack = ExitStack()
        self._port = "0"
        self.start()

    def start(self) -> None:
        self.url = self._stack.enter_context(serving(self._data, "--port", self._port))
        self._port = self.url.rpartition(":")[2]

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def place(data: Path, program: Callable[[str], str]) -> Iterator[Place]:
    with browser(program("chromium")) as running:
        place = Place(data, running)
        address = place.url.removeprefix("http://")
        _odd_runs(address)
        training = Training(address)
        try:
            yield place
        finally:
            training.stop()
            place.stop()


@contextmanager
def _page(place: Place, at: dt.datetime | None = None) -> Iterator[Page]:
    """A page of a new visitor; ``at`` is what the clock of the browser says, which goes on from there."""
    context = place.running.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    if at is not None:
        page.clock.install(time=at)
    yield page
    context.close()


def _link(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator("header .link")).to_contain_text(text)


def _newest(page: Page) -> int:
    """The step that the page says is the newest."""
    page.locator(".readings").wait_for()
    shown = page.locator(".readings div").filter(has_text="Step").locator("dd").inner_text()
    return int(shown.replace(",", "")) if shown[0].isdigit() else -1


def _goes_on(page: Page) -> None:
    """New steps come."""
    before, end = _newest(page), time.monotonic() + 60
    while _newest(page) <= before:
        assert time.monotonic() < end, "no new step"
        page.wait_for_timeout(100)


@pytest.mark.parametrize("run", [MARKUP, "all NaN"])
def test_every_tab_stands_names_with_markup_one_step_and_no_finite_value(place: Place, run: str) -> None:
    with _page(place) as page:
        complaints = listen(page, place.url)
        page.on("dialog", lambda dialog: complaints.texts.append(f"dialog {dialog.message}"))
        for tab in TABS:
            page.goto(f"{place.url}/#/run/{quote(run, safe='')}{tab}?kind=grad")
            page.get_by_role("article", name=run).wait_for()
            page.wait_for_function("() => document.querySelector('.sweep') === null")
            assert page.locator("main img:not([src^='blob:'])").count() == 0
        page.goto(f"{place.url}/#/run/{quote(run, safe='')}/layers?kind=grad")
        page.locator(".heat-map").focus()
        page.keyboard.press("Home")
        expect(page.locator("#readout")).to_contain_text("Over the limit" if run == MARKUP else "NaN or infinity")
        page.keyboard.press("Enter")
        expect(page.get_by_role("complementary", name=MARKUP if run == MARKUP else NAMES[0])).to_be_visible()
        page.wait_for_function("() => document.querySelector('.sweep') === null")
        for metric in ("absmax", "rms", "mean", "zeros", "underflow", "nonfinite", "ratio"):
            page.get_by_label("Metric").first.select_option(metric)
            page.wait_for_function("() => document.querySelector('.sweep') === null")
        page.goto(f"{place.url}/#/compare?runs={quote(MARKUP, safe='')},all%20NaN")
        page.locator(".compare h2").first.wait_for()
        page.wait_for_function("() => document.querySelector('.sweep') === null")
        assert complaints.texts == []


@pytest.mark.parametrize("days", [-3, 3])
def test_the_browsers_clock_is_days_off(place: Place, days: int) -> None:
    with _page(place, dt.datetime.now(dt.UTC) + dt.timedelta(days=days)) as page:
        page.goto(f"{place.url}/#/run/live")
        _link(page, "Connected")
        _goes_on(page)
        expect(page.locator(".readings")).to_contain_text(re.compile("live", re.IGNORECASE))
        _link(page, "Connected")
        # The training has gone on for minutes at most, whatever the clock says.
        assert page.locator(".readings div").filter(has_text="Duration").locator("dd").inner_text().startswith("00:")
        page.goto(f"{place.url}/#/")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="live", exact=True))
        expect(row.locator(".runstate")).to_have_text(re.compile("^live$", re.IGNORECASE))


def test_the_server_is_started_again_while_the_page_is_open(place: Place) -> None:
    with _page(place) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&filter=up&layer={NAMES[0]}")
        drawer = page.get_by_role("complementary", name=NAMES[0])
        expect(drawer.get_by_role("img", name=re.compile("Histogram"))).to_be_visible()
        view = page.url
        place.stop()
        _link(page, "Stale since")
        # What was drawn stays.
        expect(drawer.get_by_role("img", name=re.compile("Histogram"))).to_be_visible()
        expect(page.locator(".heat-map canvas.cells")).to_be_visible()
        page.wait_for_timeout(3000)
        place.start()
        _link(page, "Connected")
        _goes_on(page)
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


def test_the_network_is_gone_for_an_hour(place: Place) -> None:
    with _page(place, dt.datetime.now(dt.UTC)) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&layer={NAMES[0]}")
        _goes_on(page)
        view = page.url
        page.context.set_offline(True)
        _link(page, "Stale since")
        said = page.locator("header .link").inner_text()
        since = re.search(r"\d\d:\d\d:\d\d", said)
        assert since is not None
        asked = _counted(page)
        page.clock.fast_forward("01:00:00")
        page.wait_for_timeout(1000)
        # It is said how old the picture is, not when it was tried last.
        _link(page, since[0])
        expect(page.locator(".heat-map canvas.cells")).to_be_visible()
        # Nobody knows how the run fares: it is not called silent for an hour.
        expect(page.locator(".readings")).not_to_contain_text("silent")
        page.context.set_offline(False)
        _link(page, "Connected")
        _goes_on(page)
        assert page.url == view
        assert max(asked.values()) <= 12, asked


def test_the_tab_sleeps_overnight(place: Place) -> None:
    with _page(place, dt.datetime.now(dt.UTC)) as page:
        page.goto(f"{place.url}/#/run/live/layers?kind=grad&layer={NAMES[0]}")
        _goes_on(page)
        before = _newest(page)
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        held = session.send("Runtime.getHeapUsage")["usedSize"]
        asked = _counted(page)
        session.send("Page.setWebLifecycleState", {"state": "frozen"})
        # Meanwhile the run goes on.
        time.sleep(5)
        session.send("Page.setWebLifecycleState", {"state": "active"})
        page.clock.fast_forward("10:00:00")
        _goes_on(page)
        assert _newest(page) > before
        _link(page, "Connected")
        assert max(asked.values()) <= 6, asked
        session.send("HeapProfiler.collectGarbage")
        assert session.send("Runtime.getHeapUsage")["usedSize"] - held < 16 << 20
