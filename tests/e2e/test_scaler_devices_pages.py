"""The tabs of the loss scaler and of devices in a real browser, over a server that was told by agents' frames."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.e2e.scaled_runs import CULPRIT, MARKUP, tell, tell_bf16, tell_cards, tell_fp8, tell_fp16
from tests.pages import serving
from tests.server.bodies import scalars

pytestmark = pytest.mark.browser

_WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("scaled") / "data") as url:
        address = url.removeprefix("http://")
        tell_fp16(address, "fp16")
        tell_fp8(address, "fp8")
        tell_bf16(address, "bf16")
        tell_cards(address, "wide", 64)
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def _row(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


def test_a_skipped_step_leads_to_the_layer_that_broke(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp16")
    page.get_by_role("link", name="Scaler").click()
    # The rules' word for the newest step, which is past the collapse.
    expect(page.locator(".verdict-word")).to_have_text("oscillating")
    expect(page.locator(".verdict-figures")).to_contain_text("3.67 % of 300 steps")
    expect(page.get_by_role("region", name="Loss scale: 2\u2075")).to_be_visible()
    skips = page.get_by_role("table")
    expect(skips.locator("tbody tr")).to_have_count(11)
    expect(_row(visit.page, re.compile("^249"))).to_contain_text("collapse: too many skips")
    lone = _row(visit.page, re.compile("^150"))
    expect(lone).to_contain_text("transient overflow, caught")
    expect(lone.get_by_role("cell").nth(1)).to_have_text("3")
    lone.get_by_role("link", name=CULPRIT).click()
    expect(page.get_by_role("complementary").get_by_role("heading", name=CULPRIT)).to_be_visible()
    assert "/layers?" in page.url
    assert "step=150" in page.url


def test_the_table_follows_the_range(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp16/scaler?from=100&to=200")
    expect(page.get_by_role("table").locator("tbody tr")).to_have_count(1)
    expect(page.locator(".verdict-figures")).to_contain_text("0.99 % of 101 steps")


def test_scaled_operands_are_sorted_found_and_shown_over_the_steps(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp8/scaler")
    expect(page.get_by_role("heading", name="This run has no loss scaler")).to_be_visible()
    rows = page.get_by_role("table").locator("tbody tr")
    expect(rows).to_have_count(24)
    expect(rows.first).to_contain_text("model.layers.0.mlp.up_proj")
    expect(rows.first).to_contain_text("delayed scale")
    expect(rows.first).to_contain_text("within one bit of the limit")
    expect(rows.last).to_contain_text("by construction")
    page.get_by_label("Layer", exact=True).fill("layers.11.")
    page.get_by_label("Layer", exact=True).press("Enter")
    expect(rows).to_have_count(2)
    assert "find=layers.11." in page.url
    visit.go("run/fp8/scaler")
    expect(rows).to_have_count(24)
    rows.first.get_by_role("link").click()
    for name in ("Headroom, bits: 0.3", "Amax: 5.785", "Scale: 2\u2076"):
        expect(page.get_by_role("region", name=name)).to_be_visible()
    page.reload()
    expect(page.get_by_role("region", name="Scale: 2\u2076")).to_be_visible()


def test_cards_are_told_apart_and_unknown_figures_are_dashes(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp16/devices")
    expect(page.get_by_role("heading", name="8 cards \u00d7 time")).to_be_visible()
    expect(page.get_by_text("Spread 18 points")).to_be_visible()
    expect(page.locator(".cards-table tbody tr")).to_have_count(8)
    expect(_row(visit.page, "0000:06:00")).to_contain_text("not read since")
    little = _row(visit.page, "0000:07:00").get_by_role("cell")
    expect(little.nth(2)).to_contain_text("3.00 in tensors / 64.0 GiB")
    for column in range(3, 8):
        expect(little.nth(column)).to_have_text("\u2014", use_inner_text=True)
    # Another index on the way, the same card.
    expect(_row(visit.page, "0000:04:00")).to_contain_text("5 \u00b7 AMD Instinct MI210")
    expect(_row(visit.page, "0000:05:00")).to_contain_text(MARKUP)
    expect(_row(visit.page, "0000:03:00")).to_contain_text("pcie: 8 lanes")
    expect(_row(visit.page, "0000:00:00").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("in tensors 120.0 GiB")
    )
    expect(page.get_by_role("region", name="What the rules say")).to_contain_text("Device memory nearly full")
    shares = page.locator(".phase-shares")
    expect(shares).to_contain_text("57.1 %")
    expect(shares.locator("div")).to_have_text(
        [re.compile(f"^{name}") for name in ("data", "forward", "backward", "optimizer")], use_inner_text=True
    )


def test_what_is_read_seldom_is_shown_with_what_is_wrong(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp16/devices")
    rows = page.locator(".cards-health tbody tr")
    expect(rows).to_have_count(8)
    figures = ["2071 MHz", "1300 MHz"]
    figures += ["\u00d716 \u00b7 32 GT/s", "7 links \u00b7 41.5 GB/s", "2", "1,234", "12", "90 %", "0 %", "0 %"]
    expect(rows.nth(1).get_by_role("cell")).to_have_text(figures, use_inner_text=True)
    expect(rows.nth(3)).to_contain_text("\u00d78 of \u00d716")
    expect(rows.nth(2).locator(".mark-warning")).to_have_count(1)
    # One stopped answering, one tells little.
    for silent in (6, 7):
        assert set(rows.nth(silent).get_by_role("cell").all_inner_texts()) == {"\u2014"}
    expect(page.get_by_role("region", name="What the rules say")).to_contain_text("works on 8 of the 16 lanes")
    visit.go("run/fp16/devices?card=1+0000:02:00")
    for chart in ("Clocks", "Clocks held down, share of the time", "ECC errors since the driver's start"):
        expect(page.get_by_role("img", name=re.compile(f"^{chart} of card 1"))).to_be_visible()
    visit.go("run/bf16/devices")
    expect(page.get_by_text("None of these was read on these cards.")).to_be_visible()


def test_the_map_is_read_by_keyboard_and_opens_a_card(visit: Visit) -> None:
    page = visit.page
    visit.go("run/fp16/devices")
    area = page.get_by_role("application")
    area.focus()
    # In one go, before the page can be drawn in between.
    area.evaluate(
        "map => ['ArrowDown', 'ArrowDown'].forEach("
        "key => map.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })))"
    )
    expect(page.locator("#cards-readout")).to_contain_text("0 \u00b7 1 \u00b7 AMD Instinct MI300X")
    for _ in range(20):
        area.press("ArrowLeft")
    expect(page.locator("#cards-readout")).to_contain_text("90 %")
    expect(page.locator("#cards-readout").get_by_role("link", name=re.compile("step 2"))).to_be_visible()
    area.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("0 \u00b7 1 \u00b7 AMD Instinct MI300X"))).to_be_visible()
    assert "card=0+0000" in page.url
    page.get_by_role("link", name="whole run").click()
    expect(page.locator(".time-chart")).to_have_count(7)
    expect(page.get_by_text("Spread 18 points")).to_be_visible()
    page.get_by_label("Metric").select_option("power_watts")
    expect(page.get_by_text(re.compile("Spread 0 W"))).to_be_visible()


def test_readings_come_live(visit: Visit) -> None:
    address = visit.url.removeprefix("http://")
    reading = wire.Device(time_ns=time.time_ns(), backend="rocm", index=0, pci="0000:c1:00", busy_percent=11.0)
    tell(address, "live", [wire.Body(steps=1, scalars=(scalars("loss", 0, [1.0]),), devices=(reading,))])
    visit.go("run/live/devices")
    expect(_row(visit.page, "0000:c1:00")).to_contain_text("11 %")
    reading = wire.Device(time_ns=time.time_ns(), backend="rocm", index=0, pci="0000:c1:00", busy_percent=77.0)
    tell(address, "live", [wire.Body(devices=(reading,))])
    expect(_row(visit.page, "0000:c1:00")).to_contain_text("77 %")


def test_one_reading_without_a_scaler(visit: Visit) -> None:
    page = visit.page
    visit.go("run/bf16/scaler")
    expect(page.get_by_text("That is as it should be in bf16 and fp32")).to_be_visible()
    expect(page.get_by_role("table")).to_have_count(0)
    visit.go("run/bf16/devices")
    cells = _row(visit.page, "0000:c1:00").get_by_role("cell")
    expect(cells.nth(3)).to_have_text("0 %")
    for column in range(5, 8):
        expect(cells.nth(column)).to_have_text("\u2014", use_inner_text=True)


def test_sixty_four_cards_and_a_clock_that_jumped_back(visit: Visit) -> None:
    page = visit.page
    visit.go("run/wide/devices")
    expect(page.get_by_role("heading", name="64 cards \u00d7 time")).to_be_visible()
    expect(page.locator(".silent")).to_have_count(0)
    expect(page.get_by_text("Spread 63 points")).to_be_visible()
    box = page.locator(".time-heat").bounding_box()
    assert box is not None
    assert box["height"] < 640


def test_both_tabs_fit_a_phone_in_both_languages(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    for language in ("\u4e2d\u6587", "English"):
        page.get_by_role("button", name=language).click()
        for place, there in (("fp16/scaler", ".skips"), ("fp8/scaler", ".operands"), ("fp16/devices", ".cards-table")):
            visit.go(f"run/{place}")
            expect(page.locator(there)).to_be_visible()
            assert page.evaluate(_WIDTH) <= 390, place
    page.set_viewport_size({"width": 1440, "height": 900})


def test_nobody_is_shut_out(visit: Visit) -> None:
    page = visit.page
    found = {}
    for place, there, theme in (
        ("fp8/scaler?operand=act_in:model.layers.0.mlp.up_proj", ".operand .plot", "light"),
        ("fp16/devices?card=0+0000:00:00", ".time-chart", "dark"),
    ):
        page.evaluate(f"localStorage.setItem('floatscope.theme', '{theme}')")
        visit.go(f"run/{place}")
        page.reload()
        expect(page.locator(there).first).to_be_visible()
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found[place, violation["id"]] = [node["html"][:200] for node in violation["nodes"][:3]]
    assert found == {}


def test_nothing_to_complain_about(visit: Visit) -> None:
    assert visit.complaints.texts == []
