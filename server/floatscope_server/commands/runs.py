"""``floatscope runs``: the list of runs."""

from __future__ import annotations

import argparse

from floatscope_server.commands import source

HELP = "list the runs of a server, or of its data folder"
EXAMPLE = "floatscope runs --data ./floatscope-data --json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    source.configure(parser)
    parser.add_argument("--archived", action="store_true", help="list archived runs too")


def run(args: argparse.Namespace) -> int:
    """Print the list; 2 if it cannot be had."""
    return source.answer(args, None, archived=args.archived)
