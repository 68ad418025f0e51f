"""``floatscope demo``."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import shlex
import shutil
import socket
import sys
import tempfile
import webbrowser
from pathlib import Path

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "a server, and beside it two real trainings: one that goes wrong and one that does not"
EXAMPLE = "floatscope demo --seconds 60 --no-browser"

_EXTRAS = {"server": ("alembic", "fastapi", "sqlmodel", "uvicorn"), "torch": ("torch",)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=_positive, help="serve for this long, then end (default: until Ctrl-C)")
    parser.add_argument("--port", type=_port, default=6160, help="TCP port on 127.0.0.1, 0 for any (default: 6160)")
    parser.add_argument("--data", type=Path, help="folder that keeps the runs (default: a new temporary folder)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the dashboard")


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no TCP port")
    return value


def run(args: argparse.Namespace) -> int:
    if problem := _missing_extras() or _port_problem(args.port):
        return _refuse(problem)
    from floatscope._demo import orchestrate
    from floatscope._demo.api import ApiError

    try:
        data = _data_folder(args.data)
    except OSError as error:
        return _refuse(f"cannot write to {args.data}: {error.strerror}; choose another folder with --data")
    plan = orchestrate.Plan.standard(data=data, port=args.port, seconds=args.seconds)

    def on_address(address: str) -> None:
        print(f"dashboard: {address}")
        print(f"data: {data}", flush=True)
        if not args.no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address)

    try:
        orchestrate.run(plan, lambda line: print(line, flush=True), on_address)
    except (orchestrate.DemoError, ApiError) as error:
        return _refuse(str(error))
    print(f"look again: {_program()} show demo --data {shlex.quote(str(data))}")
    return 0


def _program() -> str:
    """What to type for this program: its name where the shell finds it, else how it was called."""
    script = Path(sys.argv[0])
    if script.name != "floatscope":
        return f"{shlex.quote(sys.executable)} -m floatscope"
    found = shutil.which("floatscope")
    return "floatscope" if found and script.samefile(found) else shlex.quote(str(script))


def _refuse(problem: str) -> int:
    print(f"floatscope demo: {problem}", file=sys.stderr)
    return 2


def _missing_extras() -> str | None:
    missing = [
        extra
        for extra, modules in _EXTRAS.items()
        if any(importlib.util.find_spec(module) is None for module in modules)
    ]
    if not missing:
        return None
    return f'this needs more than is installed; type: pip install "floatscope[{",".join(missing)}]"'


def _port_problem(port: int) -> str | None:
    with socket.socket() as probe:
        # As the server does: a connection of an earlier server in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is in use; choose another with --port, or 0 for any"
            return f"port {port}: {error.strerror}; choose another with --port, or 0 for any"
    return None


def _data_folder(chosen: Path | None) -> Path:
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="floatscope-demo-"))
    chosen.mkdir(parents=True, exist_ok=True)
    # Directory permissions do not bind root, and say nothing about a read-only file system: try.
    with tempfile.TemporaryFile(dir=chosen):
        return chosen.absolute()
