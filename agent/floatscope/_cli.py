"""The ``floatscope`` program: finds its subcommands by entry point and runs one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType

import floatscope

__all__ = ["main"]

_GROUP = "floatscope.commands"


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
    except KeyboardInterrupt:
        return 130
    return status
