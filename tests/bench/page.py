"""The page in Chromium, on a real server with a run of 1,000 layers, 100,000 steps and 8 ranks on the same machine.

How long until something useful is on the screen, what is loaded for it, how fast a zoom is, what 20 viewers see of the
run while it is trained, and whether a page that follows it for long keeps its size. ``--data DIR`` is a folder that
``floatscope bench ingest --steps 100000 --layers 1000 --kinds 1 --ranks 8 --data DIR`` has made, which takes longer
than all the rest; the run in it goes on, so its folder grows by some thousand steps. Without it a run is made and
removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser

from floatscope_server.bench.data import Synthetic
from floatscope_server.bench.measure import RUN
from floatscope_server.bench.report import machine
from floatscope_server.bench.targets import ServerProcess, over_http
from floatscope_server.settings import Settings
from tests.bench.page_live import followed, kept
from tests.bench.page_loads import loads, parsed, zooms
from tests.bench.spread import spread
from tests.chromium import browser

STEPS, LAYERS, RANKS = 100_000, 1_000, 8
RATE = 4.0
"""Steps a second of the training that is followed: a step each is an update."""
PARTS = ("loads", "zoom", "live", "memory")
_INTERPRETED = "--js-flags=--no-opt --no-maglev --no-sparkplug"
"""Functions are compiled one by one as they are used, some for the first time after hours: 0.9 MB from the first to the
third minute, while what the page itself holds stayed what it was. Compiled code would be all that is measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table. ``goal`` is the most it may be or, with ``least``, the least; None: nothing is promised."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    least: bool = False
    detail: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal

    def line(self, width: int) -> str:
        verdict = {None: "", True: "meets", False: "misses"}[self.met]
        goal = "" if self.goal is None else f"{'>=' if self.least else '<='} {self.goal:g}"
        return f"  {self.what:{width}} {self.value:10.4g} {self.unit:9} {verdict:6} {goal:8} {self.detail}".rstrip()


_Part = tuple[list[Figure], Any]
"""What a part of the bench has for the table, and all that it measured."""


def main(*options: str) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench page", description=__doc__)
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder with such a run, which goes on in it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    parser.add_argument("--loads", type=int, default=12, help="visits of each sort (12)")
    parser.add_argument("--zooms", type=int, default=60, help="brushes (60)")
    parser.add_argument("--live-seconds", type=float, default=60, help="time that 20 viewers follow (60)")
    parser.add_argument("--minutes", type=float, default=30, help="of training that a page follows for its memory (30)")
    parser.add_argument("--speed", type=float, default=10, help="how much faster than it these pass (10)")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part, and others that are named")
    for name, size in (("steps", STEPS), ("layers", LAYERS), ("ranks", RANKS)):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{name} of a run that is made ({size})")
    args = parser.parse_args(options)
    program = shutil.which("chromium")
    if program is None:
        print("  chromium is missing: apt-get install chromium", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as folder:
        data = args.data or Path(folder)
        if args.data is None:
            _make(data, args)
        with over_http(Settings(data=data)) as server:
            of = _run(server)
            title = f"{of['steps']} steps x {len(of['layers'])} layers x {len(of['ranks'])} ranks"
            on = machine()
            print(f"  {title}; load {on['load']:.1f}")
            version, figures, raw = _measure(program, server, of, args)
    width = max(len(figure.what) for figure in figures)
    for figure in figures:
        print(figure.line(width))
    promised = [figure.met for figure in figures if figure.met is not None]
    print(f"  {sum(promised)} of {len(promised)} goals met")
    if args.json is not None:
        table = [{**asdict(figure), "met": figure.met} for figure in figures]
        found = {"machine": on, "chromium": version, "run": title, "figures": table, **raw}
        args.json.write_text(json.dumps(found, indent=1))


def _make(data: Path, args: argparse.Namespace) -> None:
    size = ["--steps", str(args.steps), "--layers", str(args.layers), "--ranks", str(args.ranks), "--kinds", "1"]
    command = [sys.executable, "-m", "floatscope", "bench", "ingest", *size, "--data", str(data)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _run(server: ServerProcess) -> dict[str, Any]:
    with urlopen(f"{server.url}/api/v1/runs/{RUN}", timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _measure(
    program: str, server: ServerProcess, of: dict[str, Any], args: argparse.Namespace
) -> tuple[str, list[Figure], dict[str, Any]]:
    """The browser's version, the lines of the table, and all that was measured."""
    place = f"{server.url}/#/run/{RUN}"
    data = Synthetic(layers=len(of["layers"]), kinds=1, ranks=len(of["ranks"]))
    parts: dict[str, Callable[[Browser], _Part]] = {
        "loads": lambda running: _loads(running, place, args.loads),
        "zoom": lambda running: _zoom(running, place, args.zooms),
        "live": lambda running: _live(running, server, data, args),
        "memory": lambda running: _memory(running, server, data, args),
    }
    version = ""
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for name in args.only or PARTS:
        print(f"  {name} ...", file=sys.stderr, flush=True)
        with browser(program, *[_INTERPRETED] * (name == "memory")) as running:
            version = running.version
            found, raw[name] = parts[name](running)
        figures += found
    return version, figures, raw


def _loads(running: Browser, place: str, times: int) -> _Part:
    cold, warm = loads(running, place, times)
    figures = []
    for name, seen in (("empty cache", cold), ("warm cache", warm)):
        figures += [
            _of(f"{name}: useful paint after the first byte", seen.useful, goal=1000),
            _of(f"{name}: from the navigation on", seen.after_navigation),
            _of(f"{name}: first contentful paint", seen.first_contentful),
            _of(f"{name}: charts by plotly", seen.charts),
            _of(f"{name}: blocked until the useful paint", seen.blocked),
            _of(f"{name}: blocked until the charts stand", seen.blocked_with_charts),
            _of(f"{name}: long tasks", seen.long_tasks, ""),
            _of(f"{name}: resources, plotly apart", seen.requests, ""),
            _of(f"{name}: of these asked of the server", seen.requests_of_server, ""),
            _of(f"{name}: transferred, plotly apart", seen.transferred, "kB"),
            _of(f"{name}: plotly", seen.plotly, "kB"),
        ]
    figures += [_of("decoded, plotly apart", cold.decoded, "kB"), _of("scripts of these", cold.scripts, "kB")]
    traced = [parsed(running, place) for _ in range(3)]
    figures += [
        Figure("compiling, main thread, with plotly", median(one.compile for one in traced), "ms"),
        Figure("evaluating, main thread, with plotly", median(one.evaluate for one in traced), "ms"),
        Figure("style and layout", median(one.style_layout for one in traced), "ms"),
    ]
    return figures, {"cold": asdict(cold), "warm": asdict(warm), "traced": [asdict(one) for one in traced]}


def _zoom(running: Browser, place: str, times: int) -> _Part:
    took, waited = zooms(running, place, times)
    return [
        _p95("zoom: finer heat map painted, p95", took, goal=150),
        _p95("of it until the answer is there, p95", waited),
    ], {"took": took, "waited": waited}


def _live(running: Browser, server: ServerProcess, data: Synthetic, args: argparse.Namespace) -> _Part:
    pages, viewers = 3, 20
    found = followed(
        running,
        server,
        data,
        first=_run(server)["steps"],
        rate=RATE,
        seconds=args.live_seconds,
        pages=pages,
        others=viewers - pages,
    )
    return [
        Figure(
            f"live: steps that reached each of {viewers} viewers",
            100 * found.arrived,
            "%",
            100,
            least=True,
            detail=f"{found.steps} steps; {pages} are pages in Chromium, {viewers - pages} sockets without a page",
        ),
        Figure("live: updates", found.updates_per_s, "/s", 0.95 * RATE, least=True),
        Figure("live: between two updates, p95", found.gap_p95_ms, "ms"),
        Figure("live: sent to received, p50", found.late_p50_ms, "ms"),
        Figure("live: sent to received, p95", found.late_p95_ms, "ms"),
        Figure("live: sent to painted, p50", found.painted_p50_ms, "ms"),
        Figure("live: sent to painted, p95", found.painted_p95_ms, "ms", 500),
        Figure("live: messages dropped for slow viewers", found.dropped, "", 0),
        Figure("live: pace of ingest kept", 100 * found.pace_kept, "%", 95, least=True),
        Figure("live: server's CPU", 100 * found.server_cores, "% core"),
        Figure("live: main thread of a page", 100 * found.page_cores, "% core"),
        Figure("live: long tasks beyond 50 ms", found.page_blocked_ms_per_s, "ms/s"),
        Figure("live: received for an update", found.received_kb_per_update, "kB"),
    ], asdict(found)


def _memory(running: Browser, server: ServerProcess, data: Synthetic, args: argparse.Namespace) -> _Part:
    first = _run(server)["steps"]
    found = kept(running, server, data, first=first, rate=RATE, minutes=args.minutes, speed=args.speed)
    how = f"over {found.minutes:g} min of training in {found.seconds:.0f} s, {found.steps} steps"
    return [
        Figure("memory: heap after collection, no compiled code", found.heap_mb, "MB"),
        Figure("memory: growth of it", found.heap_growth_mb, "MB", 0.05 * found.heap_mb, detail=how),
        Figure("memory: nodes", found.nodes, ""),
        Figure("memory: growth of them", found.nodes_growth, "", 0.05 * found.nodes),
        Figure("memory: listeners", found.listeners, ""),
        Figure("memory: growth of them", found.listeners_growth, "", 0.05 * found.listeners),
    ], asdict(found)


def _p95(what: str, values: Sequence[float], goal: float | None = None) -> Figure:
    return Figure(what, quantiles(values, n=20)[-1], "ms", goal, detail=spread(values, "ms", 0))


def _of(what: str, values: Sequence[float], unit: str = "ms", goal: float | None = None) -> Figure:
    """The median, with its quartiles."""
    return Figure(what, median(values), unit, goal, detail=spread(values, unit, 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
