"""``floatscope bench query``: how long the questions of a page take while telemetry comes in."""

from __future__ import annotations

import argparse

from floatscope_server.bench import options

HELP = "how long a page's questions take of random stretches of a run, while more of it comes in"
EXAMPLE = "floatscope bench query --steps 100000 --layers 300"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.configure(parser, steps=20_000)
    parser.add_argument("--questions", type=options.number, default=200, help="of each sort (200)")
    parser.add_argument(
        "--over",
        choices=("process", "http"),
        default="process",
        help="the application in this process (default), or a server process over HTTP",
    )
    parser.add_argument(
        "--growth", type=_lengths, default=(), metavar="STEPS,...", help="instead of --steps: one run of each length"
    )


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(options.number(part) for part in text.split(",") if part)


def run(args: argparse.Namespace) -> int:
    """Measure; 2 if that cannot be done."""

    def measure() -> None:
        from floatscope_server.bench.report import growth_text, query_text

        if args.growth:
            options.show(args, {"growth": [_measure(args, steps) for steps in args.growth]}, growth_text)
        else:
            options.show(args, _measure(args, args.steps), query_text)

    return options.measured("query", measure)


def _measure(args: argparse.Namespace, steps: int) -> dict[str, object]:
    from dataclasses import replace

    from floatscope_server.bench.measure import query
    from floatscope_server.bench.report import report

    with options.plan_of(args, http=args.over == "http") as plan:
        plan = replace(plan, steps=steps, questions=args.questions)
        found = report(plan, query(plan, options.say))
        if args.peers:
            from floatscope_server.bench.peers import measure_peers

            found["peers"] = measure_peers(plan, options.say, questions=args.questions)
    return found
