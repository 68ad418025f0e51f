"""How long a page takes to show something useful, what it loads for that, and how fast a zoom is."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["PROBE", "Loads", "Parsed", "loads", "new_context", "parsed", "zooms"]

PROBE = Path(__file__).with_name("page_probe.js")
SIZE = {"width": 1440, "height": 900}
_PATIENCE_MS = 120_000
_TRACED = "disabled-by-default-v8.compile,devtools.timeline,v8"
_PHASES = {
    "compile": ("v8.compile", "v8.compileModule", "v8.parseOnBackground", "V8.CompileCode"),
    "evaluate": ("EvaluateScript", "v8.evaluateModule"),
    "style_layout": ("UpdateLayoutTree", "Layout"),
}
"""Names of trace events, which may lie in one another: what is inside another one of the same phase counts once."""


def new_context(running: Browser) -> BrowserContext:
    """A visitor with an empty cache at a wide screen, whose pages are probed."""
    context = running.new_context(viewport=SIZE, locale="en-US", color_scheme="dark")  # type: ignore[arg-type]
    context.add_init_script(path=PROBE)
    context.set_default_timeout(_PATIENCE_MS)
    return context


@dataclass(slots=True)
class Loads:
    """Of one sort of visit; milliseconds since the server's first byte, where nothing else is said."""

    useful: list[float] = field(default_factory=list)
    after_navigation: list[float] = field(default_factory=list)
    first_byte: list[float] = field(default_factory=list)
    first_contentful: list[float] = field(default_factory=list)
    charts: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    blocked_with_charts: list[float] = field(default_factory=list)
    long_tasks: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    requests_of_server: list[float] = field(default_factory=list)
    transferred: list[float] = field(default_factory=list)
    decoded: list[float] = field(default_factory=list)
    scripts: list[float] = field(default_factory=list)
    plotly: list[float] = field(default_factory=list)


def loads(running: Browser, address: str, times: int) -> tuple[Loads, Loads]:
    """``times`` visits with an empty cache, each followed by one that finds what the first has left."""
    cold, warm = Loads(), Loads()
    for _ in range(times):
        context = new_context(running)
        for visit in (cold, warm):
            page = context.new_page()
            _load(page, address, visit)
            page.close()
        context.close()
    return cold, warm


def _load(page: Page, address: str, into: Loads) -> None:
    page.goto(address)
    page.wait_for_function("() => probe.useful !== null")
    page.wait_for_function("() => document.querySelector('.plot .main-svg') !== null")
    found: dict[str, Any] = page.evaluate(
        """async () => {
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const [navigation] = performance.getEntriesByType("navigation");
          const fetched = [navigation, ...performance.getEntriesByType("resource")];
          return {
            began: performance.timeOrigin,
            firstByte: navigation.responseStart,
            contentful: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN,
            charts: performance.now(),
            useful: probe.useful,
            longTasks: probe.longTasks,
            fetched: fetched.map((one) => [one.name, one.initiatorType, one.transferSize, one.decodedBodySize]),
          };
        }"""
    )
    began, first_byte = found["began"], found["firstByte"]
    useful = found["useful"] - began
    into.first_byte.append(first_byte)
    into.useful.append(useful - first_byte)
    into.after_navigation.append(useful)
    into.first_contentful.append(found["contentful"] - first_byte)
    into.charts.append(found["charts"] - first_byte)
    tasks = [(at - began, took) for at, took in found["longTasks"]]
    into.blocked.append(sum(took - 50 for at, took in tasks if at < useful))
    into.blocked_with_charts.append(sum(took - 50 for _, took in tasks))
    into.long_tasks.append(len(tasks))
    fetched = [one for one in found["fetched"] if not one[0].endswith("/plotly.min.js")]
    into.requests.append(len(fetched))
    into.requests_of_server.append(sum(one[2] > 0 for one in fetched))
    into.transferred.append(sum(one[2] for one in fetched) / 1e3)
    into.decoded.append(sum(one[3] for one in fetched) / 1e3)
    into.scripts.append(sum(one[3] for one in fetched if one[0].endswith(".js")) / 1e3)
    into.plotly.append(sum(one[2] for one in found["fetched"] if one[0].endswith("/plotly.min.js")) / 1e3)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Milliseconds of the page's main thread in a load with an empty cache, until the charts stand."""

    compile: float
    evaluate: float
    style_layout: float


def parsed(running: Browser, address: str) -> Parsed:
    """Of one load; tracing slows it down a little, so it counts for nothing else."""
    context = new_context(running)
    page = context.new_page()
    running.start_tracing(page=page, categories=_TRACED.split(","))
    _load(page, address, Loads())
    events: list[dict[str, Any]] = json.loads(running.stop_tracing())["traceEvents"]
    context.close()
    return Parsed(**{phase: _outermost(events, names) for phase, names in _PHASES.items()})


def _outermost(events: Sequence[dict[str, Any]], names: Sequence[str]) -> float:
    """Milliseconds of the events of these names, on the threads that run scripts of pages."""
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    found = sorted(
        (event["pid"], event["tid"], event["ts"], event.get("dur", 0))
        for event in events
        if event["name"] in names and event["ph"] == "X" and (event["pid"], event["tid"]) in main
    )
    total, end = 0.0, (0, 0, 0)
    for pid, tid, start, took in found:
        if (pid, tid, start + took) <= end and end[:2] == (pid, tid):
            continue
        total += took
        end = (pid, tid, start + took)
    return total / 1e3


def zooms(running: Browser, address: str, times: int, seed: int = 0) -> tuple[list[float], list[float]]:
    """Milliseconds from the end of a brush over the heat map until the finer map is painted, and what of it was
    waiting for the server. Every second brush is in what the one before it has left."""
    context = new_context(running)
    page = context.new_page()
    _load(page, address, Loads())
    chance = random.Random(seed)
    took, waited = [], []
    for number in range(times):
        box = page.locator(".heat-map canvas.cells").bounding_box()
        assert box is not None
        wide = box["width"] * 2 ** chance.uniform(-4, -0.5)
        left = box["x"] + chance.uniform(0.02, 0.98) * (box["width"] - wide)
        y = (box["y"] + min(box["y"] + box["height"], SIZE["height"])) / 2
        page.evaluate("() => { performance.clearResourceTimings(); probe.drawn = []; probe.released = null; }")
        page.mouse.move(left, y)
        page.mouse.down()
        page.mouse.move(left + wide / 2, y)
        page.mouse.move(left + wide, y)
        page.mouse.up()
        answered, painted, released = _refined(page)
        took.append(painted - released)
        waited.append(answered - released)
        if number % 2:
            page.evaluate("() => { performance.clearResourceTimings(); probe.drawn = []; }")
            page.locator(".heat-map").press("0")
            _refined(page)
        page.mouse.move(2, 2)
    context.close()
    return took, waited


_REFINED = """() => {
  const answer = performance.getEntriesByType("resource").findLast(({ name }) => name.includes("/heatmap?"));
  if (!answer || answer.responseEnd === 0) return null;
  const at = performance.timeOrigin + answer.responseEnd;
  const picture = probe.drawn.find(([put, painted]) => put >= at && painted !== null);
  return picture ? [at, picture[1], probe.released ?? at] : null;
}"""


def _refined(page: Page) -> tuple[float, float, float]:
    """When the heat map that was asked for last came and was painted, and when the pointer was released, if it was."""
    found: list[float] = page.wait_for_function(_REFINED).json_value()
    return found[0], found[1], found[2]
