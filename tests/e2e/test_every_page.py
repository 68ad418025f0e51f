"""Each page in both themes and languages, wide and on a phone: nothing complains, and nobody is shut out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.chromium import browser, listen
from tests.pages import LANGUAGES, PAGES, THEMES, open_page, recorded, served, settled

pytestmark = pytest.mark.browser

SECONDS = 10
GRAVE = ("serious", "critical")
WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}
EACH_ONCE = (("dark", "en", "wide"), ("light", "zh", "phone"))
"""Every theme, language and width."""

WAYS = [
    pytest.param(*way, marks=() if way in EACH_ONCE else pytest.mark.long) for way in product(THEMES, LANGUAGES, WIDTHS)
]


@dataclass(frozen=True, slots=True)
class Place:
    running: Browser
    url: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Place]:
    data = tmp_path_factory.mktemp("every") / "data"
    recorded(data, SECONDS)
    with served(data) as url, browser(program("chromium")) as running:
        yield Place(running, url)


@pytest.mark.parametrize(("theme", "language", "width"), WAYS)
def test_it_complains_of_nothing_and_shuts_nobody_out(place: Place, theme: str, language: str, width: str) -> None:
    wide, high = WIDTHS[width]
    page = open_page(place.running, theme=theme, language=language, width=wide, height=high)
    complaints = listen(page, place.url)
    found = {}
    for name, address in PAGES.items():
        settled(page, place.url, address)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.evaluate("document.documentElement.lang") == ("zh-CN" if language == "zh" else "en")
        # A wide table may be moved sideways in its own frame, never the page itself.
        assert page.evaluate("document.documentElement.scrollWidth") <= wide, name
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in GRAVE:
                found[name, violation["id"]] = [node["html"][:200] for node in violation["nodes"][:3]]
    page.context.close()
    assert found == {}
    assert complaints.texts == []
