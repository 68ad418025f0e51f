"""``floatscope top``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from floatscope._address import DEFAULT_SERVER
from floatscope._client._client import Client
from floatscope._client._errors import ClientError
from floatscope._top.cells import plain_signs, rendered
from floatscope._top.frames import frame
from floatscope._top.source import Source, look

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "watch runs in a terminal: headroom of the worst layers, alerts, GPUs"
EXAMPLE = "floatscope top demo --server http://127.0.0.1:6160"

_ONCE = (80, 24)
"""Columns and rows of a frame for a program that says nothing of its size."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="RUN", help="the run to open (default: the list)")
    parser.add_argument("--server", metavar="URL", help=f"the server (FLOATSCOPE_SERVER, else {DEFAULT_SERVER})")
    parser.add_argument("--once", action="store_true", help="print one frame, as it does where there is no terminal")


def run(args: argparse.Namespace) -> int:
    server = args.server or os.environ.get("FLOATSCOPE_SERVER") or DEFAULT_SERVER
    try:
        client = Client(server, timeout_s=10.0)
    except ValueError as error:
        print(f"floatscope top: {error}", file=sys.stderr)
        return 2
    if args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _once(client, server, args.name)
    return _live(client, server, args.name)


def _text(lines: Sequence[str]) -> Sequence[str]:
    """For an output that cannot write every sign, such as that of LANG=C."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        "".join(lines).encode(encoding)
    except UnicodeEncodeError:
        return [plain_signs(line) for line in lines]
    return lines


def _once(client: Client, server: str, name: str | None) -> int:
    """One frame without escape sequences."""
    try:
        known = look(client, server, name)
    except ClientError as error:
        print(f"floatscope top: {error}", file=sys.stderr)
        return 2
    if name is not None and all(one["name"] != name for one in known.runs or ()):
        print(f"floatscope top: there is no run {name!r}; `floatscope top` lists them", file=sys.stderr)
        return 2
    size = shutil.get_terminal_size(_ONCE)
    lines = rendered(frame(known, -1, size.columns, size.lines), size.columns, styled=False, coloured=False)
    # The last line is for keys.
    print("\n".join(_text(lines[:-1])).rstrip("\n"))
    return 0


def _live(client: Client, server: str, name: str | None) -> int:
    # Windows has no such terminal, and yet lists the command.
    from floatscope._top.terminal import terminal

    coloured = not os.environ.get("NO_COLOR")
    chosen = 0
    with terminal() as screen:
        source = Source(client, server, name, screen.wake)
        source.start()
        try:
            while True:
                known = source.known
                runs = known.runs or ()
                chosen = max(0, min(chosen, len(runs) - 1))
                columns, rows = screen.size()
                lines = frame(known, chosen, columns, rows)
                screen.show(_text(rendered(lines, columns, styled=True, coloured=coloured)))
                for key in screen.wait():
                    if key == "quit":
                        return 0
                    if key == "back" and source.known.opened is not None:
                        source.open(None)
                    elif source.known.opened is None:
                        chosen = _moved(key, chosen, len(runs))
                        if key == "open" and runs:
                            source.open(runs[chosen]["name"])
        finally:
            source.stop()


def _moved(key: str, chosen: int, count: int) -> int:
    last = max(0, count - 1)
    return {"up": max(0, chosen - 1), "down": min(last, chosen + 1), "first": 0, "last": last}.get(key, chosen)
