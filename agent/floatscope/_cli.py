"""The ``floatscope`` program: finds its subcommands by entry point and runs one."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType

import floatscope

__all__ = ["main"]

_GROUP = "floatscope.commands"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: ModuleType) -> None:
    parser = subparsers.add_parser(
        name,
        help=command.HELP,
        description=command.HELP,
        epilog=f"example:\n  {command.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.configure(parser)
    parser.set_defaults(run=command.run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that ``argv`` names; returns its exit status (2: the question could not be answered)."""
    _ready_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {point.name: point for point in metadata.entry_points(group=_GROUP)}
    parser = argparse.ArgumentParser(
        prog="floatscope", description="Live numeric-health telemetry for mixed-precision training."
    )
    parser.add_argument("--version", action="version", version=f"floatscope {floatscope.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    # Only the command that runs is imported; help and mistakes list them all.
    for name in [chosen] if chosen in commands else sorted(commands):
        _add(subparsers, name, commands[name].load())
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read (`| head`) has enough.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        # Of a stream, which has no name: what a command writes to files of its own is its own affair.
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_output()
        sys.stderr.write(f"floatscope: cannot write the answer: {error.strerror}\n")
        return 2
    return status


def _ready_streams() -> None:
    """An output that is closed (``>&-``) loses what is said; a letter that it cannot show is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (for good)
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Python flushes once more at exit, and must find somewhere to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
