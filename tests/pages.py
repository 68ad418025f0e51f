"""Every page there is, on a server with a run that went wrong, one that did not, and somewhere to send alerts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.chromium import drawn
from tests.demos import demonstrated

__all__ = ["LANGUAGES", "PAGES", "THEMES", "open_page", "recorded", "served", "serving", "settled"]

PAGES = {
    "runs": "",
    "overview": "run/demo",
    "layers": "run/demo/layers?kind=act_in",
    "layer": "run/demo/layers?kind=act_in&layer=blocks.2.mlp.down",
    "scaler": "run/demo/scaler",
    "devices": "run/demo/devices",
    "config": "run/demo/config?against=demo-sane&show=all",
    "compare": "compare?runs=demo,demo-sane",
    "alerts": "alerts?state=all",
    "rules": "alerts/rules?kind=loss_scale_collapse",
    "endpoints": "alerts/endpoints",
    "deliveries": "alerts/deliveries",
}
"""Name -> what follows ``#/`` in the address."""

THEMES = ("dark", "light")
LANGUAGES = ("en", "zh")


def recorded(data: Path, seconds: float) -> None:
    """The runs of a demo that has gone on for ``seconds``, and longer until it went wrong, in the folder ``data``."""
    with demonstrated(data) as demo:
        time.sleep(seconds)
        assert demo.finish() == 0, demo.lines


@contextmanager
def serving(data: Path, *options: str) -> Iterator[str]:
    """The address of a server on ``data``."""
    command = [sys.executable, "-m", "floatscope", "server", "--port", "0", "--data", str(data), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            process.terminate()


@contextmanager
def served(data: Path) -> Iterator[str]:
    """The address of a server on ``data``, which has an endpoint that nobody answers."""
    with serving(data, "--webhook-allow", "127.0.0.1") as url:
        body = json.dumps({"url": "http://127.0.0.1:9/floatscope", "min_severity": "warning"}).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/endpoints", body, headers), timeout=60).close()
        yield url


def open_page(running: Browser, *, theme: str, language: str, width: int, height: int) -> Page:
    """A page of a visitor who has chosen so."""
    context = running.new_context(
        viewport={"width": width, "height": height}, locale="en-US", color_scheme="no-preference"
    )
    chosen = {"floatscope.theme": theme, "floatscope.language": language}
    context.add_init_script(f"Object.entries({json.dumps(chosen)}).forEach(([k, v]) => localStorage.setItem(k, v))")
    return context.new_page()


def settled(page: Page, url: str, place: str) -> None:
    """Go to ``place`` and wait until nothing is loading there any more."""
    page.goto(f"{url}/#/{place}")
    drawn(page)
    page.locator("main h1, main h2").first.wait_for()
    page.wait_for_function("() => document.querySelector('.sweep') === null")
    # Charts take turns.
    there = "(one) => one.querySelector('.nsewdrag')"
    page.wait_for_function(f"() => [...document.querySelectorAll('.plot')].every({there})")
    drawn(page)
