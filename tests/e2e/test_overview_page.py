"""The overview of a run in a real browser, over a server that was told by agents' frames."""

from __future__ import annotations

import io
import json
import math
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.e2e.scaled_runs import tell
from tests.pages import serving
from tests.server.bodies import layer, scalars, summaries

pytestmark = pytest.mark.browser

STEPS, SPIKE = 100_000, 77_777
CALM_LOSS, SPIKE_LOSS = 2.0, 40.0
FULL = 600
"""Steps of the run that reports everything."""
SPIKES = range(150, 160)
"""Steps whose loss makes an alert."""
CLIP = 1.0
CHARTS = ("Loss", "Gradient norm", "Learning rate", "Loss scale", "Throughput", "Step time")
TABLE = (layer(0, "blocks.0", ("grad", "fp16")),)


def _long(address: str) -> None:
    """100,000 steps with a single one whose loss, norm and time are far from all others."""
    wave = 0.01 * np.sin(np.arange(STEPS))
    series = {
        "loss": CALM_LOSS + wave,
        "grad_norm": 1.0 + wave,
        "lr": np.full(STEPS, 1e-4),
        "loss_scale": np.full(STEPS, 2.0**16),
        "step_time_s": 0.5 + wave,
    }
    for name, value in (("loss", SPIKE_LOSS), ("grad_norm", 1e3), ("step_time_s", 60.0)):
        series[name][SPIKE] = value
    blocks = [
        wire.Body(
            first_step=first,
            steps=10_000,
            scalars=tuple(
                scalars(name, first, values[first : first + 10_000].tolist()) for name, values in series.items()
            ),
        )
        for first in range(0, STEPS, 10_000)
    ]
    tell(address, "long", blocks, layers=TABLE)


def _full(address: str) -> None:
    """A run that reports whatever there is: micro-batches, clipping, tokens, checkpoints, and that has gone wrong."""
    rng = np.random.default_rng(0)
    loss = 2.0 + 3 * np.exp(-np.arange(FULL) / 120) + 0.05 * rng.standard_normal(FULL)
    loss[SPIKES] = 30.0
    norm = np.exp(rng.normal(-0.3, 0.35, FULL))
    series: dict[str, Sequence[float]] = {
        "loss": loss.tolist(),
        "raw_loss_max": (loss * 1.2).tolist(),
        "grad_norm": norm.tolist(),
        "grad_norm/clipped": np.minimum(norm, CLIP).tolist(),
        "clip_norm": [CLIP] * FULL,
        "lr": [3e-4 * min(1.0, (step + 1) / 60) * (0.55 + 0.45 * math.cos(step / FULL * 3)) for step in range(FULL)],
        "loss_scale": [2.0 ** (15 + step // 200) for step in range(FULL)],
        "step_time_s": (0.5 + 0.03 * rng.random(FULL) + 0.4 * (np.arange(FULL) % 100 == 99)).tolist(),
        "tokens": [4096.0 * (step + 1) for step in range(FULL)],
    }
    events = [
        wire.Event(step=step, kind="checkpoint", detail={"path": f"out/step-{step + 1}", "steps": step + 1})
        for step in range(99, FULL, 100)
    ]
    grads = summaries("grad", 0, 0.01 + 0.001 * rng.random((FULL, 1)))
    values = tuple(scalars(name, 0, value) for name, value in series.items())
    body = wire.Body(steps=FULL, summaries=(grads,), scalars=values, events=tuple(events))
    tell(address, "full", [body], layers=TABLE)


def _bare(address: str) -> None:
    """One step, a loss and nothing else."""
    tell(address, "bare", [wire.Body(steps=1, scalars=(scalars("loss", 0, [1.5]),))], layers=TABLE)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("overview") / "data") as url:
        address = url.removeprefix("http://")
        _long(address)
        _full(address)
        _bare(address)
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def _go(visit: Visit, place: str, charts: int) -> None:
    visit.go(f"run/{place}")
    expect(visit.page.locator(".chart .main-svg .draglayer .nsewdrag")).to_have_count(charts)


def _chart(visit: Visit, title: str) -> Locator:
    return visit.page.locator(".chart").filter(has=visit.page.get_by_role("heading", name=title, exact=True))


def _pixels(chart: Locator) -> np.ndarray[Any, np.dtype[np.int16]]:
    """The chart on the screen, [y, x, colour]."""
    return np.asarray(Image.open(io.BytesIO(chart.locator(".plot").screenshot())).convert("RGB"), np.int16)


_FRAMES = """() => [...document.querySelectorAll(".chart")].map((chart) => {
  const { xaxis, yaxis } = chart.querySelector(".js-plotly-plot")._fullLayout;
  return {
    range: xaxis.range, left: xaxis._offset, width: xaxis._length, top: yaxis._offset,
    peak: yaxis.d2p(Math.max(...chart.querySelector(".js-plotly-plot").data.flatMap(({ y, fill }) => (fill ? y : [])))),
  };
})"""


def test_one_step_of_a_hundred_thousand_is_seen_in_every_chart_of_it(visit: Visit) -> None:
    names = {"Loss": ("loss", SPIKE_LOSS), "Gradient norm": ("grad_norm", 1e3), "Step time": ("step_time_s", 60.0)}
    path = f"/api/v1/runs/long/scalars?names={','.join(name for name, _ in names.values())}&points=800"
    with urllib.request.urlopen(visit.url + path, timeout=60) as answer:
        found = {series["name"]: series for series in json.load(answer)}
    for name, peak in names.values():
        series = found[name]
        (place,) = (i for i, value in enumerate(series["max"]) if value == peak)
        assert len(series["steps"]) <= 800
        assert series["steps"][place] <= SPIKE < series["steps"][place] + series["cell"]

    # With the run's own alerts the spike would be marked even where the trace had lost it.
    visit.page.route("**/api/v1/runs/long/alerts", lambda route: route.fulfill(json=[]))
    _go(visit, f"long?from=0&to={STEPS - 1}", len(CHARTS))
    frames = visit.page.evaluate(_FRAMES)
    for title in names:
        chart, frame = _chart(visit, title), frames[CHARTS.index(title)]
        column = round(frame["left"] + (SPIKE + 0.5) / STEPS * frame["width"])
        # Between the calm line and the peak, in which nothing else is.
        row = round(frame["top"] + frame["peak"]) + 4
        picture = _pixels(chart)
        background = picture[row, column - 40]
        assert np.abs(picture[row, column - 3 : column + 4] - background).sum(axis=1).max() > 120, title
        assert np.abs(picture[row, column - 40 : column - 6] - background).sum(axis=1).max() < 30, title
    visit.page.unroute("**/api/v1/runs/long/alerts")


def test_a_brush_on_any_chart_moves_every_trace(visit: Visit) -> None:
    _go(visit, "full", len(CHARTS))
    for title in CHARTS:
        # Charts are drawn one after the other.
        visit.page.wait_for_function(f"() => ({_FRAMES})().every(({{ range: [first] }}) => first < 1)")
        _brush(visit, title)
        visit.page.get_by_role("button", name=re.compile("^Whole run")).click()
        visit.page.wait_for_url(lambda url: "from=" not in url)


def _ranges(page: Page, wanted: list[float]) -> None:
    """Waits until every chart shows that range of steps."""
    page.wait_for_function(
        f"(wanted) => ({_FRAMES})().every(({{ range }}) => range.join() === wanted.join())", arg=wanted
    )


def _brush(visit: Visit, title: str) -> None:
    page = visit.page
    drag = _chart(visit, title).locator(".nsewdrag")
    drag.scroll_into_view_if_needed()
    box = drag.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    span = re.search(r"from=(\d+)&to=(\d+)", page.url)
    assert span is not None
    first, last = int(span[1]), int(span[2])
    assert FULL * 0.2 < first < FULL * 0.3 < FULL * 0.45 < last < FULL * 0.55
    _ranges(page, [first - 0.5, last + 0.5])
    expect(page.locator(".heat-map")).to_have_attribute("aria-label", re.compile(f"steps {first} to {last}\\."))
    checkpoints = [step for step in range(99, FULL, 100) if first <= step <= last]
    expect(page.locator(".lane .saved")).to_have_count(len(checkpoints))


def test_alerts_and_checkpoints_are_on_every_chart_and_lead_to_what_they_mark(visit: Visit) -> None:
    page = visit.page
    _go(visit, "full", len(CHARTS))
    with urllib.request.urlopen(f"{visit.url}/api/v1/runs/full/alerts", timeout=60) as answer:
        alerts = json.load(answer)
    for title in CHARTS:
        rail = _chart(visit, title).locator(".rail")
        expect(rail.locator(".on-rail:not(.saved)").first).to_be_visible()
        counts = [int(text or 1) for text in rail.locator(".on-rail:not(.saved)").all_inner_texts()]
        assert sum(counts) == len(alerts) > 1, "one that is under another is counted there"
        assert rail.locator(".on-rail.saved").count() == FULL // 100
        # A triangle: the gravest of them is told by its shape.
        assert rail.locator(".on-rail.critical path").get_attribute("d") == "M6 0.8 11.6 11.2H0.4Z"

    # Several: a closer look, as long as there is one.
    for _ in range(6):
        mark = _chart(visit, "Throughput").locator(".rail .on-rail.critical").first
        before = page.url
        mark.click()
        page.wait_for_url(re.compile(f"^(?!{re.escape(before)}$)"))
        if "#/alerts" in page.url:
            break
    expect(page.get_by_role("heading", name=re.compile("Alerts"))).to_be_visible()
    assert re.search(r"alert=\d+|run=full", page.url)


def test_a_single_alert_opens_from_its_mark(visit: Visit) -> None:
    page = visit.page
    with urllib.request.urlopen(f"{visit.url}/api/v1/runs/full/alerts", timeout=60) as answer:
        first = json.load(answer)[0]
    page.route("**/api/v1/runs/full/alerts", lambda route: route.fulfill(json=[first]))
    _go(visit, "full", len(CHARTS))
    page.reload()
    mark = _chart(visit, "Learning rate").locator(".rail .on-rail:not(.saved)")
    expect(mark).to_have_attribute("title", re.compile(r"Loss spike .* (critical|warning) .* Open the alert"))
    mark.click()
    page.wait_for_url(re.compile(rf"#/alerts\?.*alert={first['id']}"))
    expect(page.get_by_text(first["message"]).first).to_be_visible()
    page.unroute("**/api/v1/runs/full/alerts")


def test_a_keyboard_reaches_each_checkpoint(visit: Visit) -> None:
    page = visit.page
    _go(visit, "full", len(CHARTS))
    last = page.locator(".lane").get_by_title("out/step-600")
    expect(last).to_have_count(1)
    last.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("step=599"))
    # What a pointer alone reaches is no stop on the way.
    assert page.locator(".rail .on-rail:not([tabindex='-1'])").count() == 0


def test_what_a_run_does_not_report_is_said_in_one_line(visit: Visit) -> None:
    _go(visit, "bare", 1)
    expect(visit.page.locator(".scalars-missing")).to_have_text(
        "Not reported by this run: Gradient norm, Learning rate, Loss scale, Throughput, Step time"
    )
    expect(_chart(visit, "Loss").locator(".scatterlayer .points path")).to_have_count(1)


def test_what_clipping_and_micro_batches_did_stands_beside_the_trace(visit: Visit) -> None:
    _go(visit, "full", len(CHARTS))
    expect(_chart(visit, "Gradient norm").locator(".key li")).to_have_text(
        [re.compile("before clipping"), re.compile("after clipping"), re.compile(r"clip limit\s*1\.000")]
    )
    expect(_chart(visit, "Loss").locator(".key li")).to_have_text([re.compile("loss"), re.compile("micro-batch max")])
    expect(_chart(visit, "Throughput")).to_contain_text("tokens/s")
    expect(_chart(visit, "Gradient norm").locator(".scatterlayer .js-line")).to_have_count(3)


def test_nothing_was_complained_of(visit: Visit) -> None:
    assert visit.complaints.texts == []
