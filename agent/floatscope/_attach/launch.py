"""Becoming a program whose Python processes attach themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from floatscope._address import DEFAULT_SERVER
from floatscope._spool._home import default_directory

__all__ = ["become", "environment", "notices", "source"]

_PATH = Path(__file__).parent / "path"
_PATIENCE_S = 1.0
"""For a server to take a connection, before the program begins."""
_GIT_PATIENCE_S = 2.0


def environment(
    given: Mapping[str, str], *, server: str | None, name: str | None, options: str = "", command: Sequence[str]
) -> dict[str, str]:
    """That of the program: ``given``, and what attaches. Its ``PYTHONPATH`` has one folder more, the first.

    ``options`` as ``options_in`` reads them.
    """
    changed = dict(given)
    changed["FLOATSCOPE_ATTACH"] = "1"
    before = given.get("PYTHONPATH", "")
    # An empty entry is the working directory: it stays, but none is added.
    changed["PYTHONPATH"] = os.pathsep.join([str(_PATH), before] if before else [str(_PATH)])
    if server is not None:
        changed["FLOATSCOPE_SERVER"] = server
    if name is not None:
        changed["FLOATSCOPE_RUN"] = name
    if options:
        changed["FLOATSCOPE_OPTIONS"] = options
    if (found := source()) is not None:
        changed["FLOATSCOPE_SOURCE"] = json.dumps(found)
    changed.pop("FLOATSCOPE_TOLD", None)
    return changed


def notices(given: dict[str, str]) -> list[str]:
    """What is to be said before the program begins: that nobody listens, so that telemetry waits.

    Noted in ``given``, for then no process has to say it again.
    """
    if given.get("FLOATSCOPE_DISABLED", "") not in ("", "0"):
        return ["FLOATSCOPE_DISABLED is set: the program runs without telemetry"]
    server = given.get("FLOATSCOPE_SERVER") or DEFAULT_SERVER
    problem = _unreachable(server)
    if problem is None:
        return []
    given["FLOATSCOPE_TOLD"] = "server"
    folder = default_directory(given)
    told = (
        f"no server answers at {server} ({problem}): telemetry waits in {folder}; start one{_how(server)}, now or later"
    )
    return [f"{told}; `floatscope sync` sends what still waits when the program has ended"]


def _how(server: str) -> str:
    """What starts a server at this address."""
    if server == DEFAULT_SERVER:
        return " with `floatscope server`"
    parts = urlsplit(server)
    if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost"):
        return " there"
    return f" with `floatscope server --port {parts.port or 80}`"


def _unreachable(server: str) -> str | None:
    try:
        parts = urlsplit(server)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE_S):
            return None
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__


def source() -> dict[str, object] | None:
    """The commit of the working directory, and how much differs from it; None outside of a repository.

    Asked here, once, and not in the training. Nothing of what differs, and no name of a file, is kept.
    """
    git = shutil.which("git")
    if git is None:
        return None
    commit = _git(git, "rev-parse", "HEAD")
    if commit is None:
        return None
    lines = _git(git, "diff", "HEAD", "--numstat", "--no-ext-diff", "--no-textconv")
    if lines is None:
        return {"commit": commit}
    changes = [line.split("\t") for line in lines.splitlines()]
    return {
        "commit": commit,
        "changed_files": len(changes),
        "added_lines": sum(int(added) for added, *_ in changes if added.isdecimal()),
        "removed_lines": sum(int(removed) for _, removed, *_ in changes if removed.isdecimal()),
    }


def _git(git: str, *arguments: str) -> str | None:
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [git, "-c", "core.fsmonitor=false", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_GIT_PATIENCE_S,
            check=True,
            env=quiet,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def become(command: Sequence[str], changed: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``command``: whoever started it has the program itself, its signals, terminal and status.

    ``OSError`` where there is no such program, or it cannot be run.
    """
    # A console script beside this interpreter is found without its environment being active.
    path = changed.get("PATH", os.defpath)
    found = command[0] if os.sep in command[0] else shutil.which(command[0], path=path)
    beside = Path(sys.executable).parent / command[0]
    if found is None and os.sep not in command[0] and os.access(beside, os.X_OK):
        found = str(beside)
    # Python ignores these from its start on, and what is ignored stays so in the program (as subprocess restores them).
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execvpe(found or command[0], list(command), dict(changed))  # noqa: S606 (a command is a list, no shell)
