"""Debian's Chromium, driven by Playwright, with everything it does on its own switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

__all__ = ["Complaints", "Visit", "browser", "drawn", "listen", "visiting"]

_FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
)


@contextmanager
def browser(executable: str, *flags: str) -> Iterator[Browser]:
    """A headless browser; its pages share nothing with a person's profile. ``flags`` come after ours."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=[*_FLAGS, *flags])
        try:
            yield running
        finally:
            running.close()


@dataclass(slots=True)
class Complaints:
    """What a page complained about: console warnings and errors, uncaught exceptions, policy violations, and every
    request that left the server's own origin."""

    texts: list[str] = field(default_factory=list)


def listen(page: Page, origin: str) -> Complaints:
    """Collects the complaints of ``page`` from now on. A policy violation reaches the console as an error too."""
    complaints = Complaints()

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.texts.append(f"{message.type}: {message.text}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: complaints.texts.append(f"exception: {error}"))
    allowed = (origin, origin.replace("http", "ws", 1), "blob:", "data:")
    page.on(
        "request",
        lambda request: None if request.url.startswith(allowed) else complaints.texts.append(f"asked {request.url}"),
    )
    return complaints


def drawn(page: Page) -> None:
    """Waits until the page has been drawn with what has happened so far: it is drawn anew in the next frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@dataclass(slots=True)
class Visit:
    """A person at a wide screen. What is waited for may take as long as a busy machine needs."""

    page: Page
    complaints: Complaints
    url: str

    def go(self, place: str) -> None:
        """To what follows ``#/`` in the address; nothing of the place before is left."""
        self.page.goto(f"{self.url}/#/{place}")
        drawn(self.page)


@contextmanager
def visiting(executable: str, url: str) -> Iterator[Visit]:
    """A visit to the server at ``url``."""
    with browser(executable) as running:
        page = running.new_context(viewport={"width": 1440, "height": 900}, locale="en-US").new_page()
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield Visit(page, listen(page, url), url)
