"""``floatscope server``: the service."""

from __future__ import annotations

import argparse

from floatscope_server.settings import DEFAULT_PORT

HELP = "run the service: takes telemetry in, stores it, shows it, sends alerts"
EXAMPLE = "floatscope server --data ./floatscope-data"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1); others need --token-file")
    parser.add_argument("--port", type=int, help=f"TCP port ({DEFAULT_PORT}); 0 chooses a free one")
    parser.add_argument("--data", metavar="DIR", help="folder of the database (./floatscope-data)")
    parser.add_argument("--db", metavar="URL", help="database URL, sqlite:///PATH or postgresql://...")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="lines SCOPE TOKEN (ingest, read, admin); written with fresh tokens if it is missing",
    )
    parser.add_argument(
        "--dump-bytes",
        type=int,
        metavar="N",
        help="bytes of flight recorder dumps kept of one run (1 GiB); then the oldest go",
    )
    parser.add_argument("--public-url", metavar="URL", help="where people reach this server; links in webhooks")
    parser.add_argument(
        "--webhook-allow",
        action="append",
        metavar="HOST|CIDR",
        help="a private address that webhooks may connect to; may be repeated",
    )
    parser.add_argument(
        "--apprise-file",
        metavar="FILE",
        help="lines NAME ADDRESS: what alerts can be sent to through apprise, which connects by itself",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="a host name under which browsers reach this server; may be repeated",
    )
    parser.add_argument(
        "--backup",
        metavar="PATH",
        help="copy the store into a new file, or into a folder, beside a running server or without one, and end",
    )
    parser.add_argument(
        "--check-store",
        action="store_true",
        help="read everything that is stored, beside a running server or without one, print a line for each damage, "
        "and end with 1 if there is any",
    )
    parser.add_argument(
        "--repair-store",
        action="store_true",
        help="the same without a running server, and mend damaged tiles: made again from finer ones, or dropped",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from floatscope_server.serve_command import serve

    return serve(args)
