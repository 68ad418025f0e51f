"""The page of a run of several ranks, in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from floatscope import wire
from tests.chromium import browser, listen

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

pytestmark = pytest.mark.browser

_SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_notes_on_ranks_stay_inside_the_page_and_up_to_date(
    server: Running, agent: MakeAgent, make: Make, program: Callable[[str], str]
) -> None:
    # No place to break the line, a direction of its own, and markup.
    name = f"\u202e<b>{'x' * 400}</b>"

    def begin(rank: int) -> None:
        table = [msgspec.structs.replace(make.layer(0, name, ("grad", "fp16")), parameters=16 + rank)]
        one = agent(rank=rank, world=3, layers=table)
        one.deliver(wire.Body(first_step=0, steps=1, summaries=(make.summaries("grad", 0, [1.0]),)))

    begin(0)
    begin(1)
    with browser(program("chromium")) as running:
        page = running.new_page(viewport={"width": 390, "height": 800})
        complaints = listen(page, server.url)
        page.goto(f"{server.url}/#/run/run?kind=grad")
        missing = page.get_by_text("nothing has come from rank 2 of 3 ranks")
        missing.wait_for(timeout=60_000)
        assert "<b>" in page.get_by_text("Ranks call different modules").inner_text(timeout=60_000)
        assert page.evaluate(_SIDEWAYS) == 0
        begin(2)
        missing.wait_for(state="detached", timeout=60_000)
        assert complaints.texts == []
