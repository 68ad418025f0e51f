"""``floatscope follow``: a log that grows, as a run, while it grows."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import quote

from floatscope_server.commands.import_ import add_where, address_and_name
from floatscope_server.commands.text import counted

if TYPE_CHECKING:
    from floatscope_server.logs.following import Follower

HELP = "send a log to a server while it grows, without an agent"
EXAMPLE = "floatscope follow saves/qwen/trainer_log.jsonl --run qwen-lora\n  train.sh 2>&1 | floatscope follow -"

_POLL_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a log, there already or not, a folder of TensorBoard events, or - for standard input, which is passed on",
    )
    add_where(parser)


def run(args: argparse.Namespace) -> int:
    """Until it is stopped or standard input ends; 0, or 2: it could not be read or is not taken."""
    try:
        from floatscope_server.logs.channel import ChannelError, StoppedError, Where
        from floatscope_server.logs.following import Follower
        from floatscope_server.logs.source import LogError, name_of
    except ModuleNotFoundError as error:
        print(f'floatscope: {error.name} is missing; type: pip install "floatscope[server]"', file=sys.stderr)
        return 2
    from floatscope._spool._home import default_directory
    from floatscope._spool._spooler import SpoolPlace

    standard_input = args.file == "-"
    path = Path(args.file)
    otherwise = time.strftime("log-%Y%m%d-%H%M%S", time.gmtime()) if standard_input else name_of(path)
    try:
        server, name = address_and_name(args, otherwise)
    except ValueError as error:
        print(f"floatscope: {error}", file=sys.stderr)
        return 2
    spool = SpoolPlace(directory=Path(default_directory(os.environ)).expanduser()) if standard_input else None
    token = os.environ.get("FLOATSCOPE_TOKEN") or None
    where = Where(server=server, token=token, patience_s=None, spool=spool)
    with stopping(patient=standard_input) as stop:
        follower = Follower(
            where,
            name,
            "stdin" if standard_input else path.resolve().name,
            stopped=stop.is_set,
            tell=_tell,
            poll_s=_POLL_S,
        )
        _tell(f"run {name} at {server.rstrip('/')}/#/run/{quote(name, safe='')}")
        try:
            if standard_input:
                _follow_input(follower, stop.is_set)
            else:
                follower.file(path)
        except (LogError, ChannelError) as error:
            _tell(str(error))
            return 2
        except StoppedError:
            _tell("stopped before the server could be reached; nothing was sent")
            return 0
    _tell(_sentence(args.file, follower, spooled=standard_input))
    return 0


def _follow_input(follower: Follower, stopped: Callable[[], bool]) -> None:
    """What happens here must not keep the writer from writing: after an error of ours everything is passed on still."""
    from floatscope_server.logs.tail import Pace, piped

    sys.stdout.flush()
    source, target = sys.stdin.fileno(), sys.stdout.fileno()
    try:
        follower.piped(lambda pace: piped(source, target, pace))
    except Exception:
        for _ in piped(source, target, Pace(stopped, lambda: None)):
            pass
        raise


def _tell(text: str) -> None:
    print(f"floatscope: {text}", file=sys.stderr, flush=True)


def _sentence(file: str, follower: Follower, *, spooled: bool) -> str:
    parts = [f"{file}: {follower.format or 'no known format'}, {counted(follower.records, 'record')} sent"]
    if follower.known:
        parts.append(f"{follower.known} were there before")
    if follower.unread:
        parts.append(f"{counted(follower.unread, 'line')} not read")
    if follower.tail is not None and follower.tail.rotations:
        parts.append(counted(follower.tail.rotations, "rotation"))
    if follower.tail is not None and follower.tail.truncations:
        parts.append(counted(follower.tail.truncations, "truncation"))
    if follower.left:
        how = "`floatscope sync` sends them" if spooled else "follow it again to send them"
        parts.append(f"{follower.left} not delivered: {how}")
    return "; ".join(parts)


@contextmanager
def stopping(*, patient: bool) -> Iterator[threading.Event]:
    """An event that Ctrl-C or a TERM sets. ``patient``: the first Ctrl-C is left to whoever writes to standard input,
    whose last words are to be read."""
    stop = threading.Event()
    interrupts = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if not patient or number == signal.SIGTERM or interrupts > 1:
            stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
