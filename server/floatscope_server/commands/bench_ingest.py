"""``floatscope bench ingest``: how fast a store takes telemetry in."""

from __future__ import annotations

import argparse

from floatscope_server.bench import options

HELP = "samples per second that a store acknowledges as on disk, and brings into tiles"
EXAMPLE = "floatscope bench ingest --steps 20000 --layers 300 --over websocket"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.configure(parser, steps=10_000)
    parser.add_argument(
        "--over",
        choices=("process", "websocket"),
        default="process",
        help="the store in this process (default), or a server process by WebSocket",
    )


def run(args: argparse.Namespace) -> int:
    """Measure; 2 if that cannot be done."""

    def measure() -> None:
        from floatscope_server.bench.measure import ingest
        from floatscope_server.bench.report import ingest_text, report

        with options.plan_of(args, http=args.over == "websocket") as plan:
            found = report(plan, ingest(plan, options.say))
            if args.peers:
                from floatscope_server.bench.peers import measure_peers

                found["peers"] = measure_peers(plan, options.say, questions=0)
        options.show(args, found, ingest_text)

    return options.measured("ingest", measure)
