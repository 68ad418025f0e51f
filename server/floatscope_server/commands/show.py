"""``floatscope show``: one run."""

from __future__ import annotations

import argparse

from floatscope_server.commands import source

HELP = "show one run: state, layers, skipped steps, alerts, gaps"
EXAMPLE = "floatscope show demo --json --data ./floatscope-data"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", metavar="RUN", help="the run's name")
    source.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Print the run; 2 if there is none of this name."""
    return source.answer(args, args.name)
