"""Where ``runs`` and ``show`` read: a server, or the folder of one, running or not."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floatscope._top.cells import readable
from floatscope_server.commands.text import LISTED, run_lines, runs_lines
from floatscope_server.settings import DEFAULT_PORT, Settings

__all__ = ["UnansweredError", "answer", "ask", "configure", "configure_place", "judged", "no_such_run"]

_TIMEOUT_S = 30.0
_ALL_RUNS = "/api/v1/runs?archived=true"
_POINTS = 20_000
_LAST_STEPS = 200_000
"""The most that a server gives and judges at a time."""


class UnansweredError(Exception):
    """The text says why, and what to do."""


def configure_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where runs are."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--server",
        metavar="URL",
        help=f"a running server, http://127.0.0.1:{DEFAULT_PORT} unless moved (FLOATSCOPE_SERVER)",
    )
    where.add_argument("--data", metavar="DIR", help="data folder of a server, running or not (./floatscope-data)")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands have."""
    configure_place(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def judged(server: str | None, folder: str | None, name: str) -> dict[str, Any]:
    """What the rules say of the run ``name`` as it is recorded, as ``offline.judge_run`` has it. A server thins
    series of more than 20,000 steps."""
    if server is None:
        from floatscope_server.offline import judge_run

        content: dict[str, Any] = _read_folder(folder, name, judge_run)
        return content
    known = [run["name"] for run in ask(server, _ALL_RUNS)]
    if name not in known:
        raise _unknown(name, known)
    path = f"/api/v1/runs/{urllib.parse.quote(name, safe='')}"
    series = ask(server, f"{path}/scalars?points={_POINTS}")
    shown = {one["name"]: list(zip(one["steps"], one["values"], strict=True)) for one in series}
    return {**ask(server, f"{path}/rules/preview?last_steps={_LAST_STEPS}", b"{}"), "series": shown}


def answer(args: argparse.Namespace, name: str | None, *, archived: bool = False) -> int:
    """Print the run ``name``, or the list of runs, with ``archived`` also those that are; exit status 0, or 2 if there
    is no answer."""
    server = args.server or (None if args.data else os.environ.get("FLOATSCOPE_SERVER"))
    try:
        content = _from_server(server, name, archived) if server else _from_folder(args.data, name, archived)
    except UnansweredError as error:
        print(readable(f"floatscope: {error}"), file=sys.stderr)
        return 2
    if args.json:
        print("\n".join(map(readable, json.dumps(content, indent=2, ensure_ascii=False).split("\n"))))
    else:
        for line in runs_lines(content) if name is None else run_lines(content):
            print(readable(line))
    return 0


def _unknown(name: str, known: list[str]) -> UnansweredError:
    if not known:
        return UnansweredError(f"there is no run {name!r}, nor any other yet")
    listed = ", ".join(known[:LISTED]) + (f" and {len(known) - LISTED} more" if len(known) > LISTED else "")
    return UnansweredError(f"there is no run {name!r}; there are: {listed}")


def no_such_run(name: str) -> UnansweredError:
    """For commands that ask for one run and do not know the others."""
    return UnansweredError(f"there is no run {name!r}; `floatscope runs` lists them")


def _from_server(server: str, name: str | None, archived: bool) -> Any:  # noqa: ANN401 - JSON
    if name is None:
        return ask(server, _ALL_RUNS if archived else "/api/v1/runs")
    known = [run["name"] for run in ask(server, _ALL_RUNS)]
    if name not in known:
        raise _unknown(name, known)
    return ask(server, f"/api/v1/runs/{urllib.parse.quote(name, safe='')}")


def _opener(server: str) -> urllib.request.OpenerDirector:
    """A proxy that the environment names has no business with this machine's own server, nor with its token."""
    host = urllib.parse.urlsplit(server).hostname or ""
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = host == "localhost"
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))


def ask(server: str, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 - JSON
    """What the server answers to a ``GET`` of ``path``, or to a ``POST`` of ``body``. Raises ``UnansweredError``."""
    if not server.startswith(("http://", "https://")):
        raise UnansweredError(f"--server {server!r} is no address; write http://HOST:PORT")
    request = urllib.request.Request(server.rstrip("/") + path, body)  # noqa: S310 - the scheme is checked above
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if token := os.environ.get("FLOATSCOPE_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _opener(server).open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        hint = "; put a read token in FLOATSCOPE_TOKEN" if error.code in {401, 403} else ""
        raise UnansweredError(f"{server} answers {error.code} {error.reason}{hint}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        raise UnansweredError(
            f"cannot reach a floatscope server at {server}: {why}; start it with `floatscope server`, correct the "
            "address, or read a data folder with --data DIR"
        ) from error


def _from_folder(folder: str | None, name: str | None, archived: bool) -> Any:  # noqa: ANN401 - JSON
    try:
        from floatscope_server.offline import read_run, read_runs
    except ModuleNotFoundError as error:
        raise UnansweredError(f'{error.name} is missing; type: pip install "floatscope[server]"') from error
    if name is None:
        return _read_folder(folder, "", lambda settings, _name: read_runs(settings, archived=archived))
    return _read_folder(folder, name, read_run)


def _read_folder(folder: str | None, name: str, read: Callable[[Settings, str], Any]) -> Any:  # noqa: ANN401 - JSON
    try:
        settings = Settings.of_store(data=Path(folder) if folder else None)
    except ValueError as error:
        raise UnansweredError(str(error)) from error
    from floatscope_server.database import StoreError
    from floatscope_server.offline import read_runs
    from floatscope_server.query.line import UnknownRunError

    try:
        return read(settings, name)
    except StoreError as error:
        raise UnansweredError(str(error)) from error
    except UnknownRunError:
        raise _unknown(name, [run["name"] for run in read_runs(settings, archived=True)]) from None
