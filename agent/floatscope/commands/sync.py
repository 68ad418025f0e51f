"""``floatscope sync``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope._log import counted

if TYPE_CHECKING:
    from floatscope._spool._leftovers import Delivery

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "send what trainings that are gone could not deliver"
EXAMPLE = "floatscope sync --server http://127.0.0.1:6160"

_PATIENCE_S = 10.0
_LITTLE_PATIENCE_S = 1.0
"""With a server that another spool has just waited for in vain."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", metavar="DIR", help="the spool (default: FLOATSCOPE_DIR, else the user's)")
    parser.add_argument("--server", metavar="URL", help="where to send (default: where each training sent)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from floatscope._address import ingest_url
    from floatscope._spool._home import Home, default_directory

    home = Home(Path(args.dir or default_directory(os.environ)).expanduser(), 0)
    try:
        if args.server is not None:
            ingest_url(args.server)
        # Nothing was ever spooled where nobody says that something was.
        writers = home.writers() if args.dir or home.path.exists() else []
    except ValueError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"cannot read {home.path}: {error.strerror}; name the folder that a training used")
    deliveries, alive = _deliver(writers, args.server, tell=not args.json)
    if args.json:
        print(json.dumps({"spools": [_described(one) for one in deliveries], "alive": alive}, indent=2))
    elif not deliveries:
        print(f"nothing waits in {home.path}")
    if any(one.waiting for one in deliveries) and not args.json:
        print("what waits stays on this disk until that server answers and takes it; --server URL names another")
    if alive and not args.json:
        print(f"{alive} in use: a training that runs, or another sync, sends those")
    return 0 if all(one.complete for one in deliveries) else 1


def _deliver(writers: list[Path], server: str | None, *, tell: bool) -> tuple[list[Delivery], int]:
    from floatscope._spool._home import Folder
    from floatscope._spool._leftovers import Delivery, deliver

    done: list[Delivery] = []
    alive = 0
    silent: set[str] = set()
    for path in writers:
        try:
            folder = Folder.adopt(path)
        except OSError as error:
            done.append(Delivery(writer=path.name, problem=f"{path}: {error.strerror}"))
            continue
        if folder is None:
            alive += path.exists()
            continue
        token = os.environ.get("FLOATSCOPE_TOKEN") or None
        about = folder.about()
        target = server or (about.server if about is not None else "")
        patience_s = _LITTLE_PATIENCE_S if target in silent else _PATIENCE_S
        done.append(deliver(folder, server=server, token=token, patience_s=patience_s))
        if done[-1].problem is not None and not done[-1].delivered:
            silent.add(target)
        if tell:
            print(_sentence(done[-1]), flush=True)
    return done, alive


def _described(delivery: Delivery) -> dict[str, object]:
    return {**asdict(delivery), "complete": delivery.complete}


def _sentence(delivery: Delivery) -> str:
    delivered = counted(delivery.delivered, "record", "records")
    parts = [f"{delivery.run or delivery.writer}, rank {delivery.rank}: {delivered} delivered"]
    if delivery.lost:
        parts.append(", ".join(f"{count} lost ({reason})" for reason, count in sorted(delivery.lost.items())))
    if delivery.damaged_bytes:
        parts.append(f"{counted(delivery.damaged_bytes, 'byte', 'bytes')} damaged")
    if delivery.torn_bytes:
        parts.append("its last record was cut off in the writing, as when a process is killed")
    if delivery.waiting or delivery.problem:
        what = counted(delivery.waiting, "waits", "wait") if delivery.waiting else "its end waits"
        whose = f" for {delivery.server}" if delivery.server else ""
        parts.append(f"{what}{whose}: {delivery.problem}")
    return "; ".join(parts)


def _refuse(problem: str) -> int:
    print(f"floatscope sync: {problem}", file=sys.stderr)
    return 2
