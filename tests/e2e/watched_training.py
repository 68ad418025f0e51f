"""A training that goes on, its server, and visitors who watch it."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
from playwright.sync_api import Browser, Page, expect

from floatscope import wire
from tests.chromium import browser
from tests.pages import serving
from tests.server.bodies import histogram, layer, scalars, summaries
from tests.server.conftest import Agent

__all__ = ["NAMES", "Place", "goes_on", "newest", "placed", "says", "visitor"]

NAMES = [f"blocks.{i}.up" for i in range(4)]


class Training:
    """A run that goes on, two steps a second, whatever becomes of the server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.steps = 0
        self._over = Event()
        self._thread = Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        agent = Agent(
            address=self.address, run="live", layers=[layer(i, n, ("grad", "fp16")) for i, n in enumerate(NAMES)]
        )
        while not self._over.wait(0.5):
            body = wire.Body(
                first_step=self.steps,
                steps=1,
                summaries=(summaries("grad", self.steps, np.ones((1, len(NAMES)), np.float32)),),
                histograms=(histogram(self.steps, 250, [5, 90, 5]),),
                scalars=(scalars("loss", self.steps, [2.0]),),
            )
            try:
                if agent._socket is None:
                    agent.connect()
                agent.deliver(body)
            except Exception:  # noqa: BLE001 - no server for a while
                agent._socket = None
                continue
            self.steps += 1
        agent.close()

    def make(self, steps: int) -> None:
        """Waits for so many more."""
        wanted, end = self.steps + steps, time.monotonic() + 60
        while self.steps < wanted:
            assert time.monotonic() < end, "the training stands still"
            time.sleep(0.1)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Place:
    """A server that can be stopped and started again at its address, and a browser."""

    def __init__(self, data: Path, running: Browser) -> None:
        self.running = running
        self._data = data
        self._stack = ExitStack()
        self._port = "0"
        self.start()
        self.training = Training(self.address)

    @property
    def address(self) -> str:
        """Of the agents."""
        return self.url.removeprefix("http://")

    def start(self) -> None:
        self.url = self._stack.enter_context(serving(self._data, "--port", self._port))
        self._port = self.url.rpartition(":")[2]

    def stop(self) -> None:
        self._stack.close()


@contextmanager
def placed(data: Path, program: str) -> Iterator[Place]:
    """A server on ``data``, on which a training goes on."""
    with browser(program) as running:
        place = Place(data, running)
        try:
            yield place
        finally:
            place.training.stop()
            place.stop()


@contextmanager
def visitor(place: Place, at: dt.datetime | None = None) -> Iterator[Page]:
    """A page of a new visitor; ``at`` is what the clock of the browser says, which goes on from there."""
    context = place.running.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    if at is not None:
        page.clock.install(time=at)
    yield page
    context.close()


def says(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator("header .link")).to_contain_text(text)


def newest(page: Page) -> int:
    """The step that the page says is the newest."""
    page.locator(".readings").wait_for()
    shown = page.locator(".readings div").filter(has_text="Step").locator("dd").inner_text()
    return int(shown.replace(",", "")) if shown[0].isdigit() else -1


def goes_on(page: Page) -> None:
    """New steps come."""
    before, end = newest(page), time.monotonic() + 60
    while newest(page) <= before:
        assert time.monotonic() < end, "no new step"
        page.wait_for_timeout(100)
