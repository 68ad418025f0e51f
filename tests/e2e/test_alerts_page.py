"""The page of alerts in a real browser, on a server that has judged imported logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import expect

from tests.chromium import Visit, visiting
from tests.pages import serving

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)>"


def _log(path: Path) -> Path:
    """A loss that falls, jumps for good at step 60 and stays there."""
    losses = [2.0 - 0.01 * step if step < 60 else 9.0 for step in range(80)]
    lines = [{"current_steps": i + 1, "total_steps": 80, "loss": loss, "lr": 1e-4} for i, loss in enumerate(losses)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500 if self.path == "/broken" else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the test's own output is enough."""


@contextmanager
def _receiver() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("alerts")
    with serving(folder / "data", "--webhook-allow", "127.0.0.1") as url:
        log = _log(folder / "trainer_log.jsonl")
        load = [sys.executable, "-m", "floatscope", "import", str(log), "--run", MARKUP, "--server", url]
        subprocess.run(load, check=True, capture_output=True)
        yield url


@pytest.fixture(scope="module")
def visit(url: str, program: Callable[[str], str]) -> Iterator[Visit]:
    with visiting(program("chromium"), url) as visit:
        yield visit


def test_an_alert_is_found_explained_acknowledged_and_silenced(visit: Visit) -> None:
    page = visit.page
    visit.go("")
    page.get_by_role("navigation", name="Place").get_by_role("link", name="Alerts").click()
    page.get_by_label("Severity").select_option("critical")
    page.get_by_role("link", name="Loss diverges").first.click()
    detail = page.get_by_role("complementary")
    expect(detail).to_contain_text("times its best level")
    expect(detail).to_contain_text(MARKUP)
    assert "severity=critical" in page.url
    detail.get_by_role("button", name="Acknowledge").click()
    expect(detail).to_contain_text("by someone on this machine")
    detail.get_by_role("button", name="Silence\u2026").click()
    detail.get_by_label("Why").fill(MARKUP)
    detail.get_by_role("button", name="Silence", exact=True).click()
    expect(page.get_by_role("region", name="Silences")).to_contain_text(f"Loss diverges \u00b7 {MARKUP}")
    page.get_by_role("button", name="End now").click()
    expect(page.get_by_role("region", name="Silences")).to_contain_text("Everyone is told")


def test_an_alert_is_closed_by_hand_only_after_a_question(visit: Visit) -> None:
    page = visit.page
    visit.go("alerts?kind=loss_divergence")
    page.get_by_role("link", name="Loss diverges").click()
    detail = page.get_by_role("complementary")
    detail.get_by_role("button", name="Resolve").click()
    detail.get_by_role("group", name="Close it?").get_by_role("button", name="Resolve").click()
    expect(detail).to_contain_text("closed by hand")
    expect(page.get_by_text("Nothing here")).to_be_visible()


def test_an_endpoint_is_added_tried_and_removed(visit: Visit) -> None:
    page = visit.page
    with _receiver() as receiver:
        visit.go("alerts/endpoints")
        page.get_by_role("button", name="Add endpoint").click()
        form = page.get_by_role("form", name="Add endpoint")
        form.get_by_label("Address").fill("ftp://nowhere")
        form.get_by_role("button", name="Add", exact=True).click()
        expect(form.get_by_role("alert")).to_contain_text("Webhooks go to http:// and https:// addresses")
        form.get_by_label("Address").fill(f"{receiver}/broken")
        form.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_label("The secret of this webhook")).to_have_value(re.compile("^whsec_"))
        page.get_by_role("button", name="I have kept it").click()
        expect(page.get_by_label("The secret of this webhook")).to_have_count(0)
        assert "whsec_" not in page.content()

        endpoint = page.get_by_role("listitem").filter(has_text="/broken")
        endpoint.get_by_role("button", name="Send test").click()
        expect(endpoint.get_by_role("status")).to_contain_text("HTTP 500")
        endpoint.get_by_role("button", name="Edit").click()
        page.get_by_label("Address").fill(f"{receiver}/sound")
        page.get_by_role("button", name="Save").click()
        endpoint = page.get_by_role("listitem").filter(has_text="/sound")
        endpoint.get_by_role("link", name="Log").click()
        page.get_by_role("button", name="Send again").click()
        expect(page.get_by_role("table")).to_contain_text("delivered")
    visit.go("alerts/endpoints")
    endpoint.get_by_role("button", name="Delete").click()
    endpoint.get_by_role("group").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nobody is told of alerts")).to_be_visible()


def test_a_rule_is_changed_tried_refused_and_saved(visit: Visit) -> None:
    page = visit.page
    visit.go("alerts/rules")
    page.get_by_role("link", name="Loss diverges").click()
    ratio = page.get_by_label("ratio", exact=True)
    before = ratio.input_value()
    ratio.fill("-1")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("loss_divergence.ratio must not be negative")
    expect(ratio).to_have_attribute("aria-invalid", "true")
    ratio.fill("50")
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("status", name="Preview")
    expect(preview).to_contain_text("Would have fired")
    expect(preview).not_to_contain_text("Loss diverges")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Nothing to save")).to_be_visible()
    page.reload()
    expect(ratio).to_have_value("50")
    page.get_by_role("button", name=f"ratio: back to {before}").click()
    page.get_by_role("button", name="Preview").click()
    expect(preview).to_contain_text("Loss diverges")
    page.get_by_role("listitem").filter(has_text="Loss diverges").get_by_role("checkbox").uncheck()
    page.get_by_role("button", name="Preview").click()
    expect(preview).not_to_contain_text("Loss diverges")
    page.get_by_role("button", name="Discard").click()
    expect(ratio).to_have_value("50")


def test_what_is_not_saved_is_there_again(visit: Visit) -> None:
    page = visit.page
    visit.go("alerts/rules?kind=limits")
    near = page.get_by_label("near_bits", exact=True)
    near.fill("2.5")
    page.get_by_role("link", name="Endpoints").click()
    expect(page.get_by_role("button", name="Add endpoint")).to_be_visible()
    page.get_by_role("link", name="Runs").click()
    visit.go("alerts/rules?kind=limits")
    expect(near).to_have_value("2.5")
    expect(page.get_by_role("status").filter(has_text="1 not saved")).to_be_visible()
    # The rules of one run are others.
    page.get_by_role("combobox", name="For", exact=True).select_option(MARKUP)
    expect(page.get_by_text("Nothing to save")).to_be_visible()
    expect(near).to_have_value("1")
    page.get_by_role("combobox", name="For", exact=True).select_option("")
    expect(near).to_have_value("2.5")
    page.get_by_role("button", name="Discard").click()
    expect(near).to_have_value("1")


def test_parameters_are_named_in_chinese_beside_the_name_they_have(visit: Visit) -> None:
    page = visit.page
    with urllib.request.urlopen(f"{visit.url}/api/v1/rules", timeout=60) as answer:
        rules = {rule["rule"] for rule in json.load(answer)}
    visit.go("alerts/rules")
    page.get_by_role("button", name="\u4e2d\u6587").click()
    for rule in sorted(rules):
        visit.go(f"alerts/rules?kind={rule}")
        shown = page.locator(f"[id^='gloss-{rule}.']")
        shown.first.wait_for()
        glosses = shown.all_inner_texts()
        assert len(glosses) == page.locator(f"[id^='rule-{rule}.']").count()
        assert all(re.search("[\u4e00-\u9fff]", gloss) for gloss in glosses), (rule, glosses)
    page.get_by_role("button", name="English").click()


def test_who_may_only_read_is_told_so_and_offered_nothing_else(visit: Visit) -> None:
    page = visit.page.context.new_page()
    page.route("**/api/v1/session", lambda route: route.fulfill(json={"mode": "token", "scope": "read"}))
    page.goto(f"{visit.url}/#/alerts?state=all&kind=loss_divergence")
    page.get_by_role("link", name="Loss diverges").click()
    expect(page.get_by_role("complementary")).to_contain_text("You may read")
    for action in ("Acknowledge", "Resolve", "New silence"):
        expect(page.get_by_role("button", name=action)).to_have_count(0)
    page.get_by_role("link", name="Endpoints").click()
    expect(page.get_by_text("Endpoints are for admins")).to_be_visible()
    page.close()


def test_the_pages_fit_a_phone_in_both_languages(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    visit.go("alerts")
    for language in ("\u4e2d\u6587", "English"):
        page.get_by_role("button", name=language).click()
        for place in ("alerts?state=all", "alerts/rules?kind=limits", "alerts/endpoints", "alerts/deliveries"):
            visit.go(place)
            expect(page.locator(".desk")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
    page.set_viewport_size({"width": 1440, "height": 900})


def test_nothing_to_complain_about(visit: Visit) -> None:
    refused = "error: Failed to load resource: the server responded with a status of 422 (Unprocessable Entity)"
    assert [text for text in visit.complaints.texts if text != refused] == []
