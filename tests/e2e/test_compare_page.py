"""A run's configuration and the page that compares runs, in a real browser, on a server fed as an agent feeds it."""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from floatscope import wire
from tests.chromium import Visit, visiting
from tests.pages import serving
from tests.server.bodies import layer, scalars, summaries
from tests.server.conftest import Agent

pytestmark = pytest.mark.browser

HALF = "fp16, 50% <img src=x onerror=alert(1)>"
BRAIN = "bf16,b"
ONE = "one step"
BROKEN = "all NaN"
DOOMED = "doomed"


def _configured(precision: str, batch: int) -> dict[str, object]:
    arguments = {
        "per_device_batch": batch,
        "seed": 1,
        "nested": {"lr": 1e-3 * batch},
        "token": "***",
        "long": "x" * 100_000,
    }
    verdicts = [
        {"item": "torch", "status": "ok", "value": "2.9", "why": "", "fix": ""},
        {"item": "HSA_XNACK", "status": "wrong", "value": "1", "why": "left on", "fix": "unset HSA_XNACK"},
    ]
    return {"precision": {"autocast": precision}, "arguments": {"trainer": arguments}, "doctor": verdicts}


def _train(
    url: str, name: str, losses: list[float], layers: list[str], precision: str = "float16", batch: int = 8
) -> None:
    known = [layer(i, one, ("grad", "fp16")) for i, one in enumerate(layers)]
    agent = Agent(address=url.removeprefix("http://"), run=name, layers=known, config=_configured(precision, batch))
    assert isinstance(agent.connect(), wire.Welcome)
    steps = len(losses)
    top = np.full((steps, len(layers)), batch, np.float32)
    series = {"loss": losses, "grad_norm": losses, "lr": [1e-3] * steps, "step_time_s": [0.5] * steps}
    if name == HALF:
        series["tokens"] = [100.0 * (step + 1) for step in range(steps)]
    values = tuple(scalars(one, 0, what) for one, what in series.items())
    assert isinstance(agent.deliver(wire.Body(summaries=(summaries("grad", 0, top),), scalars=values)), wire.Ack)
    agent.send(wire.Bye(seq=agent.seq + 1, reason="finished"))
    agent.hear()
    agent.close()


def _compare(visit: Visit, *names: str, more: str = "") -> None:
    visit.go(f"compare?runs={','.join(quote(name, safe='') for name in names)}{more}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("compare") / "data") as address:
        falling = [3.0 / (1 + 0.05 * step) for step in range(60)]
        _train(address, HALF, falling, ["a", "b", "only.half"])
        _train(address, BRAIN, [1.1 * loss for loss in falling[:40]], ["b", "a", "only.brain"], "bfloat16", 16)
        _train(address, ONE, [2.0], ["a"])
        _train(address, BROKEN, [math.nan] * 20, ["a"])
        _train(address, DOOMED, falling, ["a"])
        yield address


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def test_a_configuration_is_searched_and_held_against_another(visit: Visit) -> None:
    page = visit.page
    visit.go(f"run/{quote(HALF, safe='')}/config")
    expect(page.get_by_role("row", name="arguments.trainer.token")).to_contain_text("***")
    long = page.locator("details").filter(has_text="100,000 characters")
    assert not long.evaluate("element => element.open")
    expect(page.get_by_role("listitem").first).to_contain_text("unset HSA_XNACK")
    page.get_by_label("Compare with").fill(BRAIN)
    page.get_by_label("Compare with").press("Enter")
    expect(page.get_by_role("status").filter(has_text="differences")).to_have_text(
        "3 differences, 2 of them on numerics"
    )
    rows = page.locator(".config-table tbody tr")
    expect(rows).to_have_count(3)
    head, body = (page.locator(f".config-table {part}").first.bounding_box() for part in ("thead", "tbody"))
    assert head is not None
    assert body is not None
    assert (head["x"], head["y"] + head["height"]) == pytest.approx((body["x"], body["y"]), abs=1)
    expect(rows.nth(0)).to_contain_text("bfloat16")
    expect(rows.nth(1)).to_contain_text("arguments.trainer.nested.lr")
    page.set_viewport_size({"width": 1280, "height": 800})
    tops = [
        page.get_by_role("button", name=f"Copy {format_}", exact=True).bounding_box() for format_ in ("JSON", "YAML")
    ]
    field = page.get_by_label("Compare with").bounding_box()
    assert field is not None
    for top in tops:
        assert top is not None
        assert top["y"] + top["height"] / 2 == pytest.approx(field["y"] + field["height"] / 2, abs=2)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("Find").fill("batch")
    expect(rows).to_have_count(1)
    assert "find=batch" in page.url


def test_runs_are_laid_over_one_another(visit: Visit) -> None:
    page = visit.page
    _compare(visit, HALF, BRAIN, ONE, BROKEN)
    loss = page.get_by_role("region", name="Loss", exact=True)
    expect(loss.locator(".scatterlayer .trace")).to_have_count(3)
    expect(loss).to_contain_text(f"not finite throughout: {BROKEN}")
    dashes = loss.locator(".scatterlayer .js-line").evaluate_all(
        "lines => lines.map(line => line.style.strokeDasharray)"
    )
    assert len(set(dashes)) == 2
    page.get_by_label("Along").select_option("tokens")
    expect(page.get_by_role("status").filter(has_text="not recorded")).to_contain_text(BRAIN)
    expect(loss.locator(".scatterlayer .trace")).to_have_count(1)
    assert "x=tokens" in page.url


def test_a_brush_moves_every_chart(visit: Visit) -> None:
    page = visit.page
    _compare(visit, HALF, BRAIN)
    drag = page.get_by_role("region", name="Loss", exact=True).locator(".nsewdrag")
    box = drag.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=1\d&to=(29|30)"))
    page.get_by_role("button", name="Whole range").click()
    expect(page).not_to_have_url(re.compile("from="))


def test_two_runs_are_told_apart_layer_by_layer(visit: Visit) -> None:
    page = visit.page
    _compare(visit, HALF, BRAIN, more="&of=absmax")
    table = page.locator(".apart-table")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table.get_by_role("row", name=re.compile("^a"))).to_contain_text("+1.00")
    expect(page.locator(".only")).to_have_count(2)


def test_a_run_that_is_deleted_while_it_is_shown(visit: Visit) -> None:
    page = visit.page
    _compare(visit, HALF, DOOMED)
    loss = page.get_by_role("region", name="Loss", exact=True)
    expect(loss.locator(".scatterlayer .trace")).to_have_count(2)
    before = len(visit.complaints.texts)
    request = urllib.request.Request(f"{visit.url}/api/v1/runs/{DOOMED}", method="DELETE")
    urllib.request.urlopen(request).close()
    # Nobody has to ask anew.
    expect(page.get_by_role("listitem").filter(has_text=DOOMED)).to_contain_text("no such run")
    expect(loss.locator(".scatterlayer .trace")).to_have_count(1)
    # What the page asked between the deletion and the news of it has no answer; the browser says so by itself.
    refused = visit.complaints.texts[before:]
    assert [text for text in refused if "status of 404" not in text] == []
    del visit.complaints.texts[before:]


def test_more_runs_than_are_drawn_are_named(visit: Visit) -> None:
    _compare(visit, HALF, BRAIN, *(f"no run {i}" for i in range(9)))
    expect(visit.page.locator(".compare-runs > li")).to_have_count(8)
    expect(visit.page.get_by_role("status").filter(has_text="At most 8 runs")).to_contain_text("left out: 3 (no run 6")


def test_the_comparison_is_a_click_away_and_begins_with_the_open_run(visit: Visit) -> None:
    page = visit.page
    visit.go(f"run/{quote(BRAIN, safe='')}/config")
    page.get_by_role("navigation", name="Place").get_by_role("link", name="Compare").click()
    expect(page.locator(".compare-runs li").first).to_contain_text(BRAIN)
    page.get_by_label("Add run").fill(HALF)
    page.get_by_label("Add run").press("Enter")
    expect(page.get_by_role("region", name="Loss", exact=True).locator(".scatterlayer .trace")).to_have_count(2)


def test_a_chart_is_saved_with_what_its_lines_are(visit: Visit) -> None:
    page = visit.page
    _compare(visit, HALF, BRAIN)
    loss = page.get_by_role("region", name="Loss", exact=True)
    expect(loss.locator(".scatterlayer .trace")).to_have_count(2)
    box = loss.locator(".overlay").bounding_box()
    assert box is not None
    with page.expect_download() as download:
        loss.get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename == "floatscope-Compare-Loss.png"
    with Image.open(download.value.path()) as picture:
        # Twice as large as on the screen; above it two lines of words and a line for each run.
        assert picture.height > 2 * (box["height"] + 46 + 2 * 17)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
    assert len(colours) > 10


def test_runs_are_found_and_picked_in_the_list(visit: Visit) -> None:
    page = visit.page
    visit.go("")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("searchbox", name="Find").press_sequentially("bf16 finished", delay=20)
    expect(rows).to_have_count(1)
    page.get_by_role("checkbox", name=f"Pick {BRAIN}").check()
    expect(page.get_by_text("Pick another run to compare")).to_be_visible()
    page.get_by_role("searchbox", name="Find").fill("")
    page.get_by_role("checkbox", name=f"Pick {HALF}").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.locator(".compare")).to_contain_text(BRAIN)
    expect(page.locator(".compare")).to_contain_text(HALF)


def test_both_fit_a_phone(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    for place in (f"run/{quote(HALF, safe='')}/config", f"compare?runs={quote(HALF, safe='')},{quote(BRAIN, safe='')}"):
        visit.go(place)
        expect(page.locator(".config, .compare").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place


def test_nothing_to_complain_about(visit: Visit) -> None:
    assert visit.complaints.texts == []
