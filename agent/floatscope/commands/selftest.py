"""``floatscope selftest``."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope._selftest._history import Change, Entry
    from floatscope._selftest._measure import Result

__all__ = ["EXAMPLE", "HELP", "configure", "run"]

HELP = (
    "whether this machine computes in FP8, BF16 and FP16 what the formats promise, and what has changed since last time"
)
EXAMPLE = "floatscope selftest --json"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="where earlier results are kept (default: the user's state folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from floatscope._doctor._ask_torch import import_torch

    torch, broken = import_torch()
    if torch is None:
        reason = f"torch cannot be imported: {broken.value}" if broken is not None else "it needs torch"
        print(f'floatscope selftest: {reason}; type: pip install "floatscope[torch]"', file=sys.stderr)
        return 2
    from floatscope._selftest._history import Entry, History, Line, changes

    stack, chips = _software(torch)
    results = _measured(torch, chips)
    now = Entry(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        stack=stack,
        chips=chips,
        lines=tuple(
            Line(
                device=r.device,
                format=r.format,
                stage=r.stage,
                how=r.how,
                ratio=r.ratio if math.isfinite(r.ratio) else None,
                passed=r.passed,
            )
            for r in results
        ),
    )
    history = History(args.history) if args.history is not None else History.of_user(os.environ)
    before = history.last(chips)
    changed = changes(before, now) if before is not None else []
    try:
        history.add(now)
    except OSError as error:
        print(f"floatscope selftest: not kept in {history.path}: {error.strerror}", file=sys.stderr)
    if args.json:
        print(json.dumps(_described(now, results, before, changed), indent=2))
    else:
        print(_text(now, results, before, changed))
    return 0 if all(result.passed for result in results) else 1


def _software(torch: Any) -> tuple[str, tuple[str, ...]]:  # noqa: ANN401  # torch has no type for itself
    from floatscope._doctor._ask_torch import ask
    from floatscope._doctor._look import look

    asked = ask(torch, cards=True)
    return look(environment=os.environ, torch=asked, libraries=False).stack, asked.chips


def _measured(torch: Any, chips: tuple[str, ...]) -> list[Result]:  # noqa: ANN401
    from floatscope._selftest._measure import measure

    results = list(measure(torch.device("cpu")))
    for index, chip in enumerate(chips):
        results += measure(torch.device("cuda", index), chip.partition(":")[0])
    return results


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")


def _described(now: Entry, results: list[Result], before: Entry | None, changed: list[Change]) -> dict[str, object]:
    return {
        "passed": all(result.passed for result in results),
        "stack": now.stack,
        "chips": list(now.chips),
        "results": [
            {k: _finite(v) if isinstance(v, float) else v for k, v in asdict(r).items()} | {"passed": r.passed}
            for r in results
        ],
        "last": None
        if before is None
        else {
            "time": before.time,
            "stack": before.stack,
            "stack_changed": before.stack != now.stack,
            "changes": [
                {
                    "device": c.device,
                    "format": c.format,
                    "stage": c.stage,
                    "before": _finite(c.before),
                    "now": _finite(c.now),
                    "how_before": c.how_before,
                    "how_now": c.how_now,
                }
                for c in changed
            ],
        },
    }


def _text(now: Entry, results: list[Result], before: Entry | None, changed: list[Change]) -> str:
    lines = [now.stack]
    for r in results:
        mark = "ok   " if r.passed else "WRONG"
        lines.append(f"{mark} {r.device:<7} {r.format:<9} {r.stage:<25} {100 * r.ratio:8.3g} % of the bound ({r.how})")
        if not r.passed:
            lines.append(f"      largest error {r.error:.3g}, bound {r.bound:.3g}: {r.why}")
    if before is None:
        lines.append("the first self-test here: nothing to compare with")
        return "\n".join(lines)
    if before.stack != now.stack:
        lines.append(f"changed since {before.time}: {before.stack} -> {now.stack}")
    lines += [
        f"changed since {before.time}: {c.device} {c.format} {c.stage}: {100 * c.before:.3g} % -> {100 * c.now:.3g} % "
        f"of the bound" + (f"; {c.how_before} -> {c.how_now}" if c.how_before != c.how_now else "")
        for c in changed
    ]
    if before.stack == now.stack and not changed:
        lines.append(f"the same as on {before.time}")
    return "\n".join(lines)
