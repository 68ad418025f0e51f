"""``floatscope run``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "run a training and watch it, without a change to its code"
EXAMPLE = "floatscope run --name qwen-lora -- llamafactory-cli train qwen_lora.yaml"

_CANNOT_RUN, _NOT_FOUND = 126, 127
"""As a shell, env(1) and nohup(1) have it."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", help="where to send (default: FLOATSCOPE_SERVER, else http://127.0.0.1:6160)"
    )
    parser.add_argument("--name", metavar="RUN", help="name of the run (default: the script's, and what tells its job)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of floatscope.watch, such as activations_every=1; may be given several times",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- CMD", help="the program and its arguments")


def run(args: argparse.Namespace) -> int:
    """Become CMD. Returns only where that fails."""
    from floatscope._attach import launch
    from floatscope._config import Config, options_in

    command = args.cmd[1:] if args.cmd[:1] == ["--"] else args.cmd
    if not command or not command[0]:  # an empty word, as of a variable that is not set
        return _say("no command is given; write it after --, as in: floatscope run -- python train.py", 2)
    options = ",".join([*filter(None, [os.environ.get("FLOATSCOPE_OPTIONS")]), *args.set])
    name = args.name if args.name is not None else os.environ.get("FLOATSCOPE_RUN") or None
    server = args.server if args.server is not None else os.environ.get("FLOATSCOPE_SERVER") or None
    try:
        Config(run=name, server=server)
        options_in(options)
    except ValueError as error:
        return _say(str(error), 2)
    environment = launch.environment(os.environ, server=args.server, name=args.name, options=options, command=command)
    for line in launch.notices(environment):
        # A log that is full, or that nobody reads, keeps no training from its start.
        with contextlib.suppress(OSError):
            _say(line, 0)
            sys.stderr.flush()
    try:
        launch.become(command, environment)
    except FileNotFoundError:
        return _say(f"{command[0]}: command not found", _NOT_FOUND)
    except OSError as error:
        return _say(f"{command[0]}: {error.strerror}", _CANNOT_RUN)


def _say(line: str, status: int) -> int:
    print(f"floatscope run: {line}", file=sys.stderr)
    return status
