"""``floatscope doctor``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floatscope._doctor._machine import Machine
    from floatscope._doctor._verdict import Verdict

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = "what is wrong with this machine, or with a training's configuration, before the training starts"
_TIMEOUT_S = 60.0
"""For searching compiled packages of gigabytes on a slow disk; the kernel's files take milliseconds."""
EXAMPLE = "floatscope doctor qwen_lora.yaml --chip gfx942"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config_file",
        nargs="?",
        type=Path,
        metavar="CONFIG_FILE",
        help="of LLaMA-Factory, transformers, DeepSpeed or accelerate (YAML, JSON), or a shell or Python script",
    )
    parser.add_argument("--chip", help="judge the file for this chip, as gfx942 (default: what is in this machine)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from floatscope._chips import fp8_of
    from floatscope._doctor._lint import lint
    from floatscope._doctor._read import UnreadableError, read
    from floatscope._doctor._verdict import as_json, exit_status, table, warning

    try:
        # First: a mistake in the name is no reason to wait for torch.
        document = read(args.config_file) if args.config_file is not None else None
    except UnreadableError as error:
        return _refuse(error)
    machine, verdicts = _machine_verdicts()
    try:
        if document is not None:
            verdicts += lint(document, chips=(args.chip,) if args.chip else machine.chips)
    except UnreadableError as error:
        return _refuse(error)
    if args.chip and fp8_of(args.chip) is None:
        verdicts.append(
            warning("chip", args.chip, "it is not known: FP8 is not judged", "write gfx942, sm_90 or MI300X, say")
        )
    if args.json:
        print(json.dumps({"verdicts": as_json(verdicts)}, indent=2))
    else:
        print(table(verdicts))
    return exit_status(verdicts)


def _refuse(problem: Exception) -> int:
    from floatscope._doctor._verdict import printable

    print(f"floatscope doctor: {printable(str(problem))}", file=sys.stderr)
    return 2


def _machine_verdicts() -> tuple[Machine, list[Verdict]]:
    from floatscope._devices import smi_cards
    from floatscope._doctor._ask_torch import ask, bandwidth, import_torch, probe_checks
    from floatscope._doctor._examine import examine
    from floatscope._doctor._look import look_in_time
    from floatscope._selftest._history import History

    torch, broken = import_torch()
    site = [Path(folder) for folder in dict.fromkeys(sys.path) if folder]
    last = History.of_user(os.environ).last()
    machine, hung = look_in_time(
        _TIMEOUT_S,
        environment=os.environ,
        torch=None if torch is None else ask(torch, cards=True),
        site=site,
        tested_with=None if last is None else last.stack,
    )
    if torch is not None:
        machine = dataclasses.replace(machine, bandwidth=bandwidth(torch))
    if machine.cards:
        count = smi_cards()
        machine = dataclasses.replace(machine, smi_cards=count.cards, smi_problem=count.reason)
    verdicts = [*hung, *examine(machine)]
    if broken is not None:
        verdicts = [broken, *(verdict for verdict in verdicts if verdict.item != "torch")]
    return machine, verdicts + ([] if torch is None else probe_checks(torch))
