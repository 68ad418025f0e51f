"""A browser that keeps nothing, a server whose answers cannot be read, and addresses of what is not there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from floatscope import wire
from tests.chromium import Complaints, browser, listen
from tests.e2e.scaled_runs import tell, tell_bf16
from tests.pages import serving
from tests.server.bodies import layer, scalars, summaries

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

NO_STORAGE = """Object.defineProperty(window, "localStorage", {
  get() { throw new DOMException("Access is denied for this document.", "SecurityError"); },
})"""
LOADED = "() => document.querySelector('main h1, main h2, main strong') && document.querySelector('.sweep') === null"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[tuple[Browser, str]]:
    with serving(tmp_path_factory.mktemp("odd") / "data") as url, browser(program("chromium")) as running:
        parts = (summaries("grad", 0, [[1.0]] * 20), summaries("act", 0, [[1.0]] * 20))
        body = wire.Body(steps=20, summaries=parts, scalars=(scalars("loss", 0, [2.0] * 20),))
        address = url.removeprefix("http://")
        tell(address, "fine", [body], layers=[layer(0, "a.up", ("grad", "fp16"), ("act", "fp16"))])
        tell_bf16(address, "other")
        yield running, url


@pytest.fixture
def page(place: tuple[Browser, str]) -> Iterator[Page]:
    running, url = place
    context = running.new_context(
        viewport={"width": 1440, "height": 900}, locale="en-US", base_url=url, color_scheme="dark"
    )
    page = context.new_page()
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    yield page
    context.close()


@pytest.fixture
def complaints(page: Page, place: tuple[Browser, str]) -> Complaints:
    return listen(page, place[1])


def test_a_browser_that_keeps_nothing_shows_everything(page: Page, complaints: Complaints) -> None:
    page.add_init_script(NO_STORAGE)
    page.goto("/#/")
    expect(page.get_by_role("link", name="fine", exact=True)).to_be_visible()
    page.get_by_role("button", name="Light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("button", name="English")).to_be_visible()
    page.get_by_role("link", name="fine", exact=True).click()
    page.wait_for_function(LOADED)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert complaints.texts == []


def test_where_the_system_picks_the_colours_pictures_go_with_it_and_the_tab_is_told(place: tuple[Browser, str]) -> None:
    running, url = place
    context = running.new_context(color_scheme="light", forced_colors="active", base_url=url)
    context.add_init_script("localStorage.setItem('floatscope.theme', 'dark')")
    page = context.new_page()
    page.goto("/#/run/fine/layers?kind=grad")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    line = "element => getComputedStyle(element).borderBottomColor"
    here, there = (page.locator(f".tabs a{which}").first for which in ("[aria-current]", ":not([aria-current])"))
    assert here.evaluate(line) != there.evaluate(line)
    page.emulate_media(forced_colors="none")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    context.close()


@pytest.mark.parametrize(
    "address",
    [
        "run/nobody?kind=grad",
        "run/nobody/layers?kind=grad&layer=a",
        "run/fine?format=fp7&kind=grad",
        "compare?runs=fine,nobody",
        "compare?runs=fine,other&a=0&b=0",
        f"run/{'z' * 3000}",
    ],
)
def test_an_address_of_what_is_not_there_says_so_and_asks_for_nothing(
    page: Page, complaints: Complaints, address: str
) -> None:
    page.goto(f"/#/{address}")
    page.wait_for_function(LOADED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    assert complaints.texts == []


def _html(route: Route) -> None:
    route.fulfill(content_type="text/html", body="<html>Sign in to the network</html>")


def _half(route: Route) -> None:
    """The first half of what the server sent."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.body()[: len(answer.body()) // 2])


@pytest.mark.parametrize(
    ("question", "spoil"),
    [("heatmap", _html), ("heatmap", _half), ("scalars", _half), ("runs", _half), ("session", _html)],
)
def test_an_answer_that_cannot_be_read_is_said_and_asked_for_again(
    page: Page, spoil: Callable[[Route], None], question: str
) -> None:
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(str(error)))
    pattern = re.compile(rf"/api/v1/(.*/)?{question}(\?|$)")
    page.route(pattern, spoil)
    page.goto("/#/run/fine/layers?kind=grad" if question != "scalars" else "/#/run/fine?kind=grad")
    failed = page.locator(".note.failed").first
    expect(failed).to_contain_text("The answer cannot be read.")
    page.unroute(pattern)
    failed.get_by_role("button", name="Try again now").click()
    expect(page.locator(".note.failed")).to_have_count(0)
    expect(page.locator(".heat-map canvas.cells")).to_be_visible()
    assert thrown == []
