"""A run that is trained while pages and other viewers follow it: what arrives, how late, and at what cost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import numpy as np
from playwright.sync_api import Browser, CDPSession

from floatscope import wire
from floatscope_server.bench.data import Synthetic
from floatscope_server.bench.measure import RUN
from floatscope_server.bench.sending import Paced, Sender, WebSocketLine
from floatscope_server.bench.targets import ServerProcess
from tests.bench.page_loads import new_context
from tests.bench.page_viewers import Seen, watching

__all__ = ["Followed", "Kept", "followed", "kept"]

_FOLLOWING = "() => document.querySelector('.plot .main-svg') !== null && probe.updates.length > 0"
_EMPTY = "() => Object.assign(probe, { updates: [], drawn: [], texts: {}, longTasks: [] })"


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Of all viewers together."""

    viewers: int
    pages: int
    seconds: float
    steps: int
    pace_kept: float
    arrived: float
    """Share of the steps that came, for the viewer to whom least came."""
    updates_per_s: float
    gap_p95_ms: float
    late_p50_ms: float
    """From the sending of a step's first block to the last word about it at a viewer."""
    late_p95_ms: float
    painted_p50_ms: float
    """The same until a page has painted it."""
    painted_p95_ms: float
    resyncs: int
    dropped: int
    server_cores: float
    page_cores: float
    """Of a page's main thread, the mean of the pages."""
    page_blocked_ms_per_s: float
    received_kb_per_update: float


class _Noting(WebSocketLine):
    """Notes when the first rank sent each of its blocks, in seconds since 1970."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: dict[int, float] = {}

    def send(self, writer: str, message: wire.AgentMessage) -> None:
        if isinstance(message, wire.Block):
            self.sent.setdefault(message.seq, time.time())
        super().send(writer, message)


@contextmanager
def _trained(url: str, data: Synthetic, first: int, rate: float) -> Iterator[tuple[Paced, _Noting]]:
    """The run goes on from step ``first`` on, at ``rate`` steps a second, each a block of every rank."""
    line = _Noting(url)
    sender = Sender(line, data, RUN, first=first)
    pace = Paced(sender, batch=1, interval=1 / rate)
    pace.start()
    try:
        yield pace, line
    finally:
        pace.stop()
        sender.end()


def followed(
    running: Browser,
    server: ServerProcess,
    data: Synthetic,
    *,
    first: int,
    rate: float,
    seconds: float,
    pages: int,
    others: int,
) -> Followed:
    """``pages`` in Chromium and ``others`` that are none follow the run as it goes on from step ``first`` on."""
    # A window each: a browser draws only the tab of a window that is in front.
    contexts = [new_context(running) for _ in range(pages)]
    shown = [context.new_page() for context in contexts]
    with _trained(server.url, data, first, rate) as (pace, line), watching(server.url, RUN, others) as end_others:
        for page in shown:
            page.goto(f"{server.url}/#/run/{RUN}")
            page.wait_for_function(_FOLLOWING)
            page.evaluate(_EMPTY)
        sessions = [page.context.new_cdp_session(page) for page in shown]
        begin, cpu, busy, head = time.time(), _server_cpu(server), _busy(sessions), pace.head
        shown[0].wait_for_timeout(1e3 * seconds)
        took = time.time() - begin
        cpu, busy, head = _server_cpu(server) - cpu, _busy(sessions) - busy, pace.head - head
        probes: list[dict[str, Any]] = [page.evaluate("() => probe") for page in shown]
        dropped = _dropped(server.url)
        everybody = [_seen(probe) for probe in probes] + end_others()
        for context in contexts:
            context.close()
        share = pace.stop()
    # The first second and the last three: what was under way then.
    sent = {first + seq - 1: at for seq, at in line.sent.items() if begin + 1 < at < begin + took - 3}
    late = [one.came[step] - at for one in everybody for step, at in sent.items() if step in one.came]
    gaps = [gap for one in everybody for gap in np.diff(sorted({one.came[s] for s in sent if s in one.came}))]
    painted = [
        at - sent[step]
        for one, probe in zip(everybody, probes, strict=False)
        for step, at in _painted(one, probe["drawn"]).items()
        if step in sent
    ]
    return Followed(
        viewers=others + pages,
        pages=pages,
        seconds=took,
        steps=head,
        pace_kept=share,
        arrived=min(sum(step in one.came for step in sent) / len(sent) for one in everybody),
        updates_per_s=1 / float(np.mean(gaps)),
        gap_p95_ms=1e3 * float(np.percentile(gaps, 95)),
        late_p50_ms=1e3 * float(np.percentile(late, 50)),
        late_p95_ms=1e3 * float(np.percentile(late, 95)),
        painted_p50_ms=1e3 * float(np.percentile(painted, 50)),
        painted_p95_ms=1e3 * float(np.percentile(painted, 95)),
        resyncs=sum(one.resyncs for one in everybody),
        dropped=dropped,
        server_cores=cpu / took,
        page_cores=busy / took / pages,
        page_blocked_ms_per_s=sum(task - 50 for probe in probes for _, task in probe["longTasks"]) / took / pages,
        received_kb_per_update=sum(one.received for one in everybody)
        / 1e3
        / max(1, sum(len(one.came) for one in everybody if one.received)),
    )


def _seen(probe: dict[str, Any]) -> Seen:
    seen = Seen(resyncs=probe["texts"].get("resync", 0))
    for at, first, steps in probe["updates"]:
        seen.note(at / 1e3, first, steps)
    return seen


def _painted(seen: Seen, drawn: list[tuple[float, float | None]]) -> dict[int, float]:
    """When the first picture that was drawn after each step had come was on the screen."""
    put = np.array([at for at, painted in drawn if painted is not None]) / 1e3
    on = np.array([painted for _, painted in drawn if painted is not None]) / 1e3
    places = {step: int(np.searchsorted(put, at)) for step, at in seen.came.items()}
    return {step: float(on[place]) for step, place in places.items() if place < len(on)}


def _server_cpu(server: ServerProcess) -> float:
    return server.used()["server"].cpu


def _metrics(session: CDPSession) -> dict[str, float]:
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def _busy(sessions: list[CDPSession]) -> float:
    """Seconds of CPU that the main threads of the pages have used."""
    for session in sessions:
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return sum(_metrics(session)["TaskDuration"] for session in sessions)


def _dropped(url: str) -> int:
    with urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(r"^floatscope_viewer_dropped_messages (\d+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a page holds while it follows a run, but for the first quarter: least-squares growth, and the mean."""

    minutes: float
    """Of the training that was followed."""
    seconds: float
    """That it took."""
    steps: int
    heap_mb: float
    heap_growth_mb: float
    nodes: float
    nodes_growth: float
    listeners: float
    listeners_growth: float
    samples: list[tuple[float, float, float, float]]
    """Seconds, MB of the heap after a collection, nodes, listeners."""


def kept(
    running: Browser, server: ServerProcess, data: Synthetic, *, first: int, rate: float, minutes: float, speed: float
) -> Kept:
    """A page follows ``minutes`` of a training of ``rate`` steps a second that runs ``speed`` times as fast."""
    context = new_context(running)
    page = context.new_page()
    samples: list[tuple[float, float, float, float]] = []
    with _trained(server.url, data, first, rate * speed) as (pace, _):
        page.goto(f"{server.url}/#/run/{RUN}")
        page.wait_for_function(_FOLLOWING)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        begin, head = time.monotonic(), pace.head
        while (at := time.monotonic() - begin) < 60 * minutes / speed or len(samples) < 3:
            page.evaluate(_EMPTY)
            page.evaluate("() => performance.clearResourceTimings()")
            session.send("HeapProfiler.collectGarbage")
            found = _metrics(session)
            samples.append((at, found["JSHeapUsedSize"] / 1e6, found["Nodes"], found["JSEventListeners"]))
            page.wait_for_timeout(60e3 * minutes / speed / 40)
        steps = pace.head - head
    context.close()
    # What is used for the first time is read in, so a page grows at first.
    columns = np.array(samples[len(samples) // 4 :])
    seconds = columns[:, 0]
    growth = [float(np.polyfit(seconds, column, 1)[0] * (seconds[-1] - seconds[0])) for column in columns.T[1:]]
    means = columns.mean(axis=0)
    return Kept(
        minutes=minutes,
        seconds=at,
        steps=steps,
        heap_mb=float(means[1]),
        heap_growth_mb=growth[0],
        nodes=float(means[2]),
        nodes_growth=growth[1],
        listeners=float(means[3]),
        listeners_growth=growth[2],
        samples=samples,
    )
