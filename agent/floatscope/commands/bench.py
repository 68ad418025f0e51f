"""``floatscope bench``: what parts of Floatscope cost, each a subcommand."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path

from floatscope._bench.catalogue import MODELS, RECORDERS, Plan, PlanError
from floatscope._bench.table import markdown

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "measures what Floatscope costs and does on this machine, beside others"
EXAMPLE = "floatscope bench agent --models mlp --pairs 60"

_GROUP = "floatscope.benches"
_PAIRS = 40


def configure(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    _configure_agent(_parser(benches, "agent", "time that recorders add to the steps of a training", EXAMPLE))
    for point in sorted(metadata.entry_points(group=_GROUP), key=lambda point: point.name):
        bench = point.load()
        parser_of = _parser(benches, point.name, bench.HELP, bench.EXAMPLE)
        bench.configure(parser_of)
        parser_of.set_defaults(measure=bench.run)


def _parser(
    benches: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, example: str
) -> argparse.ArgumentParser:
    return benches.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _configure_agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where torch sees a GPU")
    parser.add_argument("--models", type=_names, default=(), metavar="NAME,...", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--recorders", type=_names, default=(), metavar="NAME,...", help=f"of {', '.join(RECORDERS)}")
    parser.add_argument("--pairs", type=_positive, default=_PAIRS, help=f"most pairs of steps (default: {_PAIRS})")
    parser.add_argument("--compile", action="store_true", help="compiled trainings instead of eager ones")
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures there too; - prints them instead of the table"
    )
    parser.set_defaults(measure=_agent)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of pairs above 0")
    return value


def run(args: argparse.Namespace) -> int:
    status: int = args.measure(args)
    return status


def _agent(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        return _refuse('this needs torch; type: pip install "floatscope[torch]"')
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        return _refuse("torch sees no GPU here; use --device cpu")
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        plan = Plan.of(
            device=device, models=args.models, recorders=args.recorders, pairs=args.pairs, compiled=args.compile
        )
    except PlanError as error:
        return _refuse(str(error))
    output = None if args.json in (None, "-") else Path(args.json)
    if output is not None:
        try:
            output.touch()
        except OSError as error:
            return _refuse(f"cannot write {output}: {error.strerror}; choose another file with --json")
    from floatscope._bench import agent

    report = agent.run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json == "-" else markdown(report), end="\n" if args.json == "-" else "")
    return 0


def _refuse(problem: str) -> int:
    print(f"floatscope bench agent: {problem}", file=sys.stderr)
    return 2
