"""Names, layers, values and clocks as nobody wishes them, before a real browser."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

import msgspec
import numpy as np
import pytest
from playwright.sync_api import expect

from floatscope import wire
from tests.chromium import listen
from tests.e2e.scaled_runs import MARKUP, tell
from tests.e2e.watched_training import NAMES, Place, goes_on, placed, says, visitor
from tests.server.bodies import histogram, layer, scalars, summaries

pytestmark = pytest.mark.browser

TABS = ("", "/layers", "/scaler", "/devices", "/config")


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
def place(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("bad") / "data", program("chromium")) as place:
        _odd_runs(place.address)
        yield place


@pytest.mark.parametrize("run", [MARKUP, "all NaN"])
def test_every_tab_stands_names_with_markup_one_step_and_no_finite_value(place: Place, run: str) -> None:
    with visitor(place) as page:
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
    with visitor(place, dt.datetime.now(dt.UTC) + dt.timedelta(days=days)) as page:
        page.goto(f"{place.url}/#/run/live")
        says(page, "Connected")
        goes_on(page)
        expect(page.locator(".readings")).to_contain_text(re.compile("live", re.IGNORECASE))
        says(page, "Connected")
        # The training has gone on for minutes at most, whatever the clock says.
        assert page.locator(".readings div").filter(has_text="Duration").locator("dd").inner_text().startswith("00:")
        page.goto(f"{place.url}/#/")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="live", exact=True))
        expect(row.locator(".runstate")).to_have_text(re.compile("^live$", re.IGNORECASE))
