"""``make bench``: every measurement behind a figure in the documents, one after the other.

``python -m tests.bench [NAME ...]`` runs the named ones only; options after one name are those of the bench.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from itertools import dropwhile

_BENCHES = {
    "agent": "added time of a training step on the CPU, paired steps",
    "stats": "the pass over tensors on a CPU, by variant",
    "kernels": "statistics kernels against copy bandwidth, on a GPU",
    "governor": "the default settings against the budget of 1 %, on the CPU",
    "host": "time of the training thread by section of a step, as for a GPU",
    "startup": "what an installed Floatscope costs a Python process that never trains",
    "cards": "the sidecar that reads 8 cards once a second",
    "sender": "handing over a step, while no server takes it",
    "spool": "the same with a spool, for every state of the server and of the disk, and an outage",
    "seal": "turning the tail of a stream into tiles, beside ingest",
    "keep": "retention: dropping tiles and giving pages back, beside ingest",
    "ingest": "durable ingest over a real WebSocket",
    "engines": "commits of SQLite and PostgreSQL, without a network",
    "check": "reading logs and replaying the rules over them",
    "rules": "from a block to the verdict of all rules, 8 ranks of 300 layers",
    "page": "the page in Chromium: to the first useful paint, zoom, 20 viewers of a live run, memory",
    "turns": "how often a server's threads take turns: questions and ingest at each interval",
    "window": "heat maps, series of layers, the newest values and the tail, of tiles and beside ingest",
}


def main(arguments: list[str]) -> int:
    options = list(dropwhile(lambda argument: not argument.startswith("-"), arguments))
    names = arguments[: len(arguments) - len(options)]
    if options and len(names) != 1:
        print("options go with one bench", file=sys.stderr)
        return 2
    unknown = [name for name in names if name not in _BENCHES]
    if unknown:
        print(f"no bench called {', '.join(unknown)}; there are {', '.join(_BENCHES)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name in names or _BENCHES:
        print(f"\n{name}: {_BENCHES[name]}")
        importlib.import_module(f"tests.bench.{name}").main(*options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
