"""A server with tokens: signing in, what a reader may not do, a session that ends elsewhere; and the list of runs when
the link or the answer fails."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from floatscope import wire
from tests.chromium import browser
from tests.pages import serving
from tests.server.bodies import layer, scalars, summaries
from tests.server.conftest import Agent

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

TOKENS = {scope: secrets.token_hex(32) for scope in ("ingest", "read", "admin")}


@dataclass(frozen=True, slots=True)
class Guarded:
    running: Browser
    url: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{scope} {token}\n" for scope, token in TOKENS.items()))
    tokens.chmod(0o600)
    with serving(folder / "data", "--token-file", str(tokens)) as url, browser(program("chromium")) as running:
        _train(url)
        yield Guarded(running, url)


def _train(url: str) -> None:
    table = [layer(0, "a.up", ("grad", "fp16"))]
    agent = Agent(address=url.removeprefix("http://"), run="done", layers=table, token=TOKENS["ingest"])
    assert isinstance(agent.connect(), wire.Welcome)
    body = wire.Body(summaries=(summaries("grad", 0, [[1.0]] * 4),), scalars=(scalars("loss", 0, [2.0] * 4),))
    assert isinstance(agent.deliver(body), wire.Ack)
    agent.send(wire.Bye(seq=agent.seq + 1, reason="finished"))
    agent.hear()
    agent.close()


@pytest.fixture
def context(guarded: Guarded) -> Iterator[BrowserContext]:
    context = guarded.running.new_context(
        viewport={"width": 1440, "height": 900}, locale="en-US", base_url=guarded.url, color_scheme="dark"
    )
    context.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    yield context
    context.close()


def _signed_in(context: BrowserContext, scope: str) -> Page:
    page = context.new_page()
    page.goto("/#/")
    page.get_by_label("Token").fill(TOKENS[scope])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="done", exact=True)).to_be_visible()
    expect(page.locator("header .link")).to_contain_text("Connected")
    return page


def test_a_wrong_token_is_refused_in_words_and_the_right_one_leads_on(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/#/run/done/layers?kind=grad")
    for wrong in (secrets.token_hex(32), TOKENS["ingest"]):
        page.get_by_label("Token").fill(wrong)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert").filter(has_text=re.compile(r"\w"))).to_be_visible()
    page.get_by_label("Token").fill(TOKENS["read"])
    page.get_by_label("Token").press("Enter")
    expect(page.locator(".heat-map canvas.cells")).to_be_visible()


def test_a_reader_sees_the_list_and_is_offered_nothing_that_would_be_refused(context: BrowserContext) -> None:
    page = _signed_in(context, "read")
    page.get_by_label("Pick done", exact=True).check()
    expect(page.get_by_text("Pick another run to compare")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Archive"))).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^Tags of"))).to_have_count(0)


def test_a_session_that_ends_in_another_tab_ends_here_and_leads_back(context: BrowserContext) -> None:
    page, other = _signed_in(context, "read"), context.new_page()
    page.get_by_role("link", name="done", exact=True).click()
    expect(page.get_by_role("article", name="done")).to_be_visible()
    view = page.url
    other.goto("/#/")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_label("Token")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_label("Token").fill(TOKENS["read"])
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("article", name="done")).to_be_visible()
    expect(page.locator("header .link")).to_contain_text("Connected")
    assert page.url == view


def test_a_session_that_the_server_has_forgotten_while_it_was_away_is_asked_for_anew(
    context: BrowserContext, guarded: Guarded
) -> None:
    page = _signed_in(context, "admin")
    context.set_offline(True)
    expect(page.locator("header .link")).to_contain_text("Stale since")
    # What was drawn stays, and says that it is old.
    expect(page.get_by_role("link", name="done", exact=True)).to_be_visible()
    expect(page.locator("header")).to_have_class("top stale")
    context.clear_cookies()
    context.set_offline(False)
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_list_says_what_failed_and_has_it_again(context: BrowserContext) -> None:
    page = _signed_in(context, "read")
    listed = re.compile(r"/api/v1/runs\?archived=true$")
    page.route(
        listed,
        lambda route: route.fulfill(
            status=500, json={"error": {"code": "internal", "message": "the store is broken", "hint": "see the log"}}
        ),
    )
    page.reload()
    failed = page.locator(".note.failed")
    expect(failed).to_contain_text("the store is broken")
    expect(failed).to_contain_text("see the log")
    page.unroute(listed)
    failed.get_by_role("button", name="Try again now").click()
    expect(page.get_by_role("link", name="done", exact=True)).to_be_visible()
    expect(failed).to_have_count(0)
