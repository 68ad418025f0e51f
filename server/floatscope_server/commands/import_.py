"""``floatscope import``: logs that are there already, as a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from floatscope_server.commands.text import counted

if TYPE_CHECKING:
    from floatscope_server.logs.importing import Imported

HELP = "load training logs and outputs of GPU tools into a server as a run"
EXAMPLE = "floatscope import saves/qwen/trainer_log.jsonl rocm-smi.csv --run qwen-lora"

_PATIENCE_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="logs of one run, gzipped or not, or a folder of TensorBoard events"
    )
    add_where(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_where(parser: argparse.ArgumentParser) -> None:
    """Which run, and where."""
    # The program keeps the command itself under "run".
    parser.add_argument(
        "--run", dest="run_name", metavar="NAME", help="the run's name (FLOATSCOPE_RUN, else that of file or folder)"
    )
    parser.add_argument("--server", metavar="URL", help="a running server (FLOATSCOPE_SERVER, else this machine's)")


def address_and_name(args: argparse.Namespace, otherwise: str) -> tuple[str, str]:
    """Server and run that the options or the environment name. Raises ``ValueError``."""
    from floatscope import wire
    from floatscope._address import DEFAULT_SERVER, ingest_url

    server = args.server or os.environ.get("FLOATSCOPE_SERVER") or DEFAULT_SERVER
    ingest_url(server)
    run = args.run_name or os.environ.get("FLOATSCOPE_RUN") or otherwise
    if not wire.is_run_name(run):
        raise ValueError(f"{run!r} cannot be a run's name: use 1 to {wire.MAX_RUN_NAME} characters without slashes")
    return server, run


def run(args: argparse.Namespace) -> int:
    """Send each file; 0: the server has all of it, 2: something could not be read or delivered."""
    try:
        from floatscope_server.logs.channel import ChannelError, Where
        from floatscope_server.logs.importing import Importer, in_order
        from floatscope_server.logs.source import LogError, look
    except ModuleNotFoundError as error:
        print(f'floatscope: {error.name} is missing; type: pip install "floatscope[server]"', file=sys.stderr)
        return 2
    try:
        # All are looked at before anything is sent: a name that is wrong should not leave half a run.
        logs = in_order([look(Path(name)) for name in args.files])
        server, name = address_and_name(args, logs[0].name)
        beside = all(log.beside for log in logs)
        where = Where(server=server, token=os.environ.get("FLOATSCOPE_TOKEN") or None, patience_s=_PATIENCE_S)
        attempt, log = _training_of(server, name) if beside else (0, "")
        importer = Importer(where, name, alone=beside and not attempt, attempt=attempt, beside=log)
        done = [importer.take(log) for log in logs]
        importer.close()
    except (LogError, ChannelError, ValueError) as error:
        print(f"floatscope: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"run": name, "server": server, "files": [_described(one) for one in done]}, indent=2))
    else:
        for one in done:
            print(_sentence(one))
        print(f"run {name} at {server.rstrip('/')}/#/run/{quote(name, safe='')}")
    return 0


def _training_of(server: str, run: str) -> tuple[int, str]:
    """The newest attempt of a run that is there already, 0 where there is none or the token may not read; and the
    format of the log that it came from, empty where it came from an agent."""
    from floatscope_server.commands.source import UnansweredError, ask

    try:
        found = ask(server, f"/api/v1/runs/{quote(run, safe='')}")
    except UnansweredError:
        return 0, ""
    config = found["config"]
    log = config.get("format", "") if config.get("source") in ("import", "follow") else ""
    return max((attempt["n"] for attempt in found["attempts"]), default=0), str(log)


def _described(done: Imported) -> dict[str, Any]:
    first = done.first_unread
    return {
        "file": str(done.log.path),
        "format": done.format,
        "state": done.state,
        "records": done.counts.records,
        "first_step": done.counts.first_step,
        "last_step": done.counts.last_step,
        "attempts": done.counts.attempts,
        "unread": {"lines": done.unread, "first": None if first is None else {"line": first.line, "why": first.why}},
    }


def _sentence(done: Imported) -> str:
    counts = done.counts
    steps = "" if counts.first_step is None else f", steps {counts.first_step} to {counts.last_step}"
    said = {
        "new": f"{counted(counts.records, 'record')}{steps}",
        "grown": f"{counted(counts.records, 'new record')}{steps}",
        "known": "nothing new",
        "shorter": "shorter than what was imported before; nothing was sent",
    }[done.state]
    unread = f"; {counted(done.unread, 'line')} not read" if done.unread else ""
    return f"{done.log.path}: {done.format}, {said}{unread}"
