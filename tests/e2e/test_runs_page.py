"""The list of runs in a real browser: what it says, filters and order in the address, tags, the archive, 500 runs."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.pages import serving
from tests.server.bodies import scalars, summaries
from tests.server.conftest import Agent

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)>, 50%"
CARD = "AMD Instinct MI300X"
NAMES = ".runs-table tbody th a"


def _train(url: str, name: str, *, config: dict[str, Any], formats: tuple[str, ...], top: float, card: bool) -> Agent:
    operands = tuple(wire.Operand(kind="act", format=format_) for format_ in formats)
    operands += (wire.Operand(kind="grad", format="fp16", scaling="delayed"),)
    known = [wire.Layer(index=0, name=f"{name}.up", module_type="Linear", parameters=16, order=0, operands=operands)]
    agent = Agent(address=url.removeprefix("http://"), run=name, layers=known, config=config)
    assert isinstance(agent.connect(), wire.Welcome)
    cards = (wire.Device(time_ns=time.time_ns(), backend="rocm", index=0, name=CARD, pci="0000:05:00.0"),)
    body = wire.Body(
        scalars=(scalars("loss", 0, [2.0, 1.5, 1.0, 0.5]), scalars("step_time_s", 0, [36.0] * 4)),
        summaries=(summaries("grad", 0, [[top]] * 4),),
        devices=cards if card else (),
    )
    assert isinstance(agent.deliver(body), wire.Ack)
    return agent


def _end(agent: Agent) -> None:
    agent.send(wire.Bye(seq=agent.seq + 1, reason="finished"))
    agent.hear()
    agent.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("runs") / "data") as address:
        wanted: dict[str, Any] = {"declared_precision": "fp8", "max_steps": 204}
        live = _train(address, "live", config=wanted, formats=("bf16",), top=2.0, card=True)
        _end(_train(address, MARKUP, config={}, formats=("fp16",), top=65504.0, card=False))
        _end(_train(address, "old", config={"statistics": {"cpu": "torch"}}, formats=(), top=1.0, card=False))
        yield address
        live.close()


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


@pytest.fixture(autouse=True)
def wide(visit: Visit) -> None:
    """The list as it is opened, on a wide screen."""
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    visit.go("")
    expect(_row(visit, "live")).to_be_visible()


def _row(visit: Visit, name: str) -> Any:  # noqa: ANN401 - a locator
    return visit.page.locator(".runs-table tbody tr").filter(has=visit.page.get_by_role("link", name=name, exact=True))


def _expect_names(page: Page, *names: str) -> None:
    """The list is drawn in the frame after it has changed."""
    expect(page.locator(NAMES)).to_have_text(list(names))


def test_a_line_says_how_far_the_run_is_and_what_it_runs_on(visit: Visit) -> None:
    live = _row(visit, "live")
    expect(live).to_contain_text("4 / 204")
    # 200 steps at 36 s.
    expect(live).to_contain_text("2h 00m left")
    expect(live.locator(".progress .second")).to_have_attribute("title", re.compile(r"200 steps .* 36\.00 s"))
    expect(live).to_contain_text("MI300X")
    expect(live.locator(".precision")).to_have_text("bf16, not fp8")
    expect(live.locator(".precision")).to_have_attribute("title", "declared fp8; 1 layer in bf16")
    expect(_row(visit, "old")).to_contain_text("CPU")
    hostile = _row(visit, MARKUP)
    expect(hostile.locator(".precision")).to_have_text("fp16")
    expect(hostile.locator(".headroom")).to_contain_text("0.0 bits")


def test_columns_sort_both_ways_and_the_address_says_so(visit: Visit) -> None:
    page = visit.page
    _expect_names(page, "old", MARKUP, "live")
    head = page.get_by_role("columnheader").filter(has_text="Worst headroom")
    head.get_by_role("button", name="Worst headroom").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.locator(NAMES).first).to_have_text(MARKUP)
    assert page.url.endswith("#/?sort=headroom")
    head.get_by_role("button", name="Worst headroom").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert page.url.endswith("#/?sort=headroom&order=desc")
    expect(page.locator(NAMES).last).to_have_text(MARKUP)
    page.reload()
    expect(page.locator("[aria-sort=descending]")).to_contain_text("Worst headroom")
    # The way back from a run leads to the list as it was.
    page.get_by_role("link", name="live", exact=True).click()
    expect(page.get_by_role("link", name="Runs", exact=True)).to_have_attribute("href", "#/?sort=headroom&order=desc")


def test_filters_narrow_the_list_and_nothing_found_says_so(visit: Visit) -> None:
    page = visit.page
    states = page.get_by_role("group", name="State")
    states.get_by_role("button", name=re.compile("finished")).click()
    expect(page.get_by_role("status").filter(has_text="2 of 3 runs")).to_be_visible()
    _expect_names(page, "old", MARKUP)
    page.get_by_role("combobox", name="Precision").select_option("fp16")
    _expect_names(page, MARKUP)
    assert page.url.endswith("#/?state=finished&precision=fp16")
    page.get_by_label("Find").fill("nobody")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.locator(".note").get_by_role("button", name="Clear filters").click()
    expect(_row(visit, "live")).to_be_visible()
    page.get_by_role("combobox", name="Precision").select_option("unmet")
    _expect_names(page, "live")
    visit.go("?chip=gone")
    expect(page.get_by_text("No run matches")).to_be_visible()
    expect(page.get_by_role("combobox", name="Chip")).to_have_value("gone")


def test_tags_are_edited_in_their_place_by_the_keyboard(visit: Visit) -> None:
    page = visit.page
    opener = page.get_by_role("button", name="Tags of old", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("new tag")
    expect(field).to_be_focused()
    page.keyboard.type("<b>keep</b>")
    page.keyboard.press("Enter")
    expect(_row(visit, "old").locator(".tags .runtag")).to_have_text(["<b>keep</b>"])
    expect(field).to_have_value("")
    page.keyboard.type("second,")
    expect(_row(visit, "old").locator(".tags .runtag")).to_have_text(["<b>keep</b>", "second"])
    page.keyboard.press("Backspace")
    expect(_row(visit, "old").locator(".tags .runtag")).to_have_text(["<b>keep</b>"])
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(opener).to_be_focused()
    page.reload()
    page.get_by_role("button", name="Only runs tagged <b>keep</b>").click()
    expect(page.get_by_role("combobox", name="Tag", exact=True)).to_have_value("<b>keep</b>")
    _expect_names(page, "old")


def test_runs_are_archived_and_brought_back_but_not_what_trains(visit: Visit, url: str) -> None:
    page = visit.page
    page.get_by_label("Pick old", exact=True).check()
    page.get_by_label(f"Pick {MARKUP}", exact=True).check()
    expect(page.get_by_role("link", name="Compare 2 runs")).to_be_visible()
    page.get_by_label("Pick all 3 shown").click()
    expect(page.get_by_role("link", name="Compare 3 runs")).to_be_visible()
    page.get_by_role("button", name="Archive 2").click()
    expect(_row(visit, "old")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("1 run · 1 live")
    expect(page.get_by_role("heading", level=1)).to_contain_text("2 archived")
    _expect_names(page, "live")
    listed = json.load(urllib.request.urlopen(f"{url}/api/v1/runs", timeout=30))
    assert [run["name"] for run in listed] == ["live"]
    page.get_by_label("Find").fill("old")
    expect(page.get_by_text("1 archived run matches.")).to_be_visible()
    page.get_by_role("button", name="Show archived runs too").click()
    expect(_row(visit, "old")).to_contain_text("archived")
    visit.go("?archived=only")
    page.get_by_label("Pick all 2 shown").click()
    page.get_by_role("button", name="Bring 2 back").click()
    expect(page.get_by_text("No run matches")).to_be_visible()
    visit.go("")
    expect(_row(visit, "old")).to_be_visible()


def test_an_archived_run_can_still_be_opened(visit: Visit, url: str) -> None:
    def archive(*, archived: bool) -> None:
        body = json.dumps({"archived": archived}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/api/v1/runs/old", body, headers, method="PATCH")
        urllib.request.urlopen(request, timeout=30).close()

    archive(archived=True)
    # Told live, to everybody.
    expect(_row(visit, "old")).to_have_count(0)
    visit.go("run/old")
    expect(visit.page.get_by_role("link", name="Layers")).to_be_visible()
    archive(archived=False)


def test_a_phone_shows_a_card_for_each_run_and_nobody_is_shut_out(visit: Visit) -> None:
    page = visit.page
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        expect(page.get_by_role("row").filter(has_text="4 / 204")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        found = [one for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
        assert found == [], width
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("combobox", name="Sort").select_option("headroom")
    expect(page).to_have_url(re.compile("sort=headroom"))
    expect(page.locator(NAMES).first).to_have_text(MARKUP)
    page.get_by_role("button", name="ascending").click()
    expect(page).to_have_url(re.compile("order=desc"))


def _many(route: Route) -> None:
    """The answer of the server, its live run 500 times."""
    listed = route.fetch().json()
    model = next(run for run in listed if run["name"] == "live")
    route.fulfill(json=[{**model, "name": f"run {number}", "tags": [f"t{number % 5}"]} for number in range(500)])


def test_of_500_runs_only_those_on_the_screen_are_drawn(visit: Visit) -> None:
    page = visit.page
    page.route("**/api/v1/runs?archived=true", _many)
    try:
        page.reload()
        first = page.get_by_role("link", name="run 0", exact=True)
        expect(first).to_be_visible()
        drawn = page.locator(".runs-table tbody tr:not(.gap)")
        assert drawn.count() < 60
        expect(page.locator(".runs-table")).to_have_attribute("aria-rowcount", "501")
        high = page.evaluate("document.querySelector('.runs-table tbody').getBoundingClientRect().height")
        assert high == pytest.approx(500 * 52, abs=60)
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        last = page.get_by_role("link", name="run 499", exact=True)
        expect(last).to_be_in_viewport()
        expect(first).to_have_count(0)
        assert drawn.count() < 60
        # What has the focus keeps it while the window moves.
        last.focus()
        page.evaluate("scrollBy(0, -300)")
        expect(page.get_by_role("link", name="run 480", exact=True)).to_be_visible()
        expect(last).to_be_focused()
        page.get_by_role("combobox", name="Tag", exact=True).select_option("t3")
        expect(page.get_by_role("status").filter(has_text="100 of 500 runs")).to_be_visible()
        expect(page.get_by_role("link", name="run 498", exact=True)).to_have_count(1)
    finally:
        page.unroute("**/api/v1/runs?archived=true")
        page.reload()


def test_a_server_without_runs_says_what_to_type(visit: Visit) -> None:
    page = visit.page
    page.route("**/api/v1/runs?archived=true", lambda route: route.fulfill(json=[]))
    try:
        page.reload()
        expect(page.get_by_text("No run yet")).to_be_visible()
        expect(page.get_by_text("floatscope demo")).to_be_visible()
        expect(page.get_by_text(f"FLOATSCOPE_SERVER={visit.url} floatscope run -- python train.py")).to_be_visible()
    finally:
        page.unroute("**/api/v1/runs?archived=true")
        page.reload()


def test_nothing_to_complain_about(visit: Visit) -> None:
    assert visit.complaints.texts == []
