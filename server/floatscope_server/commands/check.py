"""``floatscope check``: what the rules say about logs that are there already."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope_server.commands.source import UnansweredError, judged
from floatscope_server.commands.text import counted

if TYPE_CHECKING:
    from floatscope_server.check.points import Points
    from floatscope_server.check.report import Report

HELP = "replay the rules over training logs and outputs of GPU tools"
EXAMPLE = "floatscope check trainer_log.jsonl train.log --json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a log of LLaMA-Factory, transformers, TensorBoard, DeepSpeed, ...; with --server or --data a run",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--server", metavar="URL", help="judge runs of a running server")
    where.add_argument("--data", metavar="DIR", help="judge runs in the data folder of a server, running or not")
    parser.add_argument("--json", action="store_true", help="print JSON: an object, of several files an array")


def run(args: argparse.Namespace) -> int:
    """Check each file; 0: nothing critical, 1: a critical alert, 2: a file cannot be read."""
    try:
        from floatscope_server.check.points import Points
        from floatscope_server.check.report import UnreadableError, check
    except ModuleNotFoundError as error:
        print(f'floatscope: {error.name} is missing; type: pip install "floatscope[server]"', file=sys.stderr)
        return 2
    from floatscope_server.rules import RuleParameters, Severity

    if args.server or args.data:
        return _runs(args)
    rules = RuleParameters()
    status = 0
    printed = 0
    for name in args.files:
        with Points() as points:
            try:
                report = check(Path(name), rules, points if args.json else None)
            except UnreadableError as error:
                print(f"floatscope: {error}", file=sys.stderr)
                status = 2
                continue
            if status == 0 and any(fired.severity is Severity.CRITICAL for fired in report.alerts):
                status = 1
            if args.json:
                if len(args.files) > 1:
                    sys.stdout.write(", " if printed else "[")
                _write_json(report, points)
            else:
                print("\n".join(_lines(report)))
            printed += 1
    if args.json and len(args.files) > 1:
        sys.stdout.write("]\n" if printed else "[]\n")
    elif args.json and printed:
        sys.stdout.write("\n")
    return status


def _runs(args: argparse.Namespace) -> int:
    """The same of recorded runs."""
    from floatscope_server.jsontext import encode_json
    from floatscope_server.readers.names import canonical

    status, objects = 0, []
    for name in args.files:
        try:
            found = judged(args.server, args.data, name)
        except UnansweredError as error:
            print(f"floatscope: {error}", file=sys.stderr)
            status = 2
            continue
        if status == 0 and any(alert["severity"] == "critical" for alert in found["alerts"]):
            status = 1
        series, steps = found["series"], {step for points in found["series"].values() for step, _ in points}
        known = {meant[0]: series_name for series_name in reversed(series) if (meant := canonical(series_name))}
        objects.append(
            {"file": name, "format": "run", "records": len(steps), "series": series, "canonical": known}
            | {key: found[key] for key in ("alerts", "from_step", "tensors_from_step")}
        )
        if not args.json:
            print(f"{name}: run, {counted(len(steps), 'record')} from step {found['from_step']}")
            for alert in found["alerts"]:
                print(f"  {alert['severity']} {alert['kind']} at step {alert['first_step']}: {alert['message']}")
            if not found["alerts"]:
                print("  no alerts")
    if args.json and (objects or len(args.files) > 1):
        print(encode_json(objects if len(args.files) > 1 else objects[0]).decode())
    return status


def _write_json(report: Report, points: Points) -> None:
    """Write the object piece by piece: a long file's series are never in memory all at once."""
    from floatscope_server.jsontext import encode_json

    def text(value: object) -> str:
        return encode_json(value).decode()

    write = sys.stdout.write
    write(f'{{"file": {text(report.file)}, "format": {text(report.format)}, "records": {report.records}, "series": {{')
    names = _series_names(points.names)
    for i, (name, shown) in enumerate(names.items()):
        steps, values = points.of(name)
        write(f"{', ' if i else ''}{text(shown)}: {text(list(zip(steps.tolist(), values.tolist(), strict=True)))}")
    rest: dict[str, object] = {"canonical": report.canonical}
    if report.devices:
        rest["devices"] = report.device_list()
    rest["alerts"] = [fired.describe(report.framework) for fired in report.alerts]
    broken = report.first_broken
    rest["unread"] = {
        "lines": report.broken,
        "first": None if broken is None else {"line": broken.line, "why": broken.why},
    }
    write(f"}}, {text(rest)[1:]}")


def _series_names(names: list[str]) -> dict[str, str]:
    """Series of a single card go by the file's own names, without the card before them."""
    cards = {name.partition("/")[0] for name in names}
    if len(cards) == 1 and next(iter(cards), "").startswith("card"):
        return {name: name.partition("/")[2] for name in names}
    return {name: name for name in names}


def _lines(report: Report) -> Iterator[str]:
    """A report for people."""
    steps = "" if report.first_step is None else f", steps {report.first_step} to {report.last_step}"
    cards = f", {counted(len(report.devices), 'card')}" if report.devices else ""
    yield f"{report.file}: {report.format}, {counted(report.records, 'record')}{steps}{cards}"
    # A file of events is binary: it has no lines to look up.
    unit = "record" if report.format == "tensorboard-events" else "line"
    if report.first_broken is not None:
        more = "" if report.broken == 1 else f", and {report.broken - 1} more"
        yield f"  not read: {unit} {report.first_broken.line} ({report.first_broken.why}){more}"
    for fired in report.alerts:
        alert = fired.describe(report.framework)
        where = f"at step {alert['first_step']} ({unit} {fired.line})"
        yield f"  {alert['severity']} {alert['kind']} {where}: {alert['message']}"
    if not report.alerts:
        yield "  no alerts"
